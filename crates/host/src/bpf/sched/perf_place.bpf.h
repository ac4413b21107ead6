/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Machines with big and small CPUs: which of them a task gets, and when it moves to another. Nothing here costs
 * anything where `use_capacity` is off.
 */
#ifndef ENTRAIN_SCHED_PERF_PLACE_BPF_H
#define ENTRAIN_SCHED_PERF_PLACE_BPF_H

#include "perf_energy.bpf.h"

/* A running task is moved for capacity at most this often: a move costs its caches. */
#define PERF_MOVE_NS (10 * ENTRAIN_MSEC)

/*
 * The CPU that suits a task best: among the idle ones, or (`displace`) among those that run something which fits where
 * the task comes from. Only a hint: the state may change at once. -1 = none, or none better than where it is.
 */
static __noinline __s32 perf__best(struct task_struct *p, __u32 demand, __u32 prev, __u32 capacity, bool displace)
{
	__u32 best = displace ? entrain_perf_score(demand, capacity, capacity) : 0;
	__s32 found = -1;
	__u32 i;

	bpf_for (i, 0, PERF_SCAN) {
		__s32 cpu = cpu__in_ring(prev, i);
		struct sched_perf_cpu *c;
		__u32 score;

		if (cpu < 0)
			break;
		c = perf__cpu(cpu);
		if (!c || !c->capacity || !bpf_cpumask_test_cpu(cpu, p->cpus_ptr))
			continue;
		if (displace ? !c->busy || !entrain_perf_fits(c->demand, capacity) : c->busy)
			continue;
		score = entrain_perf_score(demand, c->capacity, capacity);
		if (score > best) {
			best = score;
			found = cpu;
		}
	}
	return found;
}

/* The idle CPU for a task: the one that costs least, as far as that is known, else the one that suits it best. */
static __always_inline __s32 perf__idle_cpu(struct task_struct *p, __u32 demand, __u32 prev, __u32 capacity)
{
	__s32 cpu = use_energy ? energy__cheapest(p, demand, prev, capacity) : -1;

	return cpu >= 0 ? cpu : perf__best(p, demand, prev, capacity, false);
}

/*
 * From ops.select_cpu: the idle CPU that suits the task, or, where it fits none of those, a bigger one from which
 * something small is sent away. Returns the CPU if the task was put there, -1 to go on as on other machines.
 */
static __always_inline __s32 perf__select(struct task_struct *p, __s32 prev, __u64 slice, __u64 now)
{
	struct task_ctx *t = task__ctx(p);
	struct sched_perf_cpu *c = perf__cpu(prev);
	__u64 flags = 0;
	__u32 demand;
	__s32 cpu, bigger;

	if (!t || !c || task__is_bound(p))
		return -1;
	demand = perf__demand(p, t, perf__scale(prev, c), now);
	cpu = perf__idle_cpu(p, demand, prev, c->capacity);
	c = cpu >= 0 ? perf__cpu(cpu) : c;
	if (c && !entrain_perf_fits(demand, c->capacity)) {
		bigger = perf__best(p, demand, prev, c->capacity, true);
		if (bigger >= 0) {
			cpu = bigger;
			flags = SCX_ENQ(PREEMPT);
		}
	}
	if (cpu < 0 || (!flags && !scx_bpf_test_and_clear_cpu_idle(cpu)))
		return -1;
	/* One that stays has paid for no move: it may follow its growth at the next tick. */
	if (cpu != prev)
		t->perf.moved = now;
	scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, slice, flags);
	return cpu;
}

/* From ops.tick: a task that has outgrown its CPU leaves it, if a bigger one is idle or runs something small. */
static __always_inline void perf__outgrown(struct task_struct *p, struct task_ctx *t, __s32 cpu,
					   struct sched_perf_cpu *c, __u64 now)
{
	struct sched_perf_cpu *other;
	__s32 target;

