/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Where a task's vCPU is chosen when it becomes runnable in a contended guest. The prices are those of guest_wake.h; a
 * calm guest leaves the choice to the kernel (enqueue.bpf.h).
 */
#ifndef ENTRAIN_GUEST_SCHED_PLACE_H
#define ENTRAIN_GUEST_SCHED_PLACE_H

#include "host.bpf.h"

/* A task that looks for a vCPU, and the best so far. */
struct choice {
	__s32 previous; /* where it ran last */
	__s32 waker;	/* the vCPU of a waker that is about to sleep; -1: none */
	__u32 util;	/* the task's utilisation, 0..1024 */
	__s32 best;	/* -1: none yet */
	__u64 lowest;
};

/* What decides the price of a vCPU; `idle` as the kernel has it. */
static __always_inline void candidate__fill(struct guest_candidate *c, __s32 cpu, __s32 previous, bool idle)
{
	struct vcpu_ctx *v = vcpu__of(cpu);
	__s64 waiting = READ_ONCE(v->waiting);
	__s32 local = scx_bpf_dsq_nr_queued(SCX_DSQ_LOCAL_ON | cpu);
	__u32 perf;

	c->view = host__vcpu_view(cpu);
	c->parked = v->parked != 0;
	c->idle = idle;
	c->previous = cpu == previous;
	c->far = previous >= 0 && v->llc != vcpu__of(previous)->llc;
	c->queued = (waiting > 0 ? waiting : 0) + (local > 0 ? local : 0);
	c->held = !idle && !v->run_at && !c->queued;
	c->burst = v->burst;
	c->host_wait = v->host_wait;
	c->capacity = host__capacity(cpu, &perf);
	/* An idle pCPU is slow because it idles: it comes to speed with the task. */
	if (!idle)
		c->capacity = c->capacity * perf / ENTRAIN_CAPACITY_SCALE;
	c->stolen = v->stolen_share;
}

/* What it costs to run a task of this utilisation there. `waker` is the vCPU of a waker that is about to sleep. */
__noinline __u64 candidate__price(__s32 cpu, __s32 previous, __s32 waker, __u32 util, int idle)
{
	struct guest_candidate c;

	candidate__fill(&c, cpu, previous, idle);
	if (cpu == waker && !c.queued) {
		/* It runs, and is about to be free. */
		c.idle = 1;
		c.held = 0;
		c.view.state = ENTRAIN_VCPU_RUNNING;
	}
	return guest_wake_price(&c, util);
}

/* Whether the next task of a vCPU that idled and was claimed can be put where only that one can take it. */
__noinline int vcpu__takes_direct(__s32 cpu)
{
	struct guest_candidate c;

	candidate__fill(&c, cpu, -1, true);
	return guest_wake_direct(&c);
}

/* Looks at some vCPUs of one word. Returns whether one is free and certain: it does not get better. */
static __always_inline bool choice__among(struct choice *c, __u64 bits, __u32 word, bool idle)
{
	bool enough = false;
	int i;

	bpf_for (i, 0, LOOK_AT_WAKE) {
		__u64 price;
		__s32 cpu;

		if (!bits)
			break;
		cpu = bits__next(bits, c->previous);
		bits &= ~(1ULL << cpu);
		cpu += word * 64;
		price = candidate__price(cpu, c->previous, c->waker, c->util, idle);
		if (price < c->lowest) {
			c->lowest = price;
			c->best = cpu;
		}
		enough = price <= GUEST_KICK_NS + GUEST_MOVE_NS;
		if (enough)
			break;
	}
	return enough;
}

/* One vCPU by itself, if it is in use and the task may run there. */
static __always_inline void choice__try(struct choice *c, struct task_struct *p, __s32 cpu, const struct cpumask *idle)
{
	__u64 price;

	if (cpu < 0 || vcpu__of(cpu)->parked || !task__may_run(p, cpu))
		return;
	price = candidate__price(cpu, c->previous, c->waker, c->util, bpf_cpumask_test_cpu(cpu, idle));
	if (price < c->lowest) {
		c->lowest = price;
		c->best = cpu;
	}
}

/*
 * The cheapest vCPU for the task; -1 when every one that it may use is parked. First the one where it ran, then those
 * that idle, those near to it first, then some that do not.
 */
static __noinline __s32 task__choose_vcpu(struct task_struct *p, __u64 load, __s32 previous, __s32 waker)
{
	const struct cpumask *idle;
	struct choice c = {.previous = previous,
			   .waker = waker,
			   .util = guest_util(load),
			   .best = -1,
			   .lowest = GUEST_PRICE_NEVER};
	int i, busy;

	/* The only one in use has no price to be compared. */
	if (!kept__others(previous) && !vcpu__of(previous)->parked && task__may_run(p, previous))
		return previous;
	idle = scx_bpf_get_idle_cpumask();
	choice__try(&c, p, previous, idle);
	if (c.lowest > GUEST_KICK_NS && waker != previous)
		choice__try(&c, p, waker, idle);
	bpf_for (i, 0, 2 * nr_words) {
		__u32 word = ((__u32)previous / 64 + i) % nr_words;
		__u64 bits;

		busy = i >= nr_words;
		/* One that does not idle is at least a burst away. */
		if (c.lowest <= GUEST_KICK_NS + (busy ? GUEST_MOVE_NS : 0))
			break;
		bits = mask__word(&mask_kept, word);
		/* These have been looked at. */
		if (busy)
			bits = bits__without(bits__without(bits, word, previous), word, waker);
		if (bits)
			bits &= cpumask__word(p->cpus_ptr, word);
		if (bits)
			bits &= busy ? ~cpumask__word(idle, word) : cpumask__word(idle, word);
		if (choice__among(&c, bits, word, !busy))
			break;
	}
	scx_bpf_put_idle_cpumask(idle);
	/* None among those looked at: anyone. */
	return c.best >= 0 ? c.best : vcpu__kept_for(p, -1);
}

#endif /* ENTRAIN_GUEST_SCHED_PLACE_H */
