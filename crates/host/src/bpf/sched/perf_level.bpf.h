/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Performance: what each CPU is asked to run at. The decisions are perf.h. Nothing here costs anything where `use_perf`
 * is off.
 *
 * A CPU's sum is kept as the kernel keeps it for its own scheduler, which does not run here (sched_ext leaves
 * p->se.avg and the CPU's cfs average as they were): the mean of the time that its tasks had it, in units of the
 * biggest CPU at its highest frequency. A task takes its part along to another CPU.
 */
#ifndef ENTRAIN_SCHED_PERF_LEVEL_BPF_H
#define ENTRAIN_SCHED_PERF_LEVEL_BPF_H

#include "state.bpf.h"
#include "guest.bpf.h"
#include "perf.h"

/* Set by the loader. Something listens to the level asked for: a schedutil policy, or the lab's emulation of one. */
const volatile bool use_perf = false;
/* Set by the loader where CPUs differ in capacity; needs use_perf. */
const volatile bool use_capacity = false;
/* What the listener adds to a level by itself, 1/1024: schedutil adds a quarter. 1024 = nothing. */
const volatile __u32 perf_listener = ENTRAIN_PERF_HEADROOM;

/* CPUs that a placement looks at. Machines with big and small CPUs have few; larger ones are searched in a ring. */
#define PERF_SCAN 32

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SCHED_MAX_CPUS);
	__type(key, __u32);
	__type(value, struct sched_perf_cpu);
} sched_perf_cpus SEC(".maps");

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

static __always_inline struct sched_perf_cpu *perf__cpu(__u32 cpu)
{
	return bpf_map_lookup_elem(&sched_perf_cpus, &cpu);
}

/* The CPU that comes `i` after `first` in the ring of all; -1 = the ring is through. */
static __always_inline __s32 cpu__in_ring(__u32 first, __u32 i)
{
	__u32 cpu = first + i;

	if (i >= nr_cpus)
		return -1;
	return cpu >= nr_cpus ? cpu - nr_cpus : cpu;
}

/* What the CPU can do now: its capacity at the present frequency, as far as the kernel knows that. */
static __always_inline __u32 perf__scale(__s32 cpu, struct sched_perf_cpu *c)
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
static __always_inline __u32 perf__limit(struct task_struct *p, struct task_ctx *t)
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
static __always_inline __u32 perf__claim(struct task_struct *p, struct task_ctx *t, __u32 scale, __u64 now)
{
	struct entrain_pairing *pairing = t->pub.vcpu ? pairing__of(p) : NULL;
	struct entrain_page *page;
	struct entrain_box64 *own;

	if (!pairing)
		return t->perf.est;
	page = task__guest_words(t, pairing, now);
	if (page)
		return entrain_perf_claim(READ_ONCE(page->guest.util), 1, scale);
	own = pairing->util;
	if (own)
		return entrain_perf_claim(READ_ONCE(own->v), 0, scale);
	return t->perf.est;
}

/* What a task needs of a CPU, for its place. */
static __always_inline __u32 perf__demand(struct task_struct *p, struct task_ctx *t, __u32 scale, __u64 now)
{
	__u32 demand = entrain_max(guest_util(t->perf.util.load), perf__claim(p, t, scale, now));

	return t->pub.vcpu ? entrain_min(demand, perf__limit(p, t)) : demand;
}

/* Tells the listener. Only for the CPU whose run-queue lock is held, or without any. */
static __always_inline void perf__set(__s32 cpu, struct sched_perf_cpu *c, __u32 level)
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
static __always_inline void perf__ask(struct task_struct *p, struct task_ctx *t, __s32 cpu, struct sched_perf_cpu *c,
				      __u32 scale, __u64 now, bool again)
{
	struct entrain_perf_in in = {.limit = ENTRAIN_CAPACITY_SCALE};
	__u32 ask = 0;

	in.all = guest_util(c->own.load);
	in.task = guest_util(t->perf.util.load);
	in.claim = perf__claim(p, t, scale, now);
	if (t->pub.vcpu)
		in.limit = perf__limit(p, t);
	c->claim = in.claim;
	c->bound = task__is_bound(p);
	c->demand = entrain_min(entrain_max(in.task, in.claim), in.limit);
	c->wanted = entrain_perf_wanted(&in);
	entrain_perf_step(&c->level, c->wanted, now, &ask);
	if (ask || again)
		perf__set(cpu, c, c->level.asked);
}

/* Charges what a task had since it was last looked at. */
static __always_inline void perf__charge(struct task_ctx *t, struct sched_perf_cpu *c, __u32 scale, __u64 now)
{
	__u64 ran = t->perf.since ? entrain_sub(now, t->perf.since) : 0;

	t->perf.since = now;
	t->perf.util.ran += ran;
	c->own.ran += ran;
	entrain_util_fold(&t->perf.util, now, scale);
	entrain_util_fold(&c->own, now, scale);
}

/* From ops.running. */
static __always_inline void perf__running(struct task_struct *p, struct task_ctx *t, __s32 cpu, __u64 now)
{
	struct sched_perf_cpu *c, *old;
	__u64 came = 0, removed = 0;
	__u32 scale;

	if (!use_perf)
		return;
	c = perf__cpu(cpu);
	if (!c)
		return;
	scale = perf__scale(cpu, c);
	t->perf.since = 0;
	perf__charge(t, c, scale, now);
	if (READ_ONCE(c->removed))
		removed = __sync_lock_test_and_set(&c->removed, 0);
	if (t->perf.home != cpu_or_none__of(cpu)) {
		came = t->perf.util.load;
		old = cpu_or_none__is_none(t->perf.home) ? NULL : perf__cpu(cpu_or_none__cpu(t->perf.home));
		if (old)
			__sync_fetch_and_add(&old->removed, came);
		t->perf.home = cpu_or_none__of(cpu);
	}
	if (came || removed)
		entrain_util_move(&c->own, came, removed);
	WRITE_ONCE(c->busy, 1);
	perf__ask(p, t, cpu, c, scale, now, false);
}

#endif /* ENTRAIN_SCHED_PERF_LEVEL_BPF_H */
