/* SPDX-License-Identifier: GPL-2.0-only */
/* Balance between groups of CPUs, exported under names of their own for crates/policy/src/balance.rs. */
#include "balance.h"

uint64_t entrain_n_load_avg(uint64_t avg, uint64_t load, uint64_t elapsed)
{
	return entrain_load_avg(avg, load, elapsed);
}

uint64_t entrain_n_surplus(const struct entrain_group *g, uint64_t mean)
{
	return entrain_surplus(g, mean);
}

uint64_t entrain_n_deficit(const struct entrain_group *g, uint64_t mean)
{
	return entrain_deficit(g, mean);
}

int entrain_n_imbalanced(const struct entrain_group *giver, const struct entrain_group *taker)
{
	return entrain_imbalanced(giver, taker);
}

int entrain_n_worth_moving(uint64_t share, int64_t owed)
{
	return entrain_worth_moving(share, owed);
}
