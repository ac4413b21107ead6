/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * On which CPU a task's work costs least, where the host has an energy model. The smallest CPU that a task fits is not
 * always that one: near its highest frequency a small CPU takes more energy for a piece of work than a bigger one near
 * its lowest. The formula is that of the kernel's own scheduler (find_energy_efficient_cpu(), "EAS"): what the CPUs of
 * one frequency domain cost with the task, less what they cost without it. CPUs of a domain run at one operating point,
 * so a task that raises it makes the work of the others dearer, too.
 *
 * The model has no idle states and no leakage, as the kernel's has none.
 */
#ifndef ENTRAIN_ENERGY_H
#define ENTRAIN_ENERGY_H

#include "policy.h"
#include "perf.h"

/* Operating points of a domain. Whoever fills the model in leaves some out where there are more. */
#define ENTRAIN_ENERGY_POINTS 32

/* The greatest cost, so that no sum overflows: costs are relative to each other. */
#define ENTRAIN_ENERGY_COST_MAX (1U << 20)

/*
 * A task leaves the CPU that it was on last for one that costs less by more than one in so many, as in EAS: a move
 * costs caches, which no model knows.
 */
#define ENTRAIN_ENERGY_STAY 16

struct entrain_energy_point {
	entrain_u32 performance; /* 0..1024 of the biggest CPU at its highest frequency */
	entrain_u32 cost;	 /* of a unit of work, 0..ENTRAIN_ENERGY_COST_MAX */
};

/* One frequency domain; its points from slow to fast. */
struct entrain_energy_model {
	entrain_u32 nr;
	entrain_u32 pad;
	struct entrain_energy_point at[ENTRAIN_ENERGY_POINTS];
};

/* What is asked of a domain. */
struct entrain_energy_in {
	entrain_u64 others; /* demands of the tasks that run there, summed up */
	entrain_u32 level;  /* the highest level that one of them wants, 0..1024 */
	entrain_u32 demand; /* of the task that is to come, 0..1024 */
};

/* What a unit of work costs at the lowest operating point that gives so much performance; at the highest if none does.
 */
ENTRAIN_POLICY entrain_u64 entrain_energy_cost(const struct entrain_energy_model *m, entrain_u32 level)
{
	entrain_u32 cost = 0, i;

	for (i = 0; i < ENTRAIN_ENERGY_POINTS && i < m->nr; i++) {
		cost = m->at[i].cost;
		if (m->at[i].performance >= level)
			break;
	}
	return entrain_min(cost, ENTRAIN_ENERGY_COST_MAX);
}

/* What a domain costs more with the task than without it, for the same time. */
ENTRAIN_POLICY entrain_u64 entrain_energy_more(const struct entrain_energy_model *m, const struct entrain_energy_in *in)
{
	entrain_u64 demand = entrain_min(in->demand, ENTRAIN_CAPACITY_SCALE);
	entrain_u64 others = entrain_min(in->others, 1U << 20);
	entrain_u32 own = (entrain_u32)(demand * ENTRAIN_PERF_HEADROOM / 1024);
	entrain_u64 without = others * entrain_energy_cost(m, in->level);
	entrain_u64 with = (others + demand) * entrain_energy_cost(m, own > in->level ? own : in->level);

	return entrain_sub(with, without);
}

#endif /* ENTRAIN_ENERGY_H */
