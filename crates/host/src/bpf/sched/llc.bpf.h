/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The CPUs of each last-level cache (LLC), whatever their numbers: whoever looks for a CPU near by goes round this
 * ring, so that the work is that of one LLC however many CPUs the host has, and clocks that are compared belong
 * together.
 */
#ifndef ENTRAIN_SCHED_LLC_BPF_H
#define ENTRAIN_SCHED_LLC_BPF_H

#include "state.bpf.h"

/* LLC of each possible CPU, dense from 0; SCHED_NO_LLC: not known, since it is offline. Written by the daemon. */
__u32 llc_of[SCHED_MAX_CPUS];

/* Raised when a CPU comes or goes: the daemon then looks where it belongs, and runs host_arrange. */
__u32 cpu_changes;

/* The same the other way round: the CPUs of LLC 0, then those of LLC 1, … Made by llc__arrange(). */
__u32 llc_cpus[SCHED_MAX_CPUS];

/* LLCs that have a CPU, and 1 more than the highest number among them: CPUs that go may leave gaps. */
__u32 nr_llcs;
__u32 llcs_end;

/*
 * The CPU that stands `i` places behind this one in the ring of its LLC, 0 = itself. -1: there are no more. While CPUs
 * come or go it may name one of another LLC, so whoever compares clocks looks at the LLC that it finds there.
 */
static __always_inline __s32 llc__cpu(const struct cpu_ctx *c, __u32 i)
{
	const struct queue_ctx *q = llc__queue(c->llc);
	__u32 at = c->place + i;

	if (i >= q->nr)
		return -1;
	if (at >= q->nr)
		at -= q->nr;
	return llc_cpus[(q->first + at) & (SCHED_MAX_CPUS - 1)];
}

/* As above, of another LLC: the one in the `i`th place. */
static __always_inline __s32 llc__cpu_at(__u32 llc, __u32 i)
{
	const struct queue_ctx *q = llc__queue(llc);

	return i < q->nr ? (__s32)llc_cpus[(q->first + i) & (SCHED_MAX_CPUS - 1)] : -1;
}

/* Whether a CPU has a place in a ring: it is there, and its LLC is known. */
static __always_inline bool cpu__has_place(__u32 cpu)
{
	struct cpu_ctx *c = cpu__ctx(cpu);

	return !c->offline && llc_of[cpu & (SCHED_MAX_CPUS - 1)] < SCHED_MAX_LLCS;
}

/*
 * The CPU belongs to this LLC from now on, whose clock is another: what waits for it is put back, and measured anew by
 * that clock; so is what runs. The CPU's timer does that, since only the scheduler's own programs may.
 */
static __always_inline void cpu__join_llc(struct cpu_ctx *c, __u32 cpu, __u32 llc)
{
	struct entry_timer *r = bpf_map_lookup_elem(&sched_alarms, &cpu);

	if (c->waiting > 0) {
		__sync_fetch_and_add(&llc__queue(c->llc)->waiting, -1);
		__sync_fetch_and_add(&llc__queue(llc)->waiting, 1);
	}
	c->llc = llc;
	c->clock = llc__queue(llc)->vtime;
	c->moved = 1;
	if (r)
		bpf_timer_start(&r->timer, 0, 0);
}

/*
 * Puts the CPUs in order of their LLCs. CPUs go on scheduling meanwhile: each entry is right or was, and for a moment a
 * CPU may stand twice in its ring or not at all, which costs a wake-up its best choice and nothing else. `running`: the
 * scheduler runs already.
 */
static __always_inline void llc__arrange(bool running)
{
	__u32 l, i, next = 0, llcs = 0, end = 0;

	bpf_for (l, 0, SCHED_MAX_LLCS) {
		llc__queue(l)->fill = 0;
	}
	bpf_for (i, 0, SCHED_MAX_CPUS) {
		if (i >= nr_cpus)
			break;
		if (cpu__has_place(i))
			llc__queue(llc_of[i])->fill++;
	}
	bpf_for (l, 0, SCHED_MAX_LLCS) {
		struct queue_ctx *q = llc__queue(l);

		q->first = next;
		q->nr = q->fill;
		llcs += q->nr > 0;
		if (q->nr)
			end = l + 1;
		next += q->fill;
		q->fill = 0;
	}
	bpf_for (i, 0, SCHED_MAX_CPUS) {
		struct cpu_ctx *c;
		struct queue_ctx *q;

		if (i >= nr_cpus)
			break;
		c = cpu__ctx(i);
		if (!cpu__has_place(i))
			continue;
		q = llc__queue(llc_of[i]);
		llc_cpus[(q->first + q->fill) & (SCHED_MAX_CPUS - 1)] = i;
		c->place = q->fill++;
		/* Until they say otherwise, all may idle. */
		if (!running) {
			c->llc = llc_of[i];
			c->idles = 1 + llc_of[i];
			q->idle++;
		} else if (c->llc != llc_of[i]) {
			cpu__join_llc(c, i, llc_of[i]);
		}
	}
	nr_llcs = llcs;
	llcs_end = end;
}

#endif /* ENTRAIN_SCHED_LLC_BPF_H */
