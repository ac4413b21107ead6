/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Whether a task that wakes takes a CPU from the task that runs there. The clocks of fair.h decide; the wake-up
 * granularity keeps two tasks of nearly equal clocks from switching at every wake-up. A victim inside a critical
 * section of its guest is no matter of this header: it stays for as long as extend.h lets it.
 */
#ifndef ENTRAIN_PLACE_H
#define ENTRAIN_PLACE_H

#include "policy.h"
#include "fair.h"

struct entrain_preempt_in {
	entrain_u64 vtime;	  /* of the task that wakes */
	entrain_u64 victim_vtime; /* of the one that runs, charged up to now */
	entrain_u64 victim_ran;	  /* ns since it came to this CPU */
};

struct entrain_preempt_limits {
	entrain_u64 granularity; /* virtual time that the victim must be ahead */
	entrain_u64 min_run;	 /* a victim stays at least so long */
};

/*
 * What a guest's word for a latency-critical task buys the vCPU that wakes for it: the credit of a sleeper that missed
 * a whole period (entrain_latency_credit() with a target of 0), half the granularity, and a victim's short protection.
 *
 * Threat model: the word is any number, at any time. It moves a guest's share of the CPU to the moments of its wake-ups
 * and never raises it: all time is charged, and the credit is bounded by a period. A guest that claims it always, and
 * sleeps and wakes as fast as it can, takes a CPU from another at most once per `min_run` of plain tasks.
 */
#define ENTRAIN_LATENCY_MAX 10000 /* weights of urgency, as cpu.weight */

ENTRAIN_POLICY int entrain_urgent(entrain_u64 word)
{
	return word && word <= ENTRAIN_LATENCY_MAX;
}

ENTRAIN_POLICY entrain_u64 entrain_granularity(entrain_u64 granularity, int urgent)
{
	return urgent ? granularity / 2 : granularity;
}

ENTRAIN_POLICY int entrain_preempt(const struct entrain_preempt_in *in, const struct entrain_preempt_limits *l)
{
	return entrain_before(in->vtime + l->granularity, in->victim_vtime) && in->victim_ran >= l->min_run;
}

/*
 * After how many ns the answer of entrain_preempt() is yes, if all goes on as it does: the victim's protection is over
 * then, and its clock, which moves at its share, far enough ahead. 0: it is yes now.
 */
ENTRAIN_POLICY entrain_u64 entrain_preempt_after(const struct entrain_preempt_in *in,
						 const struct entrain_preempt_limits *l, entrain_u64 share)
{
	entrain_u64 ahead = in->vtime + l->granularity + 1;
	entrain_u64 clock = entrain_before(in->victim_vtime, ahead) ? ahead - in->victim_vtime : 0;

	return entrain_max(entrain_time_of(clock, share), entrain_sub(l->min_run, in->victim_ran));
}

/*
 * How good a CPU is as a victim's: the further its task's clock is ahead, the better. Returns the distance in virtual
 * time, 0 where the task that runs is not ahead at all.
 */
ENTRAIN_POLICY entrain_u64 entrain_victim_score(entrain_u64 vtime, entrain_u64 victim_vtime)
{
	return entrain_before(vtime, victim_vtime) ? victim_vtime - vtime : 0;
}

/*
 * Whether a CPU takes a task that waits in another CPU's queue though it has work itself: only one that has fallen
 * behind by more than what moving it costs. A vCPU that moves leaves behind caches, TLB and timers. This bounds by how
 * much CPUs with queues of different lengths are unfair to one another.
 */
ENTRAIN_POLICY int entrain_fetch(entrain_u64 theirs, entrain_u64 ours, entrain_u64 migrate)
{
	return entrain_before(theirs + migrate, ours);
}

#endif /* ENTRAIN_PLACE_H */
