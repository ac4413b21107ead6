/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Performance: what each CPU is asked to run at, and on machines with big and small CPUs, which of them a task gets.
 * The decisions are perf.h. Nothing here costs anything where `use_perf` and `use_capacity` are off.
 *
 * A CPU's sum is kept as the kernel keeps it for its own scheduler, which does not run here (sched_ext leaves
 * p->se.avg and the CPU's cfs average as they were): the mean of the time that its tasks had it, in units of the
 * biggest CPU at its highest frequency. A task takes its part along to another CPU.
 */
#ifndef ENTRAIN_SCHED_PERF_H
#define ENTRAIN_SCHED_PERF_H

#include "sched_state.h"
#include "sched_guest.h"
#include "perf.h"

/* CPUs that a placement looks at. Machines with big and small CPUs have few; larger ones are searched in a ring. */
#define PERF_SCAN 32

/* A running task is moved for capacity at most this often: a move costs its caches. */
#define PERF_MOVE_NS (10 * ENTRAIN_MSEC)

/* Set by the loader. Something listens to the level asked for: a schedutil policy, or the lab's emulation of one. */
const volatile bool use_perf = false;
/* Set by the loader where CPUs differ in capacity; needs use_perf. */
const volatile bool use_capacity = false;
/* What the listener adds to a level by itself, 1/1024: schedutil adds a quarter. 1024 = nothing. */
const volatile __u32 perf_listener = ENTRAIN_PERF_HEADROOM;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SCHED_MAX_CPUS);
	__type(key, __u32);
	__type(value, struct sched_perf_cpu);
} sched_perf_cpus SEC(".maps");

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

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct uclamp_se {
	unsigned int value : 11;
	unsigned int bucket_id : 3;
	unsigned int active : 1;
	unsigned int user_defined : 1;
};

/* Only of kernels with CONFIG_UCLAMP_TASK. */
struct task_struct___uclamp {
	struct uclamp_se uclamp[2];
};

#pragma clang attribute pop

static __always_inline struct sched_perf_cpu *perf_cpu(__u32 cpu)
{
	return bpf_map_lookup_elem(&sched_perf_cpus, &cpu);
}

/* What the CPU can do now: its capacity at the present frequency, as far as the kernel knows that. */
static __always_inline __u32 perf_scale(__s32 cpu, struct sched_perf_cpu *c)
{
	__u32 level = ENTRAIN_CAPACITY_SCALE;

	if (bpf_ksym_exists(scx_bpf_cpuperf_cur))
		level = scx_bpf_cpuperf_cur(cpu);
	return c->capacity * entrain_min(level, ENTRAIN_CAPACITY_SCALE) / ENTRAIN_CAPACITY_SCALE;
}

/*
 * The task's effective uclamp.max, its cgroups' limits included. The kernel keeps it for tasks that are queued, once
 * anybody on the machine has used uclamp; before that nothing is limited. One that wakes has the limit that it had.
 */
static __always_inline __u32 perf_limit(struct task_struct *p, struct task_ctx *t)
{
	struct task_struct___uclamp *u = (void *)p;

	if (bpf_core_field_exists(u->uclamp) && BPF_CORE_READ_BITFIELD_PROBED(u, uclamp[1].active))
		t->perf.limit = 1 + BPF_CORE_READ_BITFIELD_PROBED(u, uclamp[1].value);
	return t->perf.limit ? t->perf.limit - 1 : ENTRAIN_CAPACITY_SCALE;
}

/*
 * What a task claims: a vCPU what stands in its guest's memory, any other task (and a vCPU of a silent guest) what it
 * used when it last ran. A guest's words expire with its agent's heartbeat; its kernel's own variable does not.
 */
static __always_inline __u32 perf_claim(struct task_struct *p, struct task_ctx *t, __u32 scale, __u64 now)
{
	struct entrain_pairing *pairing = t->pub.vcpu ? entrain_pairing_of(p) : NULL;
	struct entrain_page *page;
	struct entrain_box64 *own;

	if (!pairing)
		return t->perf.est;
	page = guest_words(t, pairing, now);
	if (page)
		return entrain_perf_claim(READ_ONCE(page->guest.util), 1, scale);
	own = pairing->util;
	if (own)
		return entrain_perf_claim(READ_ONCE(own->v), 0, scale);
	return t->perf.est;
}

