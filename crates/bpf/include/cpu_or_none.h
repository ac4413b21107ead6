/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A word that names a CPU, or none: 1 + the CPU's number, so that zeroed memory names none.
 */
#ifndef ENTRAIN_CPU_OR_NONE_H
#define ENTRAIN_CPU_OR_NONE_H

#include "kernel.h"

/* The word for a CPU. */
static __always_inline __u32 cpu_or_none__of(__u32 cpu)
{
	return cpu + 1;
}

/* The CPU; only of a word that names one. */
static __always_inline __u32 cpu_or_none__cpu(__u32 word)
{
	return word - 1;
}

static __always_inline bool cpu_or_none__is_none(__u32 word)
{
	return word == 0;
}

#endif /* ENTRAIN_CPU_OR_NONE_H */
