/* SPDX-License-Identifier: GPL-2.0-only */
/* Where a task's vCPU is chosen when it becomes runnable. The prices are those of guest_wake.h. */
#ifndef ENTRAIN_GUEST_SCHED_PLACE_H
#define ENTRAIN_GUEST_SCHED_PLACE_H

#include "host.bpf.h"

/* What decides the price of a vCPU. */
static __always_inline void candidate__fill(struct guest_candidate *c, __s32 cpu, __s32 previous)
{
	struct vcpu_ctx *v = vcpu__of(cpu);
	__u32 perf;

	c->view = host__vcpu_view(cpu);
	c->parked = v->parked != 0;
	c->idle = v->idle != 0;
	c->previous = cpu == previous;
	c->queued = scx_bpf_dsq_nr_queued(QUEUE_OPEN(cpu)) + scx_bpf_dsq_nr_queued(QUEUE_PINNED(cpu));
	c->burst = v->burst;
	c->host_wait = v->host_wait;
	c->capacity = host__capacity(cpu, &perf);
	c->capacity = c->capacity * perf / ENTRAIN_CAPACITY_SCALE;
	c->stolen = v->stolen_share;
}

/* What it costs to run a task of this utilisation there. `waker` is the vCPU of a waker that is about to sleep. */
__noinline __u64 candidate__price(__s32 cpu, __s32 previous, __s32 waker, __u32 util)
{
	struct guest_candidate c;

	candidate__fill(&c, cpu, previous);
	if (cpu == waker && !c.queued) {
		/* It runs, and is about to be free. */
		c.idle = 1;
		c.view.state = ENTRAIN_VCPU_RUNNING;
	}
	return guest_wake_price(&c, util);
}

/* Whether the vCPU's next task can be put where only it can take it. */
__noinline int vcpu__takes_direct(__s32 cpu)
{
	struct guest_candidate c;

	candidate__fill(&c, cpu, -1);
	return guest_wake_direct(&c);
}

/* The cheapest vCPU for the task; -1 when every one that it may use is parked. */
static __noinline __s32 task__choose_vcpu(struct task_struct *p, __u64 load, __s32 previous, __s32 waker)
{
	__u64 price, lowest = GUEST_PRICE_NEVER;
	__u32 util = guest_util(load);
	__s32 best = -1;
	int i;

	bpf_for (i, 0, nr_vcpus < LOOK_AT_WAKE ? nr_vcpus : LOOK_AT_WAKE) {
		__s32 cpu = ((__u32)previous + i) % nr_vcpus;

		if (vcpu__of(cpu)->parked || !task__may_run(p, cpu))
			continue;
		price = candidate__price(cpu, previous, waker, util);
		if (price < lowest) {
			lowest = price;
			best = cpu;
		}
		/* Free and certain: it does not get better. */
		if (price <= GUEST_KICK_NS)
			break;
	}
	/* None among the first: anyone, if the guest is bigger than the search. */
	return best >= 0 ? best : vcpu__kept_for(p, -1);
}

#endif /* ENTRAIN_GUEST_SCHED_PLACE_H */
