/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Balance between groups of CPUs (last-level caches). Inside a group tasks are fetched from CPU to CPU by their clocks;
 * clocks of different groups say nothing of one another, so that between groups the load is what is evened out: the sum
 * of the shares (fair.h) of the tasks that want to run.
 */
#ifndef ENTRAIN_BALANCE_H
#define ENTRAIN_BALANCE_H

#include "policy.h"

/*
 * Half-life of a CPU's average load. Averages and moments must agree before anything moves, so that tasks that sleep
 * and wake all the time do not wander. Short beside the balancer's period, so that what one round has moved is in the
 * averages of the next.
 */
#define ENTRAIN_LOAD_HALF_NS (16 * ENTRAIN_MSEC)

/*
 * A group gives when a CPU of it has this much more than one of the group that takes, in percent: what fair.c's
 * domains call imbalance_pct. A move costs the task its cache.
 */
#define ENTRAIN_IMBALANCE_PCT 117

/* What is left of a difference after `elapsed` ns. */
ENTRAIN_POLICY entrain_u64 entrain_load_fade(entrain_u64 load, entrain_u64 elapsed)
{
	entrain_u64 halves = elapsed / ENTRAIN_LOAD_HALF_NS, rest = elapsed % ENTRAIN_LOAD_HALF_NS, keep;

	if (halves >= 10)
		return 0;
	/* Of 1024; between two half-lives along the chord. */
	keep = (1024 - 512 * rest / ENTRAIN_LOAD_HALF_NS) >> halves;
	return (load >> 10) * keep + ((load & 1023) * keep >> 10);
}

/* An average after `elapsed` ns in which the load was `load`. */
ENTRAIN_POLICY entrain_u64 entrain_load_avg(entrain_u64 avg, entrain_u64 load, entrain_u64 elapsed)
{
	return avg > load ? load + entrain_load_fade(avg - load, elapsed)
			  : load - entrain_load_fade(load - avg, elapsed);
}

/* One group of CPUs. */
struct entrain_group {
	entrain_u64 low;  /* its load: the lower of average and moment; what it may give */
	entrain_u64 high; /* the higher of the two; what it has to be spared */
	entrain_u32 cpus;
};

/* What a group may give, given what a CPU has in the mean; a load. */
ENTRAIN_POLICY entrain_u64 entrain_surplus(const struct entrain_group *g, entrain_u64 mean)
{
	return entrain_sub(g->low, mean * g->cpus);
}

/* What a group may take. */
ENTRAIN_POLICY entrain_u64 entrain_deficit(const struct entrain_group *g, entrain_u64 mean)
{
	return entrain_sub(mean * g->cpus, g->high);
}

/* Whether two groups differ by enough. Where all CPUs of one are taken, whoever waits there has none. */
ENTRAIN_POLICY int entrain_imbalanced(const struct entrain_group *giver, const struct entrain_group *taker)
{
	if (!taker->cpus)
		return 0;
	if (!giver->cpus)
		return giver->low > 0;
	return giver->low / giver->cpus * 100 > taker->high / taker->cpus * ENTRAIN_IMBALANCE_PCT;
}

/*
 * Whether a task of this share is moved while so much is `owed`: only if both are nearer to the mean afterwards. A task
 * that would just change the sides of the same imbalance stays.
 */
ENTRAIN_POLICY int entrain_worth_moving(entrain_u64 share, entrain_s64 owed)
{
	return owed > 0 && share / 2 < (entrain_u64)owed;
}

#endif /* ENTRAIN_BALANCE_H */
