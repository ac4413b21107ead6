/* SPDX-License-Identifier: GPL-2.0-only */
/* Limits of CPU time, exported under names of their own for crates/policy/src/bandwidth.rs. */
#include "bandwidth.h"

void entrain_n_bw_set(struct entrain_bw *bw, uint64_t quota, uint64_t period, uint64_t burst, uint64_t now)
{
	entrain_bw_set(bw, quota, period, burst, now);
}

void entrain_n_bw_refill(struct entrain_bw *bw, uint64_t now)
{
	entrain_bw_refill(bw, now);
}

uint64_t entrain_n_bw_due(const struct entrain_bw *bw, uint64_t now)
{
	return entrain_bw_due(bw, now);
}

uint64_t entrain_n_bw_take(struct entrain_bw *bw, uint64_t want)
{
	return entrain_bw_take(bw, want);
}

void entrain_n_bw_give(struct entrain_bw *bw, int64_t left)
{
	entrain_bw_give(bw, left);
}

uint64_t entrain_n_bw_keep(uint64_t quota, uint32_t cpus)
{
	return entrain_bw_keep(quota, cpus);
}

uint64_t entrain_n_bw_turn(uint64_t mean, uint64_t ran)
{
	return entrain_bw_turn(mean, ran);
}

uint64_t entrain_n_bw_admits(int64_t pool, uint64_t turn)
{
	return entrain_bw_admits(pool, turn);
}

uint64_t entrain_n_bw_place(uint64_t now, int64_t ahead)
{
	return entrain_bw_place(now, ahead);
}
