/* SPDX-License-Identifier: GPL-2.0-only */
/* Turns: what a task that runs is charged, how far the clocks come with it, and how it goes on with a new turn. */
#ifndef ENTRAIN_SCHED_TURN_BPF_H
#define ENTRAIN_SCHED_TURN_BPF_H

#include "class.bpf.h"
#include "guest.bpf.h"
#include "queue.bpf.h"
#include "alarm.bpf.h"
#include "together.bpf.h"
#include "limit.bpf.h"

/*
 * What the task is charged by; worked out anew only now and then, as that takes a walk up the cgroups. Only in
 * operations that are called for this task: elsewhere the kernel refuses to tell its cgroup, and leaves the scheduler.
 */
static __always_inline void task__renew_share(struct task_struct *p, struct task_ctx *t, __u64 now)
{
	if (t->share_at && entrain_sub(now, t->share_at) <= CGROUP_STALE_NS)
		return;
	t->share = task__share(p, &t->member, now);
	t->share_at = now;
}

/* A task wants to run from here on, if it did not before. Only from operations on it. */
static __always_inline void task__wants(struct task_struct *p, struct task_ctx *t, __u64 now)
{
	cgroup__join(p, &t->member);
	if (!t->waiting)
		t->waiting = now;
}

/*
 * How far the clocks of two CPUs are apart at most, where tasks are fetched from one to the other: a task is once it is
 * behind by `migrate_ns` of its own time, which is the more the lighter it is. By its own threshold alone a heavy one
 * beside light ones would lose with each move what it is owed.
 */
static __always_inline __u64 task__keeps(const struct task_ctx *t, const struct cpu_ctx *from, const struct cpu_ctx *to)
{
	__u64 lightest = entrain_min(cpu__mean_share(from), cpu__mean_share(to));

	return entrain_charge_share(migrate_ns, entrain_min(t->share, lightest));
}

/* From here on the task's clock is measured by that of this CPU: it keeps its lag (fair.h). */
static __always_inline void task__measure_by(struct task_ctx *t, const struct cpu_ctx *c, __u32 cpu)
{
	__u32 here = cpu_or_none__of(cpu);
	bool same = t->llc == c->llc;
	struct cpu_ctx *from = NULL;
	__u64 was;

	if (!cpu_or_none__is_none(t->measured) && (t->measured != here || !same))
		from = cpu__ctx(cpu_or_none__cpu(t->measured));
	if (from) {
		/* The CPU itself may have come to another LLC since. */
		was = from->llc == t->llc ? cpu__clock(from) : llc__queue(t->llc)->vtime;
		t->pub.vtime = entrain_move_vtime(t->pub.vtime, was, cpu__clock(c), same ? task__keeps(t, from, c) : 0);
	}
	t->measured = here;
	t->llc = c->llc;
}

/* What others had of its turns since it was asked last is charged to the task. */
static __always_inline void task__settle(struct task_ctx *t)
{
	if (t->owed)
		t->pub.vtime += __sync_lock_test_and_set(&t->owed, 0);
}

/*
 * A task that slept is runnable. A sleeper's past is bounded; what a task that never slept is owed or owes stays, or a
 * VM that yields much loses it.
 */
static __always_inline void task__woke(struct task_ctx *t, const struct cpu_ctx *c, __u64 credit)
{
	task__settle(t);
	t->forgiven = 0;
	t->pub.vtime = entrain_wake_vtime(t->pub.vtime, cpu__clock(c), task__vtime(t, credit),
					  entrain_lead(debt_ns, wait_max_ns, t->share, cpu__load(c)));
}

/* One that did not sleep goes on waiting. */
static __always_inline void task__waits_on(struct task_ctx *t, const struct cpu_ctx *c)
{
	__u64 lead = entrain_charge_share(wait_max_ns, entrain_max(cpu__load(c), t->share)), led;

	task__settle(t);
	led = entrain_led_vtime(t->pub.vtime, cpu__clock(c), lead);
	t->forgiven = led != t->pub.vtime;
	t->pub.vtime = led;
}

