/* SPDX-License-Identifier: GPL-2.0-only */
/* Performance of CPUs that have nothing to run: what they asked for falls. */
#ifndef ENTRAIN_SCHED_PERF_IDLE_BPF_H
#define ENTRAIN_SCHED_PERF_IDLE_BPF_H

#include "perf_level.bpf.h"

/* Idle CPUs are looked at so often: half of what a level is held for. */
#define PERF_SETTLE_NS (ENTRAIN_PERF_HOLD_NS / 2)

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct entry_timer);
} sched_perf_timer SEC(".maps");

/* 1: the timer is running. */
__u32 perf_settling;

static __always_inline struct entry_timer *perf__timer(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&sched_perf_timer, &zero);
}

/* The CPU may be idle from now on, and what it asked for is to fall. */
static __always_inline void perf__settle_soon(struct sched_perf_cpu *c)
{
	struct entry_timer *r;

	if (!c->level.asked || READ_ONCE(perf_settling) || __sync_lock_test_and_set(&perf_settling, 1))
		return;
	r = perf__timer();
	if (r)
		bpf_timer_start(&r->timer, PERF_SETTLE_NS, 0);
}

/* From ops.stopping. */
static __always_inline void perf__stopping(struct task_ctx *t, __s32 cpu, bool runnable, __u64 now)
{
	struct sched_perf_cpu *c;

	if (!use_perf)
		return;
	c = perf__cpu(cpu);
	if (!c)
		return;
	perf__charge(t, c, perf__scale(cpu, c), now);
	t->perf.since = 0;
	WRITE_ONCE(c->busy, 0);
	if (!runnable) {
		t->perf.est = entrain_util_est(t->perf.est, t->perf.util.load);
		perf__settle_soon(c);
	}
}

static __always_inline void perf__idle(__u32 cpu, __u64 now)
{
	struct entrain_perf_in in = {.limit = ENTRAIN_CAPACITY_SCALE};
	struct sched_perf_cpu *c = perf__cpu(cpu);
	struct entrain_util own;
	__u32 level, asked, ask = 0;

	if (!c || READ_ONCE(c->busy) || !c->level.asked)
		return;
	/* A copy: the CPU may begin to run something at any moment. */
	own = c->own;
	entrain_util_fold(&own, now, perf__scale(cpu, c));
	entrain_util_move(&own, 0, READ_ONCE(c->removed));
	in.all = guest_util(own.load);
	c->wanted = entrain_perf_wanted(&in);
	c->claim = c->demand = 0;
	level = entrain_perf_step(&c->level, c->wanted, now, &ask);
	if (!ask)
		return;
	perf__set(cpu, c, level);
	/* It woke up meanwhile and asked for more: that must be what stands. */
	asked = READ_ONCE(c->level.asked);
	if (asked > level)
		perf__set(cpu, c, asked);
}

/*
 * Lowers CPUs that idle, until all are asked for nothing. Nothing else would: they have no tick, and the others of
 * their frequency domain would go on at the level that a sleeper asked for. A timer and not the daemon: to wake that
 * every few milliseconds takes a CPU from a vCPU as often.
 */
static int perf__settle(void *map, __u32 *key, struct entry_timer *r)
{
	__u64 now = sched__now();
	bool left = false;
	__u32 i;

	/* Before the search: whoever goes idle during it starts the timer again. */
	WRITE_ONCE(perf_settling, 0);
	bpf_for (i, 0, SCHED_MAX_CPUS) {
		struct sched_perf_cpu *c = perf__cpu(i);

		if (i >= nr_cpus || !c)
			break;
		perf__idle(i, now);
		left |= !READ_ONCE(c->busy) && c->level.asked;
	}
	if (left && !__sync_lock_test_and_set(&perf_settling, 1))
		bpf_timer_start(&r->timer, PERF_SETTLE_NS, 0);
	return 0;
}

static __always_inline int perf__init(void)
{
	struct entry_timer *r = perf__timer();

	if (!r)
		return -ENOMEM;
	bpf_timer_init(&r->timer, &sched_perf_timer, CLOCK_MONOTONIC);
	return bpf_timer_set_callback(&r->timer, perf__settle);
}

#endif /* ENTRAIN_SCHED_PERF_IDLE_BPF_H */
