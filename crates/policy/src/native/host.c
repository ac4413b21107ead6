/* SPDX-License-Identifier: GPL-2.0-only */
/* The host's decisions, exported under names of their own for crates/policy/src/host.rs. */
#include "fair.h"
#include "slice.h"
#include "tick.h"
#include "extend.h"
#include "yield.h"
#include "place.h"
#include "cost.h"

uint64_t entrain_n_move_vtime(uint64_t vtime, uint64_t from, uint64_t to, uint64_t keep)
{
	return entrain_move_vtime(vtime, from, to, keep);
}

uint64_t entrain_n_bounded_vtime(uint64_t vtime, uint64_t furthest, uint64_t behind)
{
	return entrain_bounded_vtime(vtime, furthest, behind);
}

uint64_t entrain_n_wake_vtime(uint64_t vtime, uint64_t queue, uint64_t credit, uint64_t debt)
{
	return entrain_wake_vtime(vtime, queue, credit, debt);
}

uint64_t entrain_n_time_of(uint64_t vtime, uint64_t share)
{
	return entrain_time_of(vtime, share);
}

uint64_t entrain_n_preempt_after(const struct entrain_preempt_in *in, const struct entrain_preempt_limits *l,
				 uint64_t share)
{
	return entrain_preempt_after(in, l, share);
}

uint64_t entrain_n_lead(uint64_t debt, uint64_t wait, uint64_t share, uint64_t load)
{
	return entrain_lead(debt, wait, share, load);
}

uint64_t entrain_n_led_vtime(uint64_t vtime, uint64_t queue, uint64_t lead)
{
	return entrain_led_vtime(vtime, queue, lead);
}

uint64_t entrain_n_latency_credit(uint64_t target, uint64_t period)
{
	return entrain_latency_credit(target, period);
}

uint64_t entrain_n_share(uint64_t group, uint64_t part, uint64_t active)
{
	return entrain_share(group, part, active);
}

uint64_t entrain_n_charge_share(uint64_t ran, uint64_t share)
{
	return entrain_charge_share(ran, share);
}

uint64_t entrain_n_slice(const struct entrain_slice_in *in)
{
	return entrain_slice(in);
}

int entrain_n_extend(struct entrain_extend_state *s, const struct entrain_extend_limits *l, uint32_t level,
		     uint64_t now, uint64_t *step)
{
	return entrain_extend(s, l, level, now, step);
}

uint64_t entrain_n_extend_event(uint64_t event, uint64_t peace, uint64_t used, uint64_t due)
{
	return entrain_extend_event(event, peace, used, due);
}

void entrain_n_extend_return(struct entrain_extend_state *s, const struct entrain_extend_limits *l, uint64_t unused)
{
	entrain_extend_return(s, l, unused);
}

uint64_t entrain_n_extend_repay(struct entrain_extend_state *s, uint64_t slice, uint64_t floor)
{
	return entrain_extend_repay(s, slice, floor);
}

int entrain_n_yield(const struct entrain_yield_in *in, const struct entrain_yield_limits *l)
{
	return entrain_yield(in, l);
}

int entrain_n_lend(uint32_t level, uint32_t others_wait)
{
	return entrain_lend(level, others_wait);
}

uint64_t entrain_n_queue_vtime(uint64_t queue, uint64_t running, int waits, uint64_t first)
{
	return entrain_queue_vtime(queue, running, waits, first);
}

int entrain_n_urgent(uint64_t word)
{
	return entrain_urgent(word);
}

uint64_t entrain_n_granularity(uint64_t granularity, int urgent)
{
	return entrain_granularity(granularity, urgent);
}

int entrain_n_preempt(const struct entrain_preempt_in *in, const struct entrain_preempt_limits *l)
{
	return entrain_preempt(in, l);
}

uint64_t entrain_n_cost(uint64_t mean, uint64_t sample)
{
	return entrain_cost(mean, sample);
}

uint64_t entrain_n_least(uint64_t least, uint64_t sample)
{
	return entrain_least(least, sample);
}

uint64_t entrain_n_costs(uint64_t mean, uint64_t times, uint64_t most)
{
	return entrain_costs(mean, times, most);
}

int entrain_n_tick_alone(struct entrain_tick *t, uint64_t at)
{
	return entrain_tick_alone(t, at);
}
