/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Virtual time. Each vCPU's queue has a clock of its own: how far those have come who want to run there. A task that
 * runs where nobody waits is the clock itself, and needs no account: it has no lag. What it is charged counts from the
 * moment when somebody else wants its vCPU, or any queue of the guest holds a task that could come here.
 *
 * Clocks of vCPUs stay together since one that is ahead takes over what waits behind another (takeover.bpf.h), and
 * since one that runs alone is lifted to those that have come furthest: it had no claim on the time that was free.
 */
#ifndef ENTRAIN_GUEST_SCHED_CLOCK_H
#define ENTRAIN_GUEST_SCHED_CLOCK_H

#include "mask.bpf.h"

static __always_inline __u64 vtime__later(__u64 a, __u64 b)
{
	return entrain_before(a, b) ? b : a;
}

/* Where the running task stands by now; in wall time, since its vCPU alone settles what was withheld. */
static __always_inline __u64 vcpu__running_vtime(const struct vcpu_ctx *v, __u64 now)
{
	return v->run_vtime + entrain_charge_share(entrain_sub(now, v->run_at), v->run_share);
}

/* Whether a task of that virtual time, which waits for the vCPU, takes it from the one that runs. */
static __always_inline bool vcpu__makes_way(const struct vcpu_ctx *v, __u64 vtime, __u64 now)
{
	return v->run_at && !entrain_before(now, v->peace_until) && guest_preempts(vtime, vcpu__running_vtime(v, now));
}

/* The clock of a vCPU's queue. Others move it on as well, by this: what gets lost in a race is less than a slice. */
static __always_inline __u64 vcpu__clock(struct vcpu_ctx *v, __u64 now)
{
	__u64 clock = READ_ONCE(v->clock);

	if (READ_ONCE(v->waiting) > 0)
		return clock;
	if (READ_ONCE(v->run_at))
		clock = vtime__later(clock, vcpu__running_vtime(v, now));
	clock = entrain_bounded_vtime(clock, mode.furthest, GUEST_CREDIT_NS);
	WRITE_ONCE(v->clock, clock);
	return clock;
}

/*
 * The task's virtual time where it joins those who want a vCPU: by lag, so that what it is owed or owes is the same
 * there. `waits`: the sum of the shares that it would wait for.
 */
static __always_inline __u64 task__join(struct task_ctx *t, __s32 cpu, __u64 now)
{
	struct vcpu_ctx *v = vcpu__of(cpu);
	__u64 clock = vcpu__clock(v, now), debt;
	__s64 waits = READ_ONCE(v->waiting_share);

	if (cpu_or_none__is_none(t->home))
		t->vtime = clock;
	else if (cpu_or_none__cpu(t->home) != (__u32)cpu)
		t->vtime = entrain_move_vtime(t->vtime, vcpu__clock(vcpu__of(cpu_or_none__cpu(t->home)), now), clock,
					      GUEST_APART_NS);
	debt = guest_debt(t->share, t->share + (waits > 0 ? waits : 0));
	t->vtime = entrain_wake_vtime(t->vtime, clock, GUEST_CREDIT_NS, debt);
	t->home = cpu_or_none__of(cpu);
	return t->vtime;
}

/* The share of a task whose group is not asked for. */
static __always_inline __u64 task__own_share(struct task_struct *p)
{
	return entrain_weight_clamp(p->scx.weight) << ENTRAIN_SHARE_SHIFT;
}

/*
 * What the task is charged by from now on; it counts in its group until it sleeps. Only in operations on this task: the
 * kernel tells the group of no other.
 */
static __always_inline void task__count_in(struct task_struct *p, struct task_ctx *t, __u64 now)
{
	if (!t->member.active) {
		cgroup__join(p, &t->member);
		if (t->member.active)
			__sync_fetch_and_add(&members, 1);
	}
	t->share = task__share(p, &t->member, now);
}

/* The task sleeps, or leaves the scheduler. */
static __always_inline void task__count_out(struct task_ctx *t)
{
	if (!t->member.active)
		return;
	cgroup__leave(&t->member);
	__sync_fetch_and_add(&members, -1);
}

#endif /* ENTRAIN_GUEST_SCHED_CLOCK_H */
