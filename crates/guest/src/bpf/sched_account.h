/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Settling accounts: what a task and a vCPU did since the last time, in time that the host really gave. A task pays for
 * the work that it did, not for the time that its vCPU stood still.
 */
#ifndef ENTRAIN_GUEST_SCHED_ACCOUNT_H
#define ENTRAIN_GUEST_SCHED_ACCOUNT_H

#include "sched_host.h"

/* Loads are brought up to date at most this often: two of their periods, and less than a tick. */
#define LOAD_EVERY_NS (2 * ENTRAIN_MSEC)

/* What the task is taken to need, 0..1024, when it has worked `ran` ns since it woke up. */
static __always_inline __u32 task_claim(struct task_ctx *t, __u64 ran)
{
	return guest_task_claim(t->load, entrain_max(t->est, t->boost), ran);
}

/* The task no longer waits for a vCPU. */
static __always_inline void wait_end(struct task_ctx *t)
{
	if (!t->where)
		return;
	__sync_fetch_and_add(&vcpu(t->where - 1)->waiting, -(__s64)t->waits);
	t->where = 0;
}

/* The task waits for a vCPU: what it needs is part of what that vCPU needs, and the host is told. */
static __always_inline void wait_begin(struct task_ctx *t, __s32 cpu, __u64 now)
{
	wait_end(t);
	t->waits = task_claim(t, 0);
	t->where = cpu + 1;
	__sync_fetch_and_add(&vcpu(cpu)->waiting, t->waits);
	publish_util(cpu, now);
}

/* The task's account with its vCPU starts here. */
static __always_inline void account_start(__s32 cpu, struct task_ctx *t, __u64 now)
{
	struct vcpu_ctx *v = vcpu(cpu);
	__u32 capacity, perf;

	/* The time that it slept; what it did before that was counted when it stopped. */
	if (entrain_sub(now, t->load_at) >= LOAD_EVERY_NS) {
		capacity = host_capacity(cpu, &perf);
		t->load = guest_load_update(t->load, t->load_ran, entrain_sub(now, t->load_at), capacity, perf);
		t->load_ran = 0;
		t->load_at = now;
	}
	if (entrain_sub(now, v->load_at) >= LOAD_EVERY_NS) {
		capacity = host_capacity(cpu, &perf);
		v->load = guest_load_update(v->load, v->load_ran, entrain_sub(now, v->load_at), capacity, perf);
		v->load_ran = 0;
		v->load_at = now;
	}
	wait_end(t);
	v->claim = task_claim(t, t->ran);
	v->run_at = now;
	v->run_vtime = t->vtime;
	v->run_share = t->share;
	v->steal_at = steal_clock(cpu, &v->steal_clock);
	publish_util(cpu, now);
}

/*
 * Settles the account of the task that runs on `cpu`. The guest's virtual time moves on with the work done, divided by
 * all that are entitled to work, so that it is what a fair task of weight 100 has had.
 */
static __noinline void account_settle(__s32 cpu, struct task_struct *p, struct task_ctx *t, __u64 now)
{
	struct vcpu_ctx *v = vcpu(cpu);
	__u64 which, steal = steal_clock(cpu, &which), elapsed, stolen = 0, worked, total;
	__u32 capacity, perf;

	if (!v->run_at)
		return;
	elapsed = entrain_sub(now, v->run_at);
	if (which == v->steal_clock)
		stolen = entrain_min(entrain_sub(steal, v->steal_at), elapsed);
	worked = guest_real_time(elapsed, stolen);

	t->vtime += entrain_charge_share(worked, t->share);
	t->ran += worked;
	t->load_ran += worked;
	total = total_share > (__s64)t->share ? total_share : t->share;
	__sync_fetch_and_add(&vtime_now, entrain_charge_share(worked, total));

	v->ran += worked;
	v->stolen += stolen;
	v->load_ran += worked;
	if (is_pinned(p) && !(p->flags & PF_KTHREAD))
		v->pinned_ran += worked;
	if (entrain_sub(now, v->load_at) >= LOAD_EVERY_NS) {
		capacity = host_capacity(cpu, &perf);
		v->load = guest_load_update(v->load, v->load_ran, entrain_sub(now, v->load_at), capacity, perf);
		v->load_ran = 0;
		v->load_at = now;
	}
	if (entrain_sub(now, t->load_at) >= LOAD_EVERY_NS) {
		capacity = host_capacity(cpu, &perf);
		t->load = guest_load_update(t->load, t->load_ran, entrain_sub(now, t->load_at), capacity, perf);
		t->load_ran = 0;
		t->load_at = now;
	}
	v->claim = task_claim(t, t->ran);
	publish_util(cpu, now);
	v->run_at = now;
	v->run_vtime = t->vtime;
	v->steal_at = steal;
	v->steal_clock = which;
}

/* Where the running task of another vCPU stands in virtual time by now; wall time, since that vCPU settles its steal.
 */
static __always_inline __u64 running_vtime(struct vcpu_ctx *v, __u64 now)
{
	return v->run_vtime + entrain_charge_share(entrain_sub(now, v->run_at), v->run_share);
}

#endif /* ENTRAIN_GUEST_SCHED_ACCOUNT_H */
