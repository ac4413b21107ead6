/* SPDX-License-Identifier: GPL-2.0-only */
/* Tasks that become runnable, or have had their turn: which queue they wait in, and who is kicked for them. */
#ifndef ENTRAIN_GUEST_SCHED_ENQUEUE_H
#define ENTRAIN_GUEST_SCHED_ENQUEUE_H

#include "account.bpf.h"
#include "helper.bpf.h"
#include "place.bpf.h"

/* Puts a task into a queue of virtual time, with the slice that those who wait there leave it. */
static __always_inline void queue__insert(struct task_struct *p, __u64 queue, __u64 vtime, __u64 enq_flags)
{
	scx_insert_vtime(p, queue, guest_slice(scx_bpf_dsq_nr_queued(queue)), vtime, enq_flags);
}

/* The task's place in virtual time when it joins a queue. */
static __always_inline __u64 task__join(struct task_ctx *t)
{
	__u64 debt = guest_debt(t->share, total_share > 0 ? total_share : 0);

	t->vtime = entrain_wake_vtime(t->joined ? t->vtime : vtime_now, vtime_now, GUEST_CREDIT_NS, debt);
	t->joined = 1;
	return t->vtime;
}

/* A waking task: its vCPU, where it starts at once when that idles and nothing says that it could wait there. */
static __always_inline __s32 task__select_vcpu(struct task_struct *p, __s32 previous, __u64 wake_flags)
{
	struct task_ctx *t = task__of(p);
	__s32 cpu, waker = -1;

	if (!t)
		return previous;
	if (wake_flags & SCX_WAKE(SYNC))
		waker = bpf_get_smp_processor_id();
	cpu = task__choose_vcpu(p, t->load.mean, previous, waker);
	if (cpu < 0)
		return previous;
	if (vcpu__of(cpu)->idle && scx_bpf_test_and_clear_cpu_idle(cpu)) {
		stats__count(cpu == previous ? &stats.wake_previous : &stats.wake_idle);
		if (host__vcpu_view(cpu).instant)
			stats__count(&stats.wake_instant);
		task__wait_begin(t, cpu, scx_bpf_now());
		page__publish_wakeup(cpu, p);
		if (vcpu__takes_direct(cpu)) {
			task__join(t);
			scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, guest_slice(0), 0);
		} else {
			queue__insert(p, QUEUE_OPEN(cpu), task__join(t), 0);
		}
	}
	return cpu;
}

/* A task that has no place yet, or gives up its vCPU: into a queue, and somebody is told. */
static __always_inline void task__enqueue(struct task_struct *p, __u64 enq_flags)
{
	__s32 cpu = scx_bpf_task_cpu(p), target = cpu;
	struct task_ctx *t = task__of(p);
	__u64 now = scx_bpf_now(), vtime;
	bool wakeup = enq_flags & SCX_ENQ(WAKEUP), last;
	struct vcpu_ctx *v;

	if (!t) {
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, GUEST_SLICE_NS, enq_flags);
		return;
	}
	last = enq_flags & SCX_ENQ(LAST);
	vtime = task__join(t);

	if (!task__is_pinned(p) && (vcpu__of(cpu)->parked || !task__may_run(p, cpu))) {
		target = task__choose_vcpu(p, t->load.mean, cpu, -1);
		if (target >= 0 && last)
			stats__count(&stats.migrations);
	}
	v = vcpu__of(target < 0 ? cpu : target);
	if (wakeup && target == cpu && !v->idle && v->run_at && cpu == bpf_get_smp_processor_id() &&
	    !scx_bpf_dsq_nr_queued(SCX_DSQ_LOCAL) && guest_preempts(vtime, vcpu__running_vtime(v, now))) {
		/*
		 * It takes the vCPU that wakes it. A kick would do, too, but that is an interrupt to itself, and in a
		 * guest an exit; put into the vCPU's own queue it makes the kernel reschedule as it is. One at a time:
		 * what lies there nobody else can take.
		 */
		stats__count(&stats.wake_queued);
		stats__count(&stats.preempts);
		task__wait_begin(t, cpu, now);
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, guest_slice(0), enq_flags | SCX_ENQ(PREEMPT));
		return;
	}
	if (task__is_pinned(p) || target < 0) {
		/* Nowhere else to go: this vCPU serves it, parked or not. */
		target = cpu;
		task__wait_begin(t, cpu, now);
		queue__insert(p, QUEUE_PINNED(cpu), vtime, enq_flags);
	} else {
		task__wait_begin(t, target, now);
		queue__insert(p, QUEUE_OPEN(target), vtime, enq_flags);
	}

	/* A vCPU that begins to idle may not show it yet. */
	if (target != cpu && !v->idle)
		scx_bpf_kick_cpu(target, SCX_KICK_IDLE);
	if (v->idle || last) {
		page__publish_wakeup(target, p);
		scx_bpf_kick_cpu(target, SCX_KICK_IDLE);
		return;
	}
	if (!wakeup) {
		/*
		 * A task whose slice is over makes way for another: an idle vCPU may have it. For one that computes,
		 * any in use: on a busy host none is certain to run at once, but the guest is entitled to each that it
		 * keeps.
		 */
		if (target == cpu)
			helper__wake(p, cpu, t->ran >= GUEST_SLICE_NS);
		return;
	}
	stats__count(&stats.wake_queued);
	if (v->run_at && guest_preempts(vtime, vcpu__running_vtime(v, now))) {
		stats__count(&stats.preempts);
		scx_bpf_kick_cpu(target, SCX_KICK_PREEMPT);
	}
}

#endif /* ENTRAIN_GUEST_SCHED_ENQUEUE_H */
