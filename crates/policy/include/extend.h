/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A vCPU whose slice ends inside a critical section of its guest may go on, in steps, within three bounds: per event,
 * per vCPU and second (a token bucket), and by debt: what it took beyond its slice is taken off its next ones. The
 * guest writes the preempt count that buys the extension, so all three hold whatever it writes:
 *
 *   - one event costs a waiting task at most the event bound in latency, and less where its guest's timer is due;
 *   - over any second at most burst + rate * 1 s of extensions are granted;
 *   - every nanosecond is charged to the vCPU's virtual time like any other (fair.h), so in the long run a guest that
 *     always claims a section gains nothing but longer and fewer slices.
 *
 * Reference 4 (critical sections) with the budgets of pvsched v3.
 */
#ifndef ENTRAIN_EXTEND_H
#define ENTRAIN_EXTEND_H

#include "policy.h"

struct entrain_extend_limits {
	entrain_u64 step;     /* after so long the vCPU is looked at again for the first time */
	entrain_u64 event;    /* most that one event may be extended */
	entrain_u64 burst;    /* most that a full bucket holds */
	entrain_u64 rate_ppm; /* refill: nanoseconds per millisecond of wall time, times 1,000 */
};

struct entrain_extend_state {
	entrain_u64 tokens;   /* left in the bucket */
	entrain_u64 refilled; /* when it was last filled up */
	entrain_u64 used;     /* extended so far in this event */
	entrain_u64 debt;     /* not yet taken off a later slice */
};

enum entrain_extend_verdict {
	ENTRAIN_EXTEND_GRANTED = 0,
	ENTRAIN_EXTEND_NOT_CRITICAL = 1,
	ENTRAIN_EXTEND_EVENT_SPENT = 2,
	ENTRAIN_EXTEND_BUDGET_SPENT = 3,
	ENTRAIN_EXTEND_VERDICTS = 4,
};

ENTRAIN_POLICY void entrain_extend_refill(struct entrain_extend_state *s, const struct entrain_extend_limits *l,
					  entrain_u64 now)
{
	/* A clock that went back refills nothing. A second fills any bucket, which keeps the product small. */
	entrain_u64 passed = entrain_min(entrain_sub(now, s->refilled), ENTRAIN_SEC);

	s->tokens = entrain_min(s->tokens + passed * entrain_min(l->rate_ppm, 1000000) / 1000000, l->burst);
	s->refilled = now;
}

/*
 * The bound of an event, `event`, where a guest's timer falls due in `due` ns and its vCPU waits: at least `peace`.
 * That one wants the CPU for about as long as a section takes. A vCPU that fights for locks is inside a section at
 * almost each look, and each time inside another one: it is given a few looks, and is then interrupted wherever it is.
 */
ENTRAIN_POLICY entrain_u64 entrain_extend_event(entrain_u64 event, entrain_u64 peace, entrain_u64 used, entrain_u64 due)
{
	return due < event ? entrain_min(event, entrain_max(due ? used + due : 0, peace)) : event;
}

/* Decides on one step more. On GRANTED the step has been taken from the bucket and stands in *step. */
ENTRAIN_POLICY enum entrain_extend_verdict entrain_extend(struct entrain_extend_state *s,
							  const struct entrain_extend_limits *l, entrain_u32 level,
							  entrain_u64 now, entrain_u64 *step)
{
	entrain_u64 event = l->event;
	entrain_u64 want;

	*step = 0;
	if (!entrain_critical_holds(level))
		return ENTRAIN_EXTEND_NOT_CRITICAL;
	/* Kernel mode alone is a weak sign (most of it is preemptible), so it buys half as much. */
	if (level == ENTRAIN_CRITICAL_KERNEL)
		event /= 2;
	if (s->used >= event)
		return ENTRAIN_EXTEND_EVENT_SPENT;

	entrain_extend_refill(s, l, now);
	/* The bucket fills while nothing is repaid, too; whoever owes all that it holds repays first. */
	if (s->debt >= l->burst)
		return ENTRAIN_EXTEND_BUDGET_SPENT;
	/* Twice as long after each step: a look costs an exit of the guest, and most sections are over at the first. */
	want = entrain_min(entrain_max(l->step, s->used), event - s->used);
	if (!want || s->tokens < want)
		return ENTRAIN_EXTEND_BUDGET_SPENT;

	s->tokens -= want;
	s->used += want;
	s->debt += want;
	*step = want;
	return ENTRAIN_EXTEND_GRANTED;
}

/* The section ended (or the bounds were reached) before the granted time was over: give back what was not used. */
ENTRAIN_POLICY void entrain_extend_return(struct entrain_extend_state *s, const struct entrain_extend_limits *l,
					  entrain_u64 unused)
{
	unused = entrain_min(unused, s->used);
	s->used -= unused;
	s->debt = entrain_sub(s->debt, unused);
	s->tokens = entrain_min(s->tokens + unused, l->burst);
}

/*
 * Takes what is owed off a new slice, leaving at least `floor` of it, or half where that is less: where many share a
 * CPU all slices are as short as can be, and nothing would ever be repaid. Starts a new event. Returns the slice.
 */
ENTRAIN_POLICY entrain_u64 entrain_extend_repay(struct entrain_extend_state *s, entrain_u64 slice, entrain_u64 floor)
{
	entrain_u64 repaid = entrain_min(s->debt, entrain_max(entrain_sub(slice, floor), slice / 2));

	s->debt -= repaid;
	s->used = 0;
	return slice - repaid;
}

#endif /* ENTRAIN_EXTEND_H */
