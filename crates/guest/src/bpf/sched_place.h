/* SPDX-License-Identifier: GPL-2.0-only */
/* Where a task goes when it becomes runnable, and what a vCPU takes from the others. The decisions are guest_wake.h. */
#ifndef ENTRAIN_GUEST_SCHED_PLACE_H
#define ENTRAIN_GUEST_SCHED_PLACE_H

#include "sched_account.h"

/*
 * The functions that are not static are verified on their own, once: what they return is any number to their callers,
 * which keeps the loops around them short for the verifier.
 */
static __always_inline void candidate(struct guest_candidate *c, __s32 cpu, __s32 previous)
{
	struct vcpu_ctx *v = vcpu(cpu);
	__u32 perf;

	c->view = host_view(cpu);
	c->parked = v->parked != 0;
	c->idle = v->idle != 0;
	c->previous = cpu == previous;
	c->queued = scx_bpf_dsq_nr_queued(QUEUE_OPEN(cpu)) + scx_bpf_dsq_nr_queued(QUEUE_PINNED(cpu));
	c->burst = v->burst;
	c->host_wait = v->host_wait;
	c->capacity = host_capacity(cpu, &perf);
	c->capacity = c->capacity * perf / ENTRAIN_CAPACITY_SCALE;
	c->stolen = v->stolen_share;
}

/* What it costs to run a task of this utilisation there. `waker` is the vCPU of a waker that is about to sleep. */
__noinline __u64 price_of(__s32 cpu, __s32 previous, __s32 waker, __u32 util)
{
	struct guest_candidate c;

	candidate(&c, cpu, previous);
	if (cpu == waker && !c.queued) {
		/* It runs, and is about to be free. */
		c.idle = 1;
		c.view.state = ENTRAIN_VCPU_RUNNING;
	}
	return guest_wake_price(&c, util);
}

/* Whether the vCPU's next task can be put where only it can take it. */
__noinline int may_direct(__s32 cpu)
{
	struct guest_candidate c;

	candidate(&c, cpu, -1);
	return guest_wake_direct(&c);
}

/* The cheapest vCPU for the task; -1 when every one that it may use is parked. */
static __noinline __s32 place(struct task_struct *p, __u64 load, __s32 previous, __s32 waker)
{
	__u64 price, lowest = GUEST_PRICE_NEVER;
	__u32 util = guest_util(load);
	__s32 best = -1;
	int i;

	bpf_for (i, 0, nr_vcpus < LOOK_AT_WAKE ? nr_vcpus : LOOK_AT_WAKE) {
		__s32 cpu = ((__u32)previous + i) % nr_vcpus;

		if (vcpu(cpu)->parked || !may_run(p, cpu))
			continue;
		price = price_of(cpu, previous, waker, util);
		if (price < lowest) {
			lowest = price;
			best = cpu;
		}
		/* Free and certain: it does not get better. */
		if (price <= GUEST_KICK_NS)
			break;
	}
	/* None among the first: anyone, if the guest is bigger than the search. */
	return best >= 0 ? best : kept_for(p, -1);
}

/* Kicks an idle vCPU in use that may run the task; only one that the host would run at once, if `instant`. */
static __noinline bool wake_one(struct task_struct *p, __s32 not, bool instant)
{
	int i;

	bpf_for (i, 0, nr_vcpus) {
		struct vcpu_ctx *v = vcpu(i);
		struct guest_vcpu_view view;

		if (i == not|| v->parked || !v->idle || !may_run(p, i))
			continue;
		view = host_view(i);
		if (instant && view.state != ENTRAIN_VCPU_UNKNOWN && !view.instant &&
		    view.state != ENTRAIN_VCPU_RUNNING)
			continue;
		if (!scx_bpf_test_and_clear_cpu_idle(i))
			continue;
		scx_bpf_kick_cpu(i, SCX_KICK_IDLE);
		return true;
	}
	return false;
}

/*
 * Wakes an idle vCPU in use that may help with the task. Where the vCPU that has it will run it itself, only one that
 * the host would run at once is of help. Where it will not (`stuck`: it is parked), any is: were all others idle,
 * nobody else would ever look.
 */
static __noinline void wake_helper(struct task_struct *p, __s32 not, bool stuck)
{
	if (!wake_one(p, not, true) && stuck)
		wake_one(p, not, false);
}

/* Virtual time of the head of a queue; NO_HEAD when it is empty. */
#define NO_HEAD (~0ULL)

__noinline __u64 head_of(__u64 queue)
{
	struct task_struct *head;
	__u64 vtime = NO_HEAD;

	bpf_rcu_read_lock();
	head = scx_bpf_dsq_peek(queue);
	if (head)
		vtime = head->scx.dsq_vtime;
	bpf_rcu_read_unlock();
	return vtime;
}

/* Takes the head of another vCPU's queue when the policy says so; true when this one has got a task. */
__noinline int take_from(__s32 other, int own_work, __u64 own_vtime)
{
	struct vcpu_ctx *v = vcpu(other);
	struct guest_takeover t = {
		.own_work = own_work,
		.own_vtime = own_vtime,
		.head_vtime = head_of(QUEUE_OPEN(other)),
		.slice = GUEST_SLICE_NS,
		.victim_parked = v->parked != 0,
		.victim_idle = v->idle != 0,
	};
	struct guest_vcpu_view view;

	if (t.head_vtime == NO_HEAD)
		return false;
	view = host_view(other);
	t.victim_state = view.state;
	t.victim_instant = view.instant;
	if (!guest_take_over(&t) || !scx_bpf_dsq_move_to_local(QUEUE_OPEN(other)))
		return false;
	count(&stats.takeovers);
	if (t.victim_parked || view.state == ENTRAIN_VCPU_PREEMPTED)
		count(&stats.rescues);
	return true;
}

/*
 * Looks for work of others: at a few when there is own work, at all before the vCPU idles. With own work once a tick: a
 * look costs more than most wake-ups take.
 */
static __noinline bool take_over(__s32 cpu, int own_work, __u64 own_vtime)
{
	struct vcpu_ctx *v = vcpu(cpu);
	__u32 looks = own_work && nr_vcpus > LOOK_AT_BUSY ? LOOK_AT_BUSY : nr_vcpus;
	int i;

	v->compare = 0;

	bpf_for (i, 0, looks) {
		__s32 other = ++v->look % nr_vcpus;

		if (other != cpu && take_from(other, own_work, own_vtime))
			return true;
	}
	return false;
}

#endif /* ENTRAIN_GUEST_SCHED_PLACE_H */
