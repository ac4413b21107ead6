/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Settling accounts: what a task and a vCPU did since the last time. While the guest is contended that is time that the
 * host really gave: a task pays for the work that it did, not for the time that its vCPU stood still.
 */
#ifndef ENTRAIN_GUEST_SCHED_ACCOUNT_H
#define ENTRAIN_GUEST_SCHED_ACCOUNT_H

#include "queue.bpf.h"

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

/* Whether tasks are charged one by one now: somebody waits, or the host withholds time. */
static __always_inline bool accounts__matter(void)
{
	return mode.contended || mode.paced || waiting__any();
}

/* The steal clock from here on; only where it is looked at. */
static __always_inline void account__mark_steal(__s32 cpu, struct vcpu_ctx *v)
{
	v->steal_at = v->steal_clock = 0;
	if (mode.contended)
		v->steal_at = steal_clock__read(cpu, &v->steal_clock);
}

/* A task begins to run; `t` is NULL where nobody waits: it is the queue's clock. */
static __always_inline void account__start(__s32 cpu, struct task_struct *p, struct task_ctx *t, __u64 now)
{
	struct vcpu_ctx *v = vcpu__of(cpu);

	v->stay_at = v->run_at = now;
	v->kicks = 0;
	v->handed = v->hands_from ? 1 + entrain_sub(now, v->hands_from) : 0;
	v->hands_from = 0;
	v->hands_next = 0;
	v->counted = t != NULL;
	if (v->asked)
		v->cost = entrain_cost(v->cost, entrain_sub(bpf_ktime_get_ns(), v->asked));
	v->asked = 0;
	if (v->woken) {
		v->wake = entrain_cost(v->wake, entrain_min(entrain_sub(now, v->woken), WAKE_MOST_NS));
		v->woken = 0;
	}
	v->peace_until = now + guest_peace(v->cost, t ? t->ran : 0);
	if (!t) {
		v->clock = entrain_bounded_vtime(v->clock, mode.furthest, GUEST_CREDIT_NS);
		v->run_vtime = v->clock;
		v->run_share = task__own_share(p);
		v->claim = 0;
		return;
	}
	task__wait_end(t);
	/* Until it has waited or stayed, its group is not asked for. */
	t->share = t->share ? t->share : task__own_share(p);
	v->run_vtime = task__join(t, cpu, now);
	v->run_share = t->share;
	account__mark_steal(cpu, v);
	if (mode.paced) {
		/* The time that it slept; what it did before that was counted when it stopped. */
		load__update(&t->load, cpu, now);
		load__update(&v->load, cpu, now);
		v->claim = task__claim(t, t->ran);
		page__publish_util(cpu, now);
	}
}

/* What the vCPU has worked since its account was last settled, ns. */
static __always_inline __u64 vcpu__worked(__s32 cpu, struct vcpu_ctx *v, __u64 now)
{
	__u64 elapsed = entrain_sub(now, v->run_at), which, steal;

	if (!v->steal_at && !v->steal_clock)
		return elapsed;
	steal = steal_clock__read(cpu, &which);
	if (which == v->steal_clock)
		elapsed = guest_real_time(elapsed, entrain_sub(steal, v->steal_at));
	v->steal_at = steal;
	v->steal_clock = which;
	return elapsed;
}

/* The work of the task that runs there, as far as the vCPU alone is concerned. */
static __always_inline void vcpu__add_work(struct vcpu_ctx *v, struct task_struct *p, __u64 worked)
{
	v->ran += worked;
	v->load.ran += worked;
	if (task__is_pinned(p) && !(p->flags & PF_KTHREAD))
		v->pinned_ran += worked;
}

/* Settles the account of a task that ran where nobody waited: the queue's clock goes with it. */
static __always_inline void account__settle_alone(struct vcpu_ctx *v, struct task_struct *p, __u64 now)
{
	__u64 worked = entrain_sub(now, v->run_at);

	v->run_vtime += entrain_charge_share(worked, v->run_share);
	v->clock = vtime__later(v->clock, v->run_vtime);
	v->run_at = now;
	vcpu__add_work(v, p, worked);
}

/*
 * Settles the account of the task that runs on `cpu`. One that nobody has counted in yet is charged by its own weight:
 * in ops.dispatch the kernel does not say what its group is.
 */
static __noinline void account__settle(__s32 cpu, struct task_struct *p, struct task_ctx *t, __u64 now)
{
	struct vcpu_ctx *v = vcpu__of(cpu);
	__u64 worked;

	if (!v->run_at)
		return;
	worked = vcpu__worked(cpu, v, now);
	if (!v->counted) {
		/* Somebody has come since it began: its clock is the queue's, as it was then. */
		v->counted = 1;
		t->vtime = v->run_vtime;
		t->home = cpu_or_none__of(cpu);
		t->share = t->share ? t->share : task__own_share(p);
		account__mark_steal(cpu, v);
	}
	t->vtime += entrain_charge_share(worked, t->share);
	t->ran += worked;
	t->load.ran += worked;
	vcpu__add_work(v, p, worked);
	if (READ_ONCE(v->waiting) <= 0) {
		t->vtime = entrain_bounded_vtime(t->vtime, mode.furthest, GUEST_CREDIT_NS);
		v->clock = vtime__later(v->clock, t->vtime);
	}
	if (mode.paced) {
		load__update(&v->load, cpu, now);
		load__update(&t->load, cpu, now);
		v->claim = task__claim(t, t->ran);
		page__publish_util(cpu, now);
	}
	v->run_at = now;
	v->run_vtime = t->vtime;
	v->run_share = t->share;
}

#endif /* ENTRAIN_GUEST_SCHED_ACCOUNT_H */
