/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * How fast a CPU should run, and which CPU is big enough for a task.
 *
 * All utilisations are 1/1024 of what the biggest CPU can do at its highest frequency. A CPU's demand is the sum of
 * what its tasks use. The task that runs there may claim more than was measured of it: what it used when it last ran
 * (a host's task), or what its guest says is runnable inside (a vCPU). The claim takes the place of the task's own
 * measured part and is added to that of the others, as in reference 2 (util_guest), and unlike uclamp_min, which
 * is a lower bound for all of them together.
 *
 * Threat model: a claim of a guest is any number. It is cut at 1024, and the level that it can bring about is cut at
 * the vCPU thread's effective uclamp.max (its own and its cgroup's). It buys frequency, never CPU time.
 */
#ifndef ENTRAIN_PERF_H
#define ENTRAIN_PERF_H

#include "entrain.h"
#include "policy.h"
#include "guest_load.h"

/* Level wanted for a demand, 1/1024: a quarter above it, as schedutil (map_util_perf) and EAS (fits_capacity). */
#define ENTRAIN_PERF_HEADROOM 1280

/* A task must fit this well before it moves to a smaller CPU: between the two it stays where it is. */
#define ENTRAIN_PERF_HEADROOM_DOWN 1536

/*
 * Lowering: a level is held so long after it was last wanted, and halves in so long from then on. The hold spans two
 * timer ticks at 250 Hz, the longest time between two looks at a running vCPU, and the short gaps in which another
 * task has the CPU. The kernel's own signal falls more slowly (PELT halves in 32 ms), so energy is not lost by it.
 */
#define ENTRAIN_PERF_HOLD_NS   (8 * ENTRAIN_MSEC)
#define ENTRAIN_PERF_HALVES_MS 8

/* Changes that are worth asking the frequency driver for, 1/1024. */
#define ENTRAIN_PERF_STEP_UP   16
#define ENTRAIN_PERF_STEP_DOWN 32

/* A utilisation that is measured: a geometric mean of what was used, with PELT's half-life of 32 ms. */
struct entrain_util {
	entrain_u64 load; /* 0..GUEST_LOAD_ONE, at the time `at` */
	entrain_u64 at;	  /* ns; 0 = never */
	entrain_u64 ran;  /* used since then, ns */
};

/* Weight of the past after `elapsed` ns, in 1/65536; between two periods on a straight line. */
ENTRAIN_POLICY entrain_u64 entrain_util_keep(entrain_u64 elapsed)
{
	entrain_u64 periods = elapsed / GUEST_LOAD_PERIOD_NS;
	entrain_u64 part = elapsed % GUEST_LOAD_PERIOD_NS >> 10;
	entrain_u64 more = guest_load_decay(periods), less = guest_load_decay(periods + 1);

	return more - ((more - less) * part >> 10);
}

/*
 * Brings a utilisation up to `now`. `scale` is the CPU's capacity times its level, 0..1024: what an hour on it is
 * worth. Less than a period is left for later.
 */
ENTRAIN_POLICY void entrain_util_fold(struct entrain_util *u, entrain_u64 now, entrain_u32 scale)
{
	entrain_u64 elapsed = entrain_sub(now, u->at), keep, part = 0;

	if (!u->at) {
		u->at = now;
		u->ran = 0;
		return;
	}
	if (elapsed < GUEST_LOAD_PERIOD_NS)
		return;
	/* Two hours and more leave nothing, and would overflow. */
	if (!(elapsed >> 43))
		part = entrain_min(u->ran, elapsed) * GUEST_LOAD_ONE / elapsed;
	part = part * entrain_min(scale, ENTRAIN_CAPACITY_SCALE) / ENTRAIN_CAPACITY_SCALE;
	keep = entrain_util_keep(elapsed);
	u->load = (entrain_min(u->load, GUEST_LOAD_ONE) * keep + part * (65536 - keep)) >> 16;
	u->at = now;
	u->ran = 0;
}

/* A task came to a CPU with its load, and `removed` has left it meanwhile. */
ENTRAIN_POLICY void entrain_util_move(struct entrain_util *cpu, entrain_u64 came, entrain_u64 removed)
{
	cpu->load = entrain_min(entrain_sub(cpu->load, removed) + entrain_min(came, GUEST_LOAD_ONE), GUEST_LOAD_ONE);
}

/*
 * What a task is expected to use when it wakes up (as the kernel's util_est): `load` is its mean as it goes to sleep.
 * Follows upwards at once, downwards by a quarter a time. 0..1024.
 */
ENTRAIN_POLICY entrain_u32 entrain_util_est(entrain_u32 est, entrain_u64 load)
{
	entrain_u32 last = guest_util(load);

	est = (entrain_u32)entrain_min(est, ENTRAIN_CAPACITY_SCALE);
	return last >= est ? last : est - (est - last + 3) / 4;
}

