/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A group's limit of CPU time, as cpu.max and cpu.max.burst say it: `quota` in each `period`, and what was left over
 * can be saved up to `burst`. After the kernel's cfs_bandwidth: the group has a pool that each period fills up, CPUs
 * take slices of it and bring back what they don't use. What was used beyond a slice (a turn ends at a timer tick) is a
 * debt that later periods pay, so that the quota holds over time whatever the tick.
 */
#ifndef ENTRAIN_BANDWIDTH_H
#define ENTRAIN_BANDWIDTH_H

#include "policy.h"

/* What a CPU takes at once: the default of the kernel's sysctl_sched_cfs_bandwidth_slice. */
#define ENTRAIN_BW_SLICE (5 * ENTRAIN_MSEC)

/* The kernel's bounds of a period (max_bw_quota_period_us, min_bw_quota_period_us) and of a quota (MAX_BW). */
#define ENTRAIN_BW_PERIOD_MIN ENTRAIN_MSEC
#define ENTRAIN_BW_PERIOD_MAX ENTRAIN_SEC
#define ENTRAIN_BW_MAX	      (((1ULL << 44) - 1) * ENTRAIN_USEC)

/* At most so much of a group's time lies on a CPU where none of its tasks run: min_cfs_rq_runtime. */
#define ENTRAIN_BW_KEEP ENTRAIN_MSEC

/*
 * In a limited group's queue a task can be put behind those that came up to so much later, by what it has had. Bounds
 * the wait behind a stream of tasks that have had less; well below the watchdogs of both schedulers (10 s).
 */
#define ENTRAIN_BW_AHEAD ENTRAIN_SEC

struct entrain_bw {
	entrain_u64 quota;  /* ns each period */
	entrain_u64 period; /* ns */
	entrain_u64 burst;  /* ns */
	entrain_u64 start;  /* of the current period, ns */
	entrain_s64 pool;   /* what CPUs may still take, ns; negative: a debt */
};

/* Most that the pool holds. */
ENTRAIN_POLICY entrain_s64 entrain_bw_cap(const struct entrain_bw *bw)
{
	return bw->quota + bw->burst;
}

/*
 * The limit is set. A first one begins with a full quota. A change gives or takes the difference at once, so that it
 * holds from now on, and writing the same again, or to and fro, gains nothing.
 */
ENTRAIN_POLICY void entrain_bw_set(struct entrain_bw *bw, entrain_u64 quota, entrain_u64 period, entrain_u64 burst,
				   entrain_u64 now)
{
	entrain_u64 before = bw->quota;

	bw->quota = entrain_min(quota, ENTRAIN_BW_MAX);
	bw->burst = entrain_min(burst, bw->quota);
	bw->period = entrain_min(entrain_max(period, ENTRAIN_BW_PERIOD_MIN), ENTRAIN_BW_PERIOD_MAX);
	if (!before) {
		bw->start = now;
		bw->pool = bw->quota;
		return;
	}
	bw->pool += (entrain_s64)(bw->quota - before);
	if (bw->pool > entrain_bw_cap(bw))
		bw->pool = entrain_bw_cap(bw);
}

/* The periods that have begun since the last time fill the pool: __refill_cfs_bandwidth_runtime(). */
ENTRAIN_POLICY void entrain_bw_refill(struct entrain_bw *bw, entrain_u64 now)
{
	entrain_u64 periods = entrain_sub(now, bw->start) / entrain_max(bw->period, ENTRAIN_BW_PERIOD_MIN);
	entrain_u64 missing;

	if (!periods || !bw->quota)
		return;
	bw->start += periods * bw->period;
	missing = entrain_bw_cap(bw) > bw->pool ? (entrain_u64)(entrain_bw_cap(bw) - bw->pool) : 0;
	if (periods > missing / bw->quota)
		bw->pool += missing;
	else
		bw->pool += periods * bw->quota;
}

/* Until the next period begins, ns. */
ENTRAIN_POLICY entrain_u64 entrain_bw_due(const struct entrain_bw *bw, entrain_u64 now)
{
	return entrain_sub(bw->start + bw->period, now);
}

/* A CPU takes up to `want` out of the pool. Returns what it gets. */
ENTRAIN_POLICY entrain_u64 entrain_bw_take(struct entrain_bw *bw, entrain_u64 want)
{
	entrain_u64 got = bw->pool > 0 ? entrain_min(bw->pool, want) : 0;

	bw->pool -= got;
	return got;
}

/* A CPU gives back what it did not use, or its debt (negative). */
ENTRAIN_POLICY void entrain_bw_give(struct entrain_bw *bw, entrain_s64 left)
{
	bw->pool += left;
	if (bw->pool > entrain_bw_cap(bw))
		bw->pool = entrain_bw_cap(bw);
}

/*
 * What one of `cpus` CPUs may keep while none of the group's tasks run there, so that the next one needs no lock: on
 * all of them together at most half a quota, or a group of many vCPUs with a small quota could wait for time that lies
 * where it does not run.
 */
ENTRAIN_POLICY entrain_u64 entrain_bw_keep(entrain_u64 quota, entrain_u32 cpus)
{
	return entrain_min(quota / (2 * entrain_max(cpus, 1)), ENTRAIN_BW_KEEP);
}

/* How long the group's tasks run at a time, a mean of the last eight or so. */
ENTRAIN_POLICY entrain_u64 entrain_bw_turn(entrain_u64 mean, entrain_u64 ran)
{
	return entrain_max(mean - mean / 8 + entrain_min(ran, ENTRAIN_BW_PERIOD_MAX) / 8, 1);
}

/* How many of the tasks that wait for the pool it is likely to suffice for: no more are let go at a time. */
ENTRAIN_POLICY entrain_u64 entrain_bw_admits(entrain_s64 pool, entrain_u64 turn)
{
	return pool > 0 ? (entrain_u64)pool / entrain_max(turn, 1) + 1 : 0;
}

/*
 * A task's place in the queue of its group: by when it came, later by as much as its clock is `ahead` of its CPU's
 * (virtual time; negative: behind), within a bound.
 */
ENTRAIN_POLICY entrain_u64 entrain_bw_place(entrain_u64 now, entrain_s64 ahead)
{
	return now + (ahead > 0 ? entrain_min(ahead, ENTRAIN_BW_AHEAD) : 0);
}

#endif /* ENTRAIN_BANDWIDTH_H */
