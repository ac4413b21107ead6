/* SPDX-License-Identifier: GPL-2.0-only */
/* Memory without a C library: an object is linked with nothing, so that a call that nobody simulates fails the link. */
#ifndef ENTRAIN_SIM_MEMORY_H
#define ENTRAIN_SIM_MEMORY_H

#include <stddef.h>
#include "sim.h"

/* The compiler calls these for copies of structures; it must not make calls of them out of their own loops. */
#define SIM_PLAIN_LOOP __attribute__((optimize("no-tree-loop-distribute-patterns"), used))

SIM_PLAIN_LOOP void *memcpy(void *to, const void *from, size_t size)
{
	size_t i;

	for (i = 0; i < size; i++)
		((char *)to)[i] = ((const char *)from)[i];
	return to;
}

SIM_PLAIN_LOOP void *memset(void *to, int byte, size_t size)
{
	size_t i;

	for (i = 0; i < size; i++)
		((char *)to)[i] = byte;
	return to;
}

SIM_PLAIN_LOOP int memcmp(const void *a, const void *b, size_t size)
{
	const unsigned char *x = a, *y = b;
	size_t i;

	for (i = 0; i < size; i++) {
		if (x[i] != y[i])
			return x[i] - y[i];
	}
	return 0;
}

/* Zeroed memory that lives as long as the object. */
static void *sim_alloc(size_t size)
{
	return sim.calls->alloc(sim.memory, size);
}

/* Makes room for one more pointer behind `used` ones; the room doubles. */
static void *sim_grow(void *pointers, __u32 used)
{
	void *more;

	if (used & (used - 1) || used == 1)
		return pointers;
	more = sim_alloc(2 * (used ? used : 1) * sizeof(void *));
	if (used)
		memcpy(more, pointers, used * sizeof(void *));
	return more;
}

#endif /* ENTRAIN_SIM_MEMORY_H */