/* What a task needs of a CPU, for its place. */
static __always_inline __u32 perf_demand(struct task_struct *p, struct task_ctx *t, __u32 scale, __u64 now)
{
	__u32 demand = entrain_max(guest_util(t->perf.util.load), perf_claim(p, t, scale, now));

	return t->pub.vcpu ? entrain_min(demand, perf_limit(p, t)) : demand;
}

/* Tells the listener. Only for the CPU whose run-queue lock is held, or without any. */
static __always_inline void perf_set(__s32 cpu, struct sched_perf_cpu *c, __u32 level)
{
	__u32 listener = perf_listener >= 1024 ? perf_listener : 1024;

	c->asks++;
	if (bpf_ksym_exists(scx_bpf_cpuperf_set))
		scx_bpf_cpuperf_set(cpu, entrain_min((level * 1024 + listener - 1) / listener, ENTRAIN_CAPACITY_SCALE));
}

/*
 * The level for the task that runs on a CPU now. Its run-queue lock is held. `again`: tells it even if nothing changed,
 * since schedutil drops a request that comes too soon after another one (rate_limit_us) and has no memory of it.
 */
static __always_inline void perf_ask(struct task_struct *p, struct task_ctx *t, __s32 cpu, struct sched_perf_cpu *c,
				     __u32 scale, __u64 now, bool again)
{
	struct entrain_perf_in in = {.limit = ENTRAIN_CAPACITY_SCALE};
	__u32 ask = 0;

	in.all = guest_util(c->own.load);
	in.task = guest_util(t->perf.util.load);
	in.claim = perf_claim(p, t, scale, now);
	if (t->pub.vcpu)
		in.limit = perf_limit(p, t);
	c->claim = in.claim;
	c->bound = is_bound(p);
	c->demand = entrain_min(entrain_max(in.task, in.claim), in.limit);
	c->wanted = entrain_perf_wanted(&in);
	entrain_perf_step(&c->level, c->wanted, now, &ask);
	if (ask || again)
		perf_set(cpu, c, c->level.asked);
}

/* Charges what a task had since it was last looked at. */
static __always_inline void perf_charge(struct task_ctx *t, struct sched_perf_cpu *c, __u32 scale, __u64 now)
{
	__u64 ran = t->perf.since ? entrain_sub(now, t->perf.since) : 0;

	t->perf.since = now;
	t->perf.util.ran += ran;
	c->own.ran += ran;
	entrain_util_fold(&t->perf.util, now, scale);
	entrain_util_fold(&c->own, now, scale);
}

/* From ops.running. */
static __always_inline void perf_running(struct task_struct *p, struct task_ctx *t, __s32 cpu, __u64 now)
{
	struct sched_perf_cpu *c, *old;
	__u64 came = 0, removed = 0;
	__u32 scale;

	if (!use_perf)
		return;
	c = perf_cpu(cpu);
	if (!c)
		return;
	scale = perf_scale(cpu, c);
	t->perf.since = 0;
	perf_charge(t, c, scale, now);
	if (READ_ONCE(c->removed))
		removed = __sync_lock_test_and_set(&c->removed, 0);
	if (t->perf.home != cpu + 1) {
		came = t->perf.util.load;
		old = t->perf.home ? perf_cpu(t->perf.home - 1) : NULL;
		if (old)
			__sync_fetch_and_add(&old->removed, came);
		t->perf.home = cpu + 1;
	}
	if (came || removed)
		entrain_util_move(&c->own, came, removed);
	WRITE_ONCE(c->busy, 1);
	perf_ask(p, t, cpu, c, scale, now, false);
}

static __always_inline struct entry_timer *perf_timer(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&sched_perf_timer, &zero);
}

/* The CPU may be idle from now on, and what it asked for is to fall. */
static __always_inline void perf_settle_soon(struct sched_perf_cpu *c)
{
	struct entry_timer *r;

	if (!c->level.asked || READ_ONCE(perf_settling) || __sync_lock_test_and_set(&perf_settling, 1))
		return;
	r = perf_timer();
	if (r)
		bpf_timer_start(&r->timer, PERF_SETTLE_NS, 0);
}

