/* SPDX-License-Identifier: GPL-2.0-only */
/* The queues of the vCPUs: who waits there, and what that means for the vCPU and for the others. */
#ifndef ENTRAIN_GUEST_SCHED_QUEUE_H
#define ENTRAIN_GUEST_SCHED_QUEUE_H

#include "clock.bpf.h"
#include "immed.h"
#include "publish.bpf.h"

/* What the task is taken to need, 0..1024, when it has worked `ran` ns since it woke up. */
static __always_inline __u32 task__claim(struct task_ctx *t, __u64 ran)
{
	return guest_task_claim(t->load.mean, entrain_max(t->est, t->boost), ran);
}

/* The task no longer waits for a vCPU. */
static __always_inline void task__wait_end(struct task_ctx *t)
{
	struct vcpu_ctx *v;
	__s32 cpu;

	if (cpu_or_none__is_none(t->waits_on))
		return;
	cpu = cpu_or_none__cpu(t->waits_on);
	t->waits_on = 0;
	v = vcpu__of(cpu);
	__sync_fetch_and_add(&v->waiting_share, -(__s64)t->waits_share);
	if (t->waits_claim)
		__sync_fetch_and_add(&v->waiting_claim, -(__s64)t->waits_claim);
	if (!t->waits_pinned)
		__sync_fetch_and_add(&v->waiting_open, -1);
	if (t->waits_long)
		__sync_fetch_and_add(&v->waiting_long, -1);
	if (__sync_fetch_and_add(&v->waiting, -1) > 1)
		return;
	v->emptied = 1;
	waiting__ends(cpu, &v->waiting);
}

/*
 * The task waits for a vCPU from here on, in one of its queues. Comes before the insertion: a vCPU that goes idle sees
 * it (vcpu__update_idle), or whoever inserts sees that it idles.
 */
static __always_inline void task__wait_begin(struct task_struct *p, struct task_ctx *t, __s32 cpu, bool pinned,
					     __u64 now)
{
	struct vcpu_ctx *v = vcpu__of(cpu);

	task__wait_end(t);
	t->waits_on = cpu_or_none__of(cpu);
	t->waits_pinned = pinned;
	t->waits_long = !mode.contended && !task__is_brief(p);
	t->waits_share = t->share;
	t->waits_claim = mode.paced ? task__claim(t, 0) : 0;
	if (t->waits_long)
		__sync_fetch_and_add(&v->waiting_long, 1);
	if (!pinned)
		__sync_fetch_and_add(&v->waiting_open, 1);
	__sync_fetch_and_add(&v->waiting_share, t->waits_share);
	if (t->waits_claim) {
		__sync_fetch_and_add(&v->waiting_claim, t->waits_claim);
		page__publish_util(cpu, now);
	}
	if (__sync_fetch_and_add(&v->waiting, 1) <= 0)
		waiting__begins(cpu);
}

/* The slice that those who wait for a vCPU leave. */
static __always_inline __u64 vcpu__slice(const struct vcpu_ctx *v)
{
	__s64 waiting = READ_ONCE(v->waiting);

	return guest_slice(waiting > 0 ? waiting : 0);
}

/* Puts a task that has joined a vCPU into one of its queues. */
static __always_inline void queue__insert(struct task_struct *p, struct task_ctx *t, __s32 cpu, bool pinned, __u64 now,
					  __u64 enq_flags)
{
	__u64 slice = vcpu__slice(vcpu__of(cpu));

	task__wait_begin(p, t, cpu, pinned, now);
	scx_insert_vtime(p, pinned ? QUEUE_PINNED(cpu) : QUEUE_OPEN(cpu), slice, t->vtime, enq_flags);
}

/* Virtual time of the head of a queue; NO_HEAD when it is empty. */
#define NO_HEAD (~0ULL)

__noinline __u64 queue__head_vtime(__u64 queue)
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

#endif /* ENTRAIN_GUEST_SCHED_QUEUE_H */