/* An extension or a short stay ends; what was not used of an extension goes back. */
static __always_inline void cpu__grant_over(struct cpu_ctx *c, struct task_ctx *t, __u64 now)
{
	if (c->granted && c->stay == STAY_FULL) {
		struct entrain_extend_limits limits = task__extend_limits(t);

		entrain_extend_return(&t->extend, &limits, entrain_sub(c->granted, now));
	}
	c->granted = 0;
	c->stay = STAY_FULL;
	c->refused = 0;
}

/*
 * The one whose turn it is here, where that is another than `t`, which runs. A turn is handed on to siblings of the
 * same VM and charged to its owner: so a yield costs no other VM anything, and the clock of whoever is let in does not
 * run ahead, to wait afterwards until all others have come as far.
 */
static __always_inline struct task_ctx *cpu__lender(const struct cpu_ctx *c, const struct task_ctx *t)
{
	struct task_struct *p = t->lent && c->owner ? scx_bpf_tid_to_task(c->owner) : NULL;

	return p ? task__ctx(p) : NULL;
}

/* The time since the task that runs was charged last is charged to whoever's turn it is. */
static __always_inline void cpu__charge(struct cpu_ctx *c, struct task_ctx *t, __u64 now)
{
	__u64 cost = entrain_charge_share(entrain_sub(now, t->started), c->share);
	struct task_ctx *lender = cpu__lender(c, t);

	if (lender)
		__sync_fetch_and_add(&lender->owed, cost);
	else
		t->pub.vtime += cost;
	c->vtime += cost;
}

/* A turn of this task's own begins. */
static __always_inline void cpu__turn_begins(struct cpu_ctx *c, struct task_struct *p, struct task_ctx *t, __u64 now)
{
	__u64 slice = cpu__slice(c);

	t->lent = 0;
	c->turn = now;
	/* A shortest slice each `wait_max_ns` is more than the lightest of many are due. */
	c->most = t->forgiven ? cpu__look_ns(c) : 0;
	t->forgiven = 0;
	c->less = task__repays(t, c->most ? c->most : slice, cpu__costs(c, slice_costs, slice_min_ns));
	c->owner = p->scx.tid;
	c->resumes = 0;
	c->vtime = t->pub.vtime;
	c->share = t->share;
}

/* The clocks come as far as the task that runs, or as the `first` of those that wait. */
static __always_inline void cpu__clocks_move(struct cpu_ctx *c, struct task_ctx *t, bool waits, __u64 first)
{
	struct queue_ctx *q = llc__queue(c->llc);
	__u64 clock;

	if (!waits)
		t->pub.vtime = entrain_bounded_vtime(t->pub.vtime, q->vtime, task__vtime(t, debt_ns));
	/*
	 * All CPUs of the LLC read this line at each switch: it is written when that makes a difference that counts, so
	 * that writes do not grow with the CPUs.
	 */
	clock = entrain_queue_vtime(q->vtime, t->pub.vtime, waits, first);
	if (entrain_before(q->vtime + task__vtime(t, granularity_ns), clock))
		q->vtime = clock;
	c->clock = entrain_queue_vtime(c->clock, t->pub.vtime, waits, first);
}

/*
 * The one that ran goes on, by its clock or for want of others: whatever it was let in for or should leave for is over.
 * One that never leaves its CPU is charged here, and the queue's clock goes with it: whoever wakes is owed nothing for
 * the time that it slept.
 */
static __always_inline void task__new_turn(struct task_struct *prev, struct task_ctx *t, struct cpu_ctx *c, __u32 cpu,
					   __u64 now, bool waits, __u64 first)
{
	cpu__grant_over(c, t, now);
	t->leaving = LEAVING_NOT;
	task__stayed(prev, t);
	if (t->started) {
		limit__charge(prev, &t->limit, cpu, false, now);
		cpu__charge(c, t, now);
		together__again(t, now);
		t->started = now;
		c->started = now;
		task__settle(t);
		cpu__clocks_move(c, t, waits, first);
	}
	cpu__turn_begins(c, prev, t, now);
	task__tell_extended(prev, t, false);
	scx_bpf_task_set_slice(prev, task__limit_goes_on(t, cpu, slice_max_ns, now));
	cpu__turn_began(c, cpu, now);
}

#endif /* ENTRAIN_SCHED_TURN_BPF_H */