/* From ops.stopping. */
static __always_inline void perf_stopping(struct task_ctx *t, __s32 cpu, bool runnable, __u64 now)
{
	struct sched_perf_cpu *c;

	if (!use_perf)
		return;
	c = perf_cpu(cpu);
	if (!c)
		return;
	perf_charge(t, c, perf_scale(cpu, c), now);
	t->perf.since = 0;
	WRITE_ONCE(c->busy, 0);
	if (!runnable) {
		t->perf.est = entrain_util_est(t->perf.est, t->perf.util.load);
		perf_settle_soon(c);
	}
}

/*
 * The CPU that suits a task best: among the idle ones, or (`displace`) among those that run something which fits where
 * the task comes from. Only a hint: the state may change at once. -1 = none, or none better than where it is.
 */
static __noinline __s32 perf_best(struct task_struct *p, __u32 demand, __u32 prev, __u32 capacity, bool displace)
{
	__u32 best = displace ? entrain_perf_score(demand, capacity, capacity) : 0;
	__s32 found = -1;
	__u32 i;

	bpf_for (i, 0, PERF_SCAN) {
		__u32 cpu = prev + i, score;
		struct sched_perf_cpu *c;

		if (i >= nr_cpus)
			break;
		if (cpu >= nr_cpus)
			cpu -= nr_cpus;
		c = perf_cpu(cpu);
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

/*
 * From ops.select_cpu: the idle CPU that suits the task, or, where it fits none of those, a bigger one from which
 * something small is sent away. Returns the CPU if the task was put there, -1 to go on as on other machines.
 */
static __always_inline __s32 perf_select(struct task_struct *p, __s32 prev, __u64 slice)
{
	struct task_ctx *t = task_ctx(p);
	struct sched_perf_cpu *c = perf_cpu(prev);
	__u64 now = scx_bpf_now(), flags = 0;
	__u32 demand;
	__s32 cpu, bigger;

	if (!t || !c || is_bound(p))
		return -1;
	demand = perf_demand(p, t, perf_scale(prev, c), now);
	cpu = perf_best(p, demand, prev, c->capacity, false);
	c = cpu >= 0 ? perf_cpu(cpu) : c;
	if (c && !entrain_perf_fits(demand, c->capacity)) {
		bigger = perf_best(p, demand, prev, c->capacity, true);
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
static __always_inline void perf_outgrown(struct task_struct *p, struct task_ctx *t, __s32 cpu,
					  struct sched_perf_cpu *c, __u64 now)
{
	struct sched_perf_cpu *other;
	__s32 target;

	if (entrain_perf_fits(c->demand, c->capacity) || entrain_sub(now, t->perf.moved) < PERF_MOVE_NS || is_bound(p))
		return;
	target = perf_best(p, c->demand, cpu, c->capacity, false);
	other = target >= 0 ? perf_cpu(target) : NULL;
	if (!other || other->capacity <= c->capacity)
		target = perf_best(p, c->demand, cpu, c->capacity, true);
	if (target < 0)
		return;
	t->perf.target = target + 1;
	scx_bpf_task_set_slice(p, 0);
}

/*
 * From ops.dispatch, of a CPU that has nothing to run: what has outgrown a smaller CPU is taken off there, and finds
 * this one idle. So one that a passing task pushed off the bigger CPU is back when that has passed, not a tick later.
 */
static __always_inline void perf_pull(__s32 cpu)
{
	struct sched_perf_cpu *c = use_capacity ? perf_cpu(cpu) : NULL;
	__u32 i;

	if (!c)
		return;
	bpf_for (i, 0, PERF_SCAN) {
		__u32 from = cpu + 1 + i;
		struct sched_perf_cpu *small;

		if (i + 1 >= nr_cpus)
			return;
		if (from >= nr_cpus)
			from -= nr_cpus;
		small = perf_cpu(from);
		if (small && small->busy && !small->bound && small->capacity < c->capacity &&
		    !entrain_perf_fits(small->demand, small->capacity)) {
			scx_bpf_kick_cpu(from, SCX_KICK_PREEMPT);
			return;
		}
	}
}

/* From ops.tick. */
static __always_inline void perf_tick(struct task_struct *p)
{
	struct sched_perf_cpu *c;
	struct task_ctx *t;
	__u32 scale;
	__u64 now;
	__s32 cpu;

	if (!use_perf)
		return;
	cpu = scx_bpf_task_cpu(p);
	c = perf_cpu(cpu);
	t = task_ctx(p);
	if (!c || !t)
		return;
	now = scx_bpf_now();
	scale = perf_scale(cpu, c);
	perf_charge(t, c, scale, now);
	perf_ask(p, t, cpu, c, scale, now, true);
	if (use_capacity)
		perf_outgrown(p, t, cpu, c, now);
}

/* From ops.dispatch: whether the task that ran is on its way to another CPU. */
static __always_inline bool perf_leaves(struct task_ctx *t)
{
	return use_capacity && t->perf.target;
}

/* From ops.enqueue: a task that leaves for a bigger CPU, or was sent away from one. Returns whether it has a place. */
static __always_inline bool perf_enqueue(struct task_struct *p, struct task_ctx *t, __s32 cpu, __u64 slice,
					 __u64 enq_flags)
{
	struct sched_perf_cpu *c;
	__u32 target;
	__u64 now;
	__s32 idle;

	if (!use_capacity)
		return false;
	now = scx_bpf_now();
	target = t->perf.target;
	t->perf.target = 0;
	c = perf_cpu(cpu);
	if (!c || is_bound(p))
		target = 0;
	if (target && bpf_cpumask_test_cpu(target - 1, p->cpus_ptr)) {
		t->perf.moved = now;
		/* What runs there has been found to fit elsewhere. */
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL_ON | (target - 1), slice, enq_flags | SCX_ENQ(PREEMPT));
		return true;
	}
	if (c && !(enq_flags & SCX_ENQ(WAKEUP)) && !is_bound(p)) {
		idle = perf_best(p, perf_demand(p, t, perf_scale(cpu, c), now), cpu, c->capacity, false);
		if (idle >= 0 && idle != cpu && scx_bpf_test_and_clear_cpu_idle(idle)) {
			scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL_ON | idle, slice, enq_flags);
			return true;
		}
	}
	/* The only one here, and nowhere to go: it goes on. */
	if (enq_flags & SCX_ENQ(LAST)) {
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, slice, enq_flags);
		return true;
	}
	return false;
}

static __always_inline void perf_idle(__u32 cpu, __u64 now)
{
	struct entrain_perf_in in = {.limit = ENTRAIN_CAPACITY_SCALE};
	struct sched_perf_cpu *c = perf_cpu(cpu);
	struct entrain_util own;
	__u32 level, asked, ask = 0;

	if (!c || READ_ONCE(c->busy) || !c->level.asked)
		return;
	/* A copy: the CPU may begin to run something at any moment. */
	own = c->own;
	entrain_util_fold(&own, now, perf_scale(cpu, c));
	entrain_util_move(&own, 0, READ_ONCE(c->removed));
	in.all = guest_util(own.load);
	c->wanted = entrain_perf_wanted(&in);
	c->claim = c->demand = 0;
	level = entrain_perf_step(&c->level, c->wanted, now, &ask);
	if (!ask)
		return;
	perf_set(cpu, c, level);
	/* It woke up meanwhile and asked for more: that must be what stands. */
	asked = READ_ONCE(c->level.asked);
	if (asked > level)
		perf_set(cpu, c, asked);
}

/*
 * Lowers CPUs that idle, until all are asked for nothing. Nothing else would: they have no tick, and the others of
 * their frequency domain would go on at the level that a sleeper asked for. A timer and not the daemon: to wake that
 * every few milliseconds takes a CPU from a vCPU as often.
 */
static int perf_settle(void *map, __u32 *key, struct entry_timer *r)
{
	__u64 now = scx_bpf_now();
	bool left = false;
	__u32 i;

	/* Before the search: whoever goes idle during it starts the timer again. */
	WRITE_ONCE(perf_settling, 0);
	bpf_for (i, 0, SCHED_MAX_CPUS) {
		struct sched_perf_cpu *c = perf_cpu(i);

		if (i >= nr_cpus || !c)
			break;
		perf_idle(i, now);
		left |= !READ_ONCE(c->busy) && c->level.asked;
	}
	if (left && !__sync_lock_test_and_set(&perf_settling, 1))
		bpf_timer_start(&r->timer, PERF_SETTLE_NS, 0);
	return 0;
}

static __always_inline int perf_init(void)
{
	struct entry_timer *r = perf_timer();

	if (!r)
		return -ENOMEM;
	bpf_timer_init(&r->timer, &sched_perf_timer, CLOCK_MONOTONIC);
	return bpf_timer_set_callback(&r->timer, perf_settle);
}

#endif /* ENTRAIN_SCHED_PERF_H */
