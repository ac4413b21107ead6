/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Slices in the guest, and when a waking task takes the vCPU from the one that runs.
 */
#ifndef ENTRAIN_GUEST_PREEMPT_H
#define ENTRAIN_GUEST_PREEMPT_H

#include "cost.h"
#include "fair.h"
#include "slice.h"

/* Slices end at ticks: a little less than a tick at HZ=250, so that a slice ends at the next one, not the one after. */
#define GUEST_SLICE_NS	   (3500 * ENTRAIN_USEC)
#define GUEST_SLICE_MIN_NS ENTRAIN_MSEC

/* Credit that a sleeper keeps, virtual ns. */
#define GUEST_CREDIT_NS	   (4 * ENTRAIN_MSEC)
/* Debt that a task keeps, from a vCPU where it ran alone or for its last turn: so much time on a vCPU ... */
#define GUEST_DEBT_NS	   (100 * ENTRAIN_MSEC)
/* ... but not more than others have worked off in so long: the kernel takes the scheduler away if a task waits 10 s. */
#define GUEST_DEBT_WAIT_NS (4 * ENTRAIN_SEC)

/*
 * Clocks of vCPUs stay together where tasks can go from one to another, within a few slices. Where they can't (pinned
 * tasks), they run apart, and a task that goes from one to the other keeps its place among its neighbours.
 */
#define GUEST_APART_NS (GUEST_CREDIT_NS + 2 * GUEST_SLICE_NS)

/* A waking task preempts when it is at least this far behind: about EEVDF's minimal slice, so that p50 is no worse. */
#define GUEST_PREEMPT_NS  ENTRAIN_MSEC
/*
 * Whoever runs is left in peace until it has worked for so many times what a switch costs here since it woke up: most
 * tasks sleep again before that, and to take the vCPU from them costs a switch each time, and whatever lock they hold
 * stays held. Messages that go around would else switch twice each. EEVDF leaves everybody in peace for a slice.
 *
 * One that has worked for half of that or longer is left in peace for the other half each time that it comes to the
 * vCPU: else one that wakes many would lose it to each of them, at a switch there and one back. Whoever wakes meanwhile
 * waits until who runs sleeps, or for the next tick behind that.
 */
#define GUEST_PEACE_COSTS 64
#define GUEST_PEACE_NS	  ENTRAIN_MSEC

/*
 * The debt in virtual time of a task with that share (1/1024 of a weight) of the `total` of all that want to run. A
 * small share is charged much for a turn; to forgive it that would raise the share.
 */
ENTRAIN_POLICY entrain_u64 guest_debt(entrain_u64 share, entrain_u64 total)
{
	return entrain_min(entrain_charge_share(GUEST_DEBT_NS, share),
			   entrain_charge_share(GUEST_DEBT_WAIT_NS, entrain_max(total, share)));
}

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

/* What a task that yields gives up of its clock: the rest of its turn, as EEVDF has it wait until its next deadline. */
ENTRAIN_POLICY entrain_u64 guest_yield_charge(entrain_u64 rest, entrain_u64 share)
{
	return entrain_charge_share(entrain_min(rest, GUEST_SLICE_NS), share);
}

/*
 * How long a task that comes to a vCPU, and has worked `ran` ns since it woke up, is left in peace there, where a
 * switch costs `cost`; ns.
 */
ENTRAIN_POLICY entrain_u64 guest_peace(entrain_u64 cost, entrain_u64 ran)
{
	entrain_u64 peace = entrain_costs(cost, GUEST_PEACE_COSTS, GUEST_PEACE_NS);

	return entrain_max(entrain_sub(peace, ran), peace / 2);
}

/*
 * Whether a task of the virtual time `waking` takes the vCPU from the one that runs, stands at `running` and is no
 * longer left in peace.
 */
ENTRAIN_POLICY int guest_preempts(entrain_u64 waking, entrain_u64 running)
{
	return (entrain_s64)(running - waking) > (entrain_s64)GUEST_PREEMPT_NS;
}

#endif /* ENTRAIN_GUEST_PREEMPT_H */
