/* SPDX-License-Identifier: GPL-2.0-only */
/* The queues: where a task waits, in which order, and which one a CPU takes next. */
#ifndef ENTRAIN_SCHED_QUEUE_H
#define ENTRAIN_SCHED_QUEUE_H

#include "sched_state.h"
#include "sched_guest.h"

/* Candidates looked at for co-running. Bounds the work per dispatch whatever the number of VMs. */
#define CORUN_SCAN 6

/* A directed yield that nobody has followed for so long is forgotten: the lock has moved on. */
#define NEXT_STALE_NS (2 * ENTRAIN_MSEC)

/* The slice that a queue as long as this one leaves. */
static __always_inline __u64 slice_for(__u32 llc)
{
	struct queue_ctx *q = queue_of(llc);
	struct entrain_slice_in in = {
		.period = period_ns,
		.floor = slice_min_ns,
		.ceiling = slice_max_ns,
		.cpus = q->cpus,
	};
	__s32 waiting = scx_bpf_dsq_nr_queued(DSQ_LLC(llc));

	in.waiting = waiting > 0 ? waiting : 0;
	return entrain_slice(&in);
}

/* The slice of a task that begins now, less what it owes. */
static __always_inline __u64 slice_now(struct task_ctx *t, __u32 llc)
{
	__u64 owed = t->extend.debt;
	__u64 slice = entrain_extend_repay(&t->extend, slice_for(llc), slice_min_ns);

	if (owed > t->extend.debt)
		COUNT(t, repaid_ns, owed - t->extend.debt);
	return slice;
}

/* Puts a task into the queue that it may be served from: its LLC's, or its CPU's where it is bound to one. */
static __always_inline void queue_task(struct task_struct *p, struct task_ctx *t, __u64 vtime, __u64 enq_flags)
{
	__u64 dsq;

	if (p->nr_cpus_allowed == 1) {
		t->place = PLACE_CPU;
		dsq = DSQ_CPU(t->cpu);
	} else {
		t->place = PLACE_LLC;
		dsq = DSQ_LLC(t->llc);
	}
	scx_insert_vtime(p, dsq, slice_min_ns, vtime, enq_flags);
}

/* Moves a certain waiting task to this CPU, if it still waits and may run here. Only from ops.dispatch. */
static __always_inline bool take_task(struct task_struct *p, struct task_ctx *t, __s32 cpu)
{
	__u64 dsq = t->place == PLACE_CPU ? DSQ_CPU(t->cpu) : DSQ_LLC(t->llc);
	struct bpf_iter_scx_dsq it;
	bool moved = false;

	if (t->place != PLACE_LLC && t->place != PLACE_CPU)
		return false;
	/*
	 * The iterator comes first: whoever changes the affinity afterwards must take the task off the queue and put it
	 * back, and the kernel moves only what was queued before the iterator began.
	 */
	if (!bpf_iter_scx_dsq_new(&it, dsq, 0) && !p->migration_disabled && bpf_cpumask_test_cpu(cpu, p->cpus_ptr))
		moved = scx_bpf_dsq_move(&it, p, SCX_DSQ_LOCAL, 0);
	bpf_iter_scx_dsq_destroy(&it);
	return moved;
}

/* The target of a directed yield. Returns whether it was put on this CPU. */
static __always_inline bool take_next(struct cpu_ctx *c, __s32 cpu, __u64 now)
{
	struct task_struct *p;
	struct task_ctx *t;
	__u64 tid = c->next;

	if (!tid)
		return false;
	c->next = 0;
	if (entrain_sub(now, c->next_at) > NEXT_STALE_NS)
		return false;
	p = scx_bpf_tid_to_task(tid);
	t = p ? task_ctx(p) : NULL;
	if (!t)
		return false;
	if (take_task(p, t, cpu))
		return true;
	COUNT(t, yields_lost, 1);
	return false;
}

/* Looks near the head of an LLC's queue for a vCPU whose sibling runs now and depends on it. */
static __always_inline bool take_sibling(struct cpu_ctx *c, __s32 cpu, __u64 first_vtime, __u64 now)
{
	struct task_struct *p;
	int seen = 0;

	bpf_for_each (scx_dsq, p, DSQ_LLC(c->llc), 0) {
		struct entrain_corun_in in = {.first_vtime = first_vtime};
		struct task_ctx *t = task_ctx(p);
		struct vm_ctx *vm;

		if (seen++ >= CORUN_SCAN)
			break;
		if (!t || !t->pub.vcpu)
			continue;
		vm = vm_of(t);
		if (!vm)
			continue;
		in.vtime = t->pub.vtime;
		in.sibling = vm->running > 0;
		in.depends = vm->depends && entrain_sub(now, vm->depends) < corun_memory_ns;
		if (!entrain_corun(&in, corun_skew_ns))
			continue;
		if (seen == 1)
			return false; /* its turn anyway */
		if (take_task(p, t, cpu)) {
			COUNT(t, corun, 1);
			return true;
		}
	}
	return false;
}

/* The clock of the first who waits for this CPU, in its own queue or its LLC's. Returns whether anybody waits. */
static __always_inline bool first_waiting(struct cpu_ctx *c, __s32 cpu, __u64 *vtime, bool *own_first)
{
	struct task_struct *shared = scx_bpf_dsq_peek(DSQ_LLC(c->llc));
	struct task_struct *own = scx_bpf_dsq_peek(DSQ_CPU(cpu));

	*vtime = 0;
	*own_first = false;
	if (shared)
		*vtime = shared->scx.dsq_vtime;
	if (own && (!shared || entrain_before(own->scx.dsq_vtime, *vtime))) {
		*vtime = own->scx.dsq_vtime;
		*own_first = true;
	}
	return shared || own;
}

/* Takes the first; the two queues are ordered by the same clock. */
static __always_inline bool take_first(struct cpu_ctx *c, __s32 cpu, __u64 vtime, bool own_first, __u64 now)
{
	if (corun_skew_ns && take_sibling(c, cpu, vtime, now))
		return true;
	if (own_first)
		return scx_bpf_dsq_move_to_local(DSQ_CPU(cpu)) || scx_bpf_dsq_move_to_local(DSQ_LLC(c->llc));
	return scx_bpf_dsq_move_to_local(DSQ_LLC(c->llc)) || scx_bpf_dsq_move_to_local(DSQ_CPU(cpu));
}

/* Nothing here: another LLC's queue, so that no CPU idles while a task waits. Starts at the next LLC, in a ring. */
static __always_inline bool take_elsewhere(struct cpu_ctx *c)
{
	__u32 i;

	bpf_for (i, 1, 64) {
		if (i >= nr_llcs)
			break;
		if (scx_bpf_dsq_move_to_local(DSQ_LLC((c->llc + i) % nr_llcs)))
			return true;
	}
	return false;
}

#endif /* ENTRAIN_SCHED_QUEUE_H */
