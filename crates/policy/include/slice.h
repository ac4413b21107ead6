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
	entrain_u32 waiting; /* tasks that wait in the same queue, without this one */
	entrain_u32 cpus;    /* CPUs that serve the queue */
};

/* period * cpus / (waiting + cpus), within [floor, ceiling]: as if each CPU served its part of the queue. */
ENTRAIN_POLICY entrain_u64 entrain_slice(const struct entrain_slice_in *in)
{
	entrain_u64 cpus = in->cpus ? in->cpus : 1;
	entrain_u64 slice;

	if (!in->waiting)
		return entrain_max(in->floor, in->ceiling);
	slice = in->period * cpus / (in->waiting + cpus);
	return entrain_max(in->floor, entrain_min(slice, in->ceiling));
}

#endif /* ENTRAIN_SLICE_H */
