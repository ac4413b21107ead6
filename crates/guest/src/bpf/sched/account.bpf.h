/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Settling accounts: what a task and a vCPU did since the last time, in time that the host really gave. A task pays for
 * the work that it did, not for the time that its vCPU stood still.
 */
#ifndef ENTRAIN_GUEST_SCHED_ACCOUNT_H
#define ENTRAIN_GUEST_SCHED_ACCOUNT_H

#include "publish.bpf.h"

/* Brings a load up to date, if that was long enough ago, with what was worked since then on this vCPU. */
static __always_inline void load__update(struct load *load, __s32 cpu, __u64 now)
{
	__u32 capacity, perf;

	if (entrain_sub(now, load->at) < LOAD_EVERY_NS)
		return;
	capacity = host__capacity(cpu, &perf);
	load->mean = guest_load_update(load->mean, load->ran, entrain_sub(now, load->at), capacity, perf);
	load->ran = 0;
	load->at = now;
}

/* What the task is taken to need, 0..1024, when it has worked `ran` ns since it woke up. */
static __always_inline __u32 task__claim(struct task_ctx *t, __u64 ran)
{
	return guest_task_claim(t->load.mean, entrain_max(t->est, t->boost), ran);
}

/* The task no longer waits for a vCPU. */
static __always_inline void task__wait_end(struct task_ctx *t)
{
	if (cpu_or_none__is_none(t->waits_on))
		return;
	__sync_fetch_and_add(&vcpu__of(cpu_or_none__cpu(t->waits_on))->waiting, -(__s64)t->wait_claim);
	t->waits_on = 0;
}

/* The task waits for a vCPU: what it needs is part of what that vCPU needs, and the host is told. */
static __always_inline void task__wait_begin(struct task_ctx *t, __s32 cpu, __u64 now)
{
	task__wait_end(t);
	t->wait_claim = task__claim(t, 0);
	t->waits_on = cpu_or_none__of(cpu);
	__sync_fetch_and_add(&vcpu__of(cpu)->waiting, t->wait_claim);
	page__publish_util(cpu, now);
}

/* The task's account with its vCPU starts here. */
static __always_inline void account__start(__s32 cpu, struct task_ctx *t, __u64 now)
{
	struct vcpu_ctx *v = vcpu__of(cpu);

	/* The time that it slept; what it did before that was counted when it stopped. */
	load__update(&t->load, cpu, now);
	load__update(&v->load, cpu, now);
	task__wait_end(t);
	v->claim = task__claim(t, t->ran);
	v->run_at = now;
	v->run_vtime = t->vtime;
	v->run_share = t->share;
	v->steal_at = steal_clock__read(cpu, &v->steal_clock);
	page__publish_util(cpu, now);
}

/*
 * Settles the account of the task that runs on `cpu`. The guest's virtual time moves on with the work done, divided by
 * all that are entitled to work, so that it is what a fair task of weight 100 has had.
 */
static __noinline void account__settle(__s32 cpu, struct task_struct *p, struct task_ctx *t, __u64 now)
{
	struct vcpu_ctx *v = vcpu__of(cpu);
	__u64 which, steal = steal_clock__read(cpu, &which), elapsed, stolen = 0, worked, total;

	if (!v->run_at)
		return;
	elapsed = entrain_sub(now, v->run_at);
	if (which == v->steal_clock)
		stolen = entrain_min(entrain_sub(steal, v->steal_at), elapsed);
	worked = guest_real_time(elapsed, stolen);

	t->vtime += entrain_charge_share(worked, t->share);
	t->ran += worked;
	t->load.ran += worked;
	total = total_share > (__s64)t->share ? total_share : t->share;
	__sync_fetch_and_add(&vtime_now, entrain_charge_share(worked, total));

	v->ran += worked;
	v->stolen += stolen;
	v->load.ran += worked;
	if (task__is_pinned(p) && !(p->flags & PF_KTHREAD))
		v->pinned_ran += worked;
	load__update(&v->load, cpu, now);
	load__update(&t->load, cpu, now);
	v->claim = task__claim(t, t->ran);
	page__publish_util(cpu, now);
	v->run_at = now;
	v->run_vtime = t->vtime;
	v->steal_at = steal;
	v->steal_clock = which;
}

/* Where the running task of another vCPU stands by now; in wall time, since that vCPU alone settles its steal. */
static __always_inline __u64 vcpu__running_vtime(struct vcpu_ctx *v, __u64 now)
{
	return v->run_vtime + entrain_charge_share(entrain_sub(now, v->run_at), v->run_share);
}

#endif /* ENTRAIN_GUEST_SCHED_ACCOUNT_H */