	if (entrain_perf_fits(c->demand, c->capacity) || entrain_sub(now, t->perf.moved) < PERF_MOVE_NS ||
	    task__is_bound(p))
		return;
	target = perf__idle_cpu(p, c->demand, cpu, c->capacity);
	other = target >= 0 ? perf__cpu(target) : NULL;
	if (!other || other->capacity <= c->capacity)
		target = perf__best(p, c->demand, cpu, c->capacity, true);
	if (target < 0)
		return;
	t->perf.target = cpu_or_none__of(target);
	scx_bpf_task_set_slice(p, 0);
}

/*
 * From ops.dispatch, of a CPU that has nothing to run: what has outgrown a smaller CPU is taken off there, and finds
 * this one idle. So one that a passing task pushed off the bigger CPU is back when that has passed, not a tick later.
 */
static __always_inline void perf__pull(__s32 cpu)
{
	struct sched_perf_cpu *c = use_capacity ? perf__cpu(cpu) : NULL;
	__u32 i;

	if (!c)
		return;
	bpf_for (i, 1, PERF_SCAN) {
		__s32 from = cpu__in_ring(cpu, i);
		struct sched_perf_cpu *small;

		if (from < 0)
			return;
		small = perf__cpu(from);
		if (small && small->busy && !small->bound && small->capacity < c->capacity &&
		    !entrain_perf_fits(small->demand, small->capacity)) {
			scx_bpf_kick_cpu(from, SCX_KICK_PREEMPT);
			return;
		}
	}
}

/* From ops.tick. */
static __always_inline void perf__tick(struct task_struct *p)
{
	struct sched_perf_cpu *c;
	struct task_ctx *t;
	__u32 scale;
	__u64 now;
	__s32 cpu;

	if (!use_perf)
		return;
	cpu = scx_bpf_task_cpu(p);
	c = perf__cpu(cpu);
	t = task__ctx(p);
	if (!c || !t)
		return;
	now = scx_bpf_now();
	scale = perf__scale(cpu, c);
	perf__charge(t, c, scale, now);
	perf__ask(p, t, cpu, c, scale, now, true);
	if (use_capacity)
		perf__outgrown(p, t, cpu, c, now);
}

/* From ops.dispatch: whether the task that ran is on its way to another CPU. */
static __always_inline bool perf__leaves(struct task_ctx *t)
{
	return use_capacity && !cpu_or_none__is_none(t->perf.target);
}

/* From ops.enqueue: a task that leaves for a bigger CPU, or was sent away from one. Returns whether it has a place. */
static __always_inline bool perf__enqueue(struct task_struct *p, struct task_ctx *t, __s32 cpu, __u64 slice,
					  __u64 enq_flags, __u64 now)
{
	struct sched_perf_cpu *c;
	__u32 target;
	__s32 idle;

	if (!use_capacity)
		return false;
	target = t->perf.target;
	t->perf.target = 0;
	c = perf__cpu(cpu);
	if (!c || task__is_bound(p))
		target = 0;
	if (!cpu_or_none__is_none(target) && bpf_cpumask_test_cpu(cpu_or_none__cpu(target), p->cpus_ptr)) {
		t->perf.moved = now;
		/* What runs there has been found to fit elsewhere. */
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL_ON | cpu_or_none__cpu(target), slice, enq_flags | SCX_ENQ(PREEMPT));
		return true;
	}
	if (c && !(enq_flags & SCX_ENQ(WAKEUP)) && !task__is_bound(p)) {
		idle = perf__idle_cpu(p, perf__demand(p, t, perf__scale(cpu, c), now), cpu, c->capacity);
		if (idle >= 0 && idle != cpu && scx_bpf_test_and_clear_cpu_idle(idle)) {
			scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL_ON | idle, slice, enq_flags);
			return true;
		}
	}
	return false;
}

#endif /* ENTRAIN_SCHED_PERF_PLACE_BPF_H */