/*
 * A guest's claim, 0..1024. `util` is what stands in its memory: any number. A guest with Entrain's scheduler counts
 * in units of the biggest CPU (`invariant`); a kernel's own PELT in a guest knows neither capacity nor frequency and
 * takes every CPU for a full one, so that it is scaled by what the CPU can do now (`scale`, 0..1024).
 */
ENTRAIN_POLICY entrain_u32 entrain_perf_claim(entrain_u64 util, entrain_u32 invariant, entrain_u32 scale)
{
	entrain_u64 claim = entrain_min(util, ENTRAIN_CAPACITY_SCALE);

	if (!invariant)
		claim = claim * entrain_min(scale, ENTRAIN_CAPACITY_SCALE) / ENTRAIN_CAPACITY_SCALE;
	return (entrain_u32)claim;
}

struct entrain_perf_in {
	entrain_u32 all;   /* measured on this CPU, of all its tasks */
	entrain_u32 task;  /* of that, of the one that runs */
	entrain_u32 claim; /* what the one that runs claims */
	entrain_u32 limit; /* its effective uclamp.max */
};

/* The level wanted, 0..1024. Above the task's limit only where the other tasks alone want it. */
ENTRAIN_POLICY entrain_u32 entrain_perf_wanted(const struct entrain_perf_in *in)
{
	entrain_u64 all = entrain_min(in->all, ENTRAIN_CAPACITY_SCALE);
	entrain_u64 task = entrain_min(in->task, all);
	entrain_u64 demand = entrain_max(task, entrain_min(in->claim, ENTRAIN_CAPACITY_SCALE));
	entrain_u64 others = (all - task) * ENTRAIN_PERF_HEADROOM / 1024;
	entrain_u64 sum = (all - task + demand) * ENTRAIN_PERF_HEADROOM / 1024;
	entrain_u64 limit = entrain_max(entrain_min(in->limit, ENTRAIN_CAPACITY_SCALE), others);

	return (entrain_u32)entrain_min(entrain_min(sum, limit), ENTRAIN_CAPACITY_SCALE);
}

/* The level of a CPU over time; all zero at the start. */
struct entrain_perf_level {
	entrain_u64 at;	  /* when `peak` was last wanted, ns */
	entrain_u32 peak; /* 0..1024 */
	entrain_u32 asked;
};

/*
 * What the CPU should run at now, 0..1024: never below `wanted`, above it for a while. 1 in `*ask`: the driver should
 * be told, and `asked` is the level from now on.
 */
ENTRAIN_POLICY entrain_u32 entrain_perf_step(struct entrain_perf_level *l, entrain_u32 wanted, entrain_u64 now,
					     entrain_u32 *ask)
{
	entrain_u64 since = entrain_sub(now, l->at), level = l->peak;

	wanted = (entrain_u32)entrain_min(wanted, ENTRAIN_CAPACITY_SCALE);
	if (since > ENTRAIN_PERF_HOLD_NS)
		level = level * entrain_util_keep((since - ENTRAIN_PERF_HOLD_NS) * (32 / ENTRAIN_PERF_HALVES_MS)) >> 16;
	if (wanted >= level) {
		level = wanted;
		l->peak = wanted;
		l->at = now;
	}
	*ask = level >= l->asked + ENTRAIN_PERF_STEP_UP || level + ENTRAIN_PERF_STEP_DOWN <= l->asked ||
	       (level != l->asked && (level == ENTRAIN_CAPACITY_SCALE || level == 0));
	if (*ask)
		l->asked = (entrain_u32)level;
	return (entrain_u32)level;
}

/* Whether a demand fits a CPU with headroom to spare. The biggest CPU is the best there is for what fits nowhere. */
ENTRAIN_POLICY int entrain_perf_fits(entrain_u32 util, entrain_u32 capacity)
{
	return (entrain_u64)util * ENTRAIN_PERF_HEADROOM < (entrain_u64)capacity * 1024;
}

/*
 * Whether a task that comes from a CPU of capacity `from` (0 = from nowhere) may be put on one of this capacity: to
 * move down it must fit with more to spare.
 */
ENTRAIN_POLICY int entrain_perf_suits(entrain_u32 util, entrain_u32 capacity, entrain_u32 from)
{
	entrain_u64 margin = capacity < from ? ENTRAIN_PERF_HEADROOM_DOWN : ENTRAIN_PERF_HEADROOM;

	return (entrain_u64)util * margin < entrain_min(capacity, ENTRAIN_CAPACITY_SCALE) * 1024;
}

/*
 * How good a CPU of this capacity is for a task that comes from one of capacity `from`: the smallest that suits it,
 * else the biggest. Higher is better.
 */
ENTRAIN_POLICY entrain_u32 entrain_perf_score(entrain_u32 util, entrain_u32 capacity, entrain_u32 from)
{
	int suits = entrain_perf_suits(util, capacity, from);

	capacity = (entrain_u32)entrain_min(capacity, ENTRAIN_CAPACITY_SCALE);
	return suits ? 2 * ENTRAIN_CAPACITY_SCALE - capacity + 1 : capacity;
}

#endif /* ENTRAIN_PERF_H */
