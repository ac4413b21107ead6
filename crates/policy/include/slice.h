/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * How long a task may run before the others are looked at: long where nobody waits, a part of the target period where
 * somebody does, never below the floor that keeps context switches from eating the gain.
 */
#ifndef ENTRAIN_SLICE_H
#define ENTRAIN_SLICE_H

#include "policy.h"

struct entrain_slice_in {
	entrain_u64 period;  /* in which everyone who waits should have run once */
	entrain_u64 floor;   /* shortest slice */
	entrain_u64 ceiling; /* longest slice; what one gets where nobody waits */
	entrain_u32 waiting; /* tasks that wait in the CPU's queue, without this one */
};

/* period / (waiting + 1), within [floor, ceiling]. */
ENTRAIN_POLICY entrain_u64 entrain_slice(const struct entrain_slice_in *in)
{
	if (!in->waiting)
		return entrain_max(in->floor, in->ceiling);
	return entrain_max(in->floor, entrain_min(in->period / (in->waiting + 1ULL), in->ceiling));
}

#endif /* ENTRAIN_SLICE_H */
