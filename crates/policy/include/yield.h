/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Whether a directed yield (KVM's answer to a vCPU that spins) is followed. KVM knows only which siblings stand ready;
 * it tries them in turn, so a refusal costs one step of its loop and a yield to the wrong one costs two context
 * switches and leaves the lock's holder where it was (reference 3: most targets hold nothing; redundant yields to the
 * same target). A VM whose vCPUs yield to one another all the time keeps a CPU no longer than one that doesn't: what
 * they hand on is the turn of one of them, who pays for it. So how far the target's own clock has come is no matter
 * here.
 */
#ifndef ENTRAIN_YIELD_H
#define ENTRAIN_YIELD_H

#include "policy.h"

enum entrain_yield_verdict {
	ENTRAIN_YIELD_HONOURED = 0,
	ENTRAIN_YIELD_NOT_WAITING = 1,	 /* runs already, or is not queued with us */
	ENTRAIN_YIELD_HOLDS_NOTHING = 2, /* preempted in user mode, or with a preempt count of 0; owes nothing */
	ENTRAIN_YIELD_JUST_BOOSTED = 3,	 /* another vCPU's yield already put it at the front, where it still is */
	ENTRAIN_YIELD_FOREIGN = 4,	 /* of another VM: the yielder may give away only its own time */
	ENTRAIN_YIELD_UNFAIR = 5,	 /* the turn is over */
	ENTRAIN_YIELD_NOT_ALLOWED = 6,	 /* its affinity excludes the yielder's CPU */
	ENTRAIN_YIELD_VERDICTS = 7,
};

struct entrain_yield_in {
	entrain_u32 waiting; /* target stands in one of our queues */
	entrain_u32 sibling; /* same VM */
	entrain_u32 allowed; /* target may run on the yielder's CPU */
	entrain_u32 level;   /* enum entrain_critical of the target when it was switched out */
	entrain_u32 owes;    /* an interrupt waits for the target: the one who spins may have sent it */
	entrain_u32 named;   /* the guest says that it is the target that the yielder spins for */
	entrain_u32 next;    /* a CPU is to take it next, by another yield */
	/* ns since the CPU last went to somebody by his clock: yields hand on what is left of a turn */
	entrain_u64 turn;
};

struct entrain_yield_limits {
	entrain_u64 turn; /* how long a turn lasts: the slice of the one who began it */
};

ENTRAIN_POLICY enum entrain_yield_verdict entrain_yield(const struct entrain_yield_in *in,
							const struct entrain_yield_limits *l)
{
	if (!in->sibling)
		return ENTRAIN_YIELD_FOREIGN;
	if (!in->waiting)
		return ENTRAIN_YIELD_NOT_WAITING;
	if (!in->allowed)
		return ENTRAIN_YIELD_NOT_ALLOWED;
	if (in->next)
		return ENTRAIN_YIELD_JUST_BOOSTED;
	if (!in->owes && !in->named && (in->level == ENTRAIN_CRITICAL_USER || in->level == ENTRAIN_CRITICAL_FREE))
		return ENTRAIN_YIELD_HOLDS_NOTHING;
	if (in->turn >= l->turn)
		return ENTRAIN_YIELD_UNFAIR;
	return ENTRAIN_YIELD_HONOURED;
}

enum entrain_lend_verdict {
	ENTRAIN_LEND_GOES_ON = 0, /* looked at again */
	ENTRAIN_LEND_LEAVES = 1,
	ENTRAIN_LEND_OVER = 2, /* nobody waits for the CPU: it stays as any other */
	ENTRAIN_LEND_VERDICTS = 3,
};

/* Whether a vCPU that was let in since it holds something (`level` as KVM last saw it) goes on in the others' time. */
ENTRAIN_POLICY enum entrain_lend_verdict entrain_lend(entrain_u32 level, entrain_u32 others_wait)
{
	if (!others_wait)
		return ENTRAIN_LEND_OVER;
	return entrain_critical_holds(level) ? ENTRAIN_LEND_GOES_ON : ENTRAIN_LEND_LEAVES;
}

#endif /* ENTRAIN_YIELD_H */
