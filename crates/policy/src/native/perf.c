/* SPDX-License-Identifier: GPL-2.0-only */
/* Performance levels, exported under names of their own for crates/policy/src/perf.rs. */
#include "perf.h"

void perf_n_util_fold(struct entrain_util *util, uint64_t now, uint32_t scale)
{
	entrain_util_fold(util, now, scale);
}

void perf_n_util_move(struct entrain_util *cpu, uint64_t came, uint64_t removed)
{
	entrain_util_move(cpu, came, removed);
}

uint32_t perf_n_util_est(uint32_t est, uint64_t load)
{
	return entrain_util_est(est, load);
}

uint32_t perf_n_claim(uint64_t util, uint32_t invariant, uint32_t scale)
{
	return entrain_perf_claim(util, invariant, scale);
}

uint32_t perf_n_wanted(const struct entrain_perf_in *in)
{
	return entrain_perf_wanted(in);
}

uint32_t perf_n_step(struct entrain_perf_level *level, uint32_t wanted, uint64_t now, uint32_t *ask)
{
	return entrain_perf_step(level, wanted, now, ask);
}

int perf_n_fits(uint32_t util, uint32_t capacity)
{
	return entrain_perf_fits(util, capacity);
}

uint32_t perf_n_score(uint32_t util, uint32_t capacity, uint32_t from)
{
	return entrain_perf_score(util, capacity, from);
}
