/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Slices in the guest, and when a waking task takes the vCPU from the one that runs.
 */
#ifndef ENTRAIN_GUEST_PREEMPT_H
#define ENTRAIN_GUEST_PREEMPT_H

#include "fair.h"
#include "slice.h"

/* Slices end at ticks; a little less than one tick at HZ=250, so that a slice ends at the next tick, not the one after.
 */
#define GUEST_SLICE_NS	   (3500 * ENTRAIN_USEC)
#define GUEST_SLICE_MIN_NS ENTRAIN_MSEC

/* Credit that a sleeper keeps, and debt that a task brings along from a vCPU where it ran alone; virtual ns. */
#define GUEST_CREDIT_NS (4 * ENTRAIN_MSEC)
#define GUEST_DEBT_NS	(100 * ENTRAIN_MSEC)

/* A waking task preempts when it is at least this far behind: about EEVDF's minimal slice, so that p50 is no worse. */
#define GUEST_PREEMPT_NS ENTRAIN_MSEC

/* Slice where `waiting` others wait for the same vCPU, ns. */
ENTRAIN_POLICY entrain_u64 guest_slice(entrain_u32 waiting)
{
	struct entrain_slice_in in = {
		.period = 4 * GUEST_SLICE_NS,
		.floor = GUEST_SLICE_MIN_NS,
		.ceiling = GUEST_SLICE_NS,
		.waiting = waiting,
	};

	return entrain_slice(&in);
}

ENTRAIN_POLICY int guest_preempts(entrain_u64 waking, entrain_u64 running)
{
	return (entrain_s64)(running - waking) > (entrain_s64)GUEST_PREEMPT_NS;
}

#endif /* ENTRAIN_GUEST_PREEMPT_H */
