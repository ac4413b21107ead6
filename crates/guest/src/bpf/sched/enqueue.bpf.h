/* SPDX-License-Identifier: GPL-2.0-only */
/* Tasks that become runnable, or have had their turn: which queue they wait in, and who is kicked for them. */
#ifndef ENTRAIN_GUEST_SCHED_ENQUEUE_H
#define ENTRAIN_GUEST_SCHED_ENQUEUE_H

#include "account.bpf.h"
#include "context.h"
#include "helper.bpf.h"
#include "immed.h"
#include "limit.bpf.h"
#include "park.bpf.h"
#include "place.bpf.h"
#include "watch.bpf.h"

/*
 * Whether a waking task starts sooner behind who runs on that vCPU than by a kick of an idle one. For a trial's sake it
 * waits however long that one stays: he may stay because others answer him at once.
 */
static __always_inline bool task__waits_at(struct task_struct *p, __s32 cpu, bool tries)
{
	struct vcpu_ctx *v = vcpu__of(cpu);

	return (tries ? vcpu__is_open(v) : vcpu__frees_soon(v, READ_ONCE(v->waiting))) && task__may_run(p, cpu);
}

/* The vCPU that a waking task had better wait for: that of who wakes it, `here`, or its own; -1: none. */
static __always_inline __s32 task__waits_for(struct task_struct *p, __s32 previous, __s32 here)
{
	struct vcpu_ctx *sender = vcpu__of(here), *last = vcpu__of(previous);
	bool tries = vcpu__tries(sender);

	if (vcpu__is_cheaper(sender) == tries)
		return -1;
	if (context__is_task() && sender->llc == last->llc && task__waits_at(p, here, tries))
		return here;
	return here != previous && task__waits_at(p, previous, false) ? previous : -1;
}

/*
 * A waking task in a calm guest: the kernel's choice of an idle vCPU, by core, cache and node, and no account. Or none,
 * where it starts sooner behind who runs on its own, or behind who wakes it: tasks that hand work to one another meet
 * on one vCPU, and send no interrupts.
 */
static __always_inline __s32 task__select_calm(struct task_struct *p, __s32 previous, __u64 wake_flags)
{
	__s32 cpu, here = bpf_get_smp_processor_id();
	struct vcpu_ctx *v, *sender = vcpu__of(here);
	bool idle = false;
	struct task_ctx *t;

	if (sender->sent)
		vcpu__measure_send(sender, sched__now());
	if (!(wake_flags & SCX_WAKE(FORK)) && task__is_brief(p)) {
		cpu = task__waits_for(p, previous, here);
		if (cpu >= 0) {
			sender->stays = 1;
			vcpu__sends(sender, false);
			sender->hands_next |= cpu == here;
			return cpu;
		}
	}
	cpu = scx_bpf_select_cpu_dfl(p, previous, wake_flags, &idle);
	if (!idle)
		return cpu;
	v = vcpu__of(cpu);
	if (!(v->choices % COST_EVERY))
		v->woken = sched__now();
	stats__count_if(cpu == previous, wake_previous);
	stats__count_if(cpu != previous, wake_idle);
	if (mode.paced) {
		t = task__of(p);
		if (t)
			page__raise_util(cpu, task__claim(t, 0));
		page__publish_wakeup(cpu, p);
	}
	scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, guest_slice(0), enq__at_once());
	if (cpu != here)
		vcpu__sends(sender, true);
	return cpu;
}

/* A waking task: its vCPU, where it starts at once when that idles and nothing says that it could wait there. */
static __always_inline __s32 task__select_vcpu(struct task_struct *p, __s32 previous, __u64 wake_flags)
{
	struct task_ctx *t;
	__s32 cpu, waker = -1;
	__u64 now;

	if (!mode.contended)
		return task__select_calm(p, previous, wake_flags);
	t = task__of(p);
	if (!t)
		return previous;
	if (wake_flags & SCX_WAKE(SYNC))
		waker = bpf_get_smp_processor_id();
	cpu = task__choose_vcpu(p, t->load.mean, previous, waker);
	if (cpu < 0)
		return previous;
	if (!scx_bpf_test_and_clear_cpu_idle(cpu))
		return cpu;
	stats__count_if(cpu == previous, wake_previous);
	stats__count_if(cpu != previous, wake_idle);
	stats__count_if(host__vcpu_view(cpu).instant, wake_instant);
	page__publish_wakeup(cpu, p);
	if (vcpu__takes_direct(cpu)) {
		if (mode.paced)
			page__raise_util(cpu, task__claim(t, 0));
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, guest_slice(0), enq__at_once());
	} else {
		now = sched__now();
		task__count_in(p, t, now);
		task__join(t, cpu, now);
		queue__insert(p, t, cpu, false, now, 0);
	}
	return cpu;
}

/* Whether this is the vCPU in question, and something lies in its own queue. */
static __always_inline bool vcpu__is_given(__s32 cpu)
{
	return cpu == (__s32)bpf_get_smp_processor_id() && scx_bpf_dsq_nr_queued(SCX_DSQ_LOCAL);
}

/*
 * Whether it changes hands for that already: what is put there to preempt takes the slice of who runs. A kick would be
 * an interrupt to itself, and in a guest an exit. Tasks that exit lie there as well, and nobody makes way for them.
 */
static __always_inline bool vcpu__reschedules(__s32 cpu)
{
	return vcpu__is_given(cpu) && !bpf_get_current_task_btf()->scx.slice;
}

/*
 * Tells somebody of a task that waits now. The bit of its vCPU is set: an idle vCPU is seen here, or one that becomes
 * idle sees the bit (vcpu__update_idle).
 */
static __always_inline void task__tell(struct task_struct *p, struct task_ctx *t, __s32 target, bool pinned,
				       bool wakeup, bool stays, bool last, __u64 now)
{
	struct vcpu_ctx *v = vcpu__of(target);
	__s32 idle = -1;

	if (pinned || mode.contended || last)
		idle = scx_bpf_test_and_clear_cpu_idle(target) ? target : -1;
	else if (!stays)
		idle = helper__claim(p, target);
	else
		watch__begin(target);
	if (last)
		idle = target;
	if (idle >= 0) {
		page__publish_wakeup(idle, p);
		vcpu__kick(idle, SCX_KICK_IDLE);
		return;
	}
	if (!pinned && !mode.contended && !stays)
		helper__wake_lookers(p);
	/*
	 * A vCPU that was woken for nothing idles on, and ops.update_idle is not told: it may have looked before this
	 * task came, while its bit was still taken. The kernel itself sees to the CPU that the task is counted on.
	 */
	if (target != scx_bpf_task_cpu(p) && !READ_ONCE(v->run_at))
		vcpu__kick(target, SCX_KICK_IDLE);
	if (!wakeup) {
		/*
		 * A task whose slice is over makes way for another: an idle vCPU may have it. For one that computes,
		 * any in use: on a busy host none is certain to run at once, but the guest is entitled to each that it
		 * keeps.
		 */
		if (mode.contended && !pinned && kept__others(target))
			helper__wake(p, t->ran >= GUEST_SLICE_NS);
		return;
	}
	stats__count(wake_queued);
	if (vcpu__makes_way(v, t->vtime, now) && !vcpu__reschedules(target)) {
		stats__count(preempts);
		vcpu__kick(target, SCX_KICK_PREEMPT);
	}
}

/*
 * A task that has no place yet, gives up its vCPU, or was sent to an idle one that another had taken (immed.h): into a
 * queue, and somebody is told.
 */
static __always_inline void task__enqueue(struct task_struct *p, __u64 enq_flags)
{
	bool wakeup = enq_flags & SCX_ENQ(WAKEUP) || task__came_back(p), last = enq_flags & SCX_ENQ(LAST);
	bool pinned = task__is_pinned(p), stays;
	__s32 cpu = scx_bpf_task_cpu(p), target = cpu, here = bpf_get_smp_processor_id();
	struct vcpu_ctx *v = vcpu__of(cpu);
	struct task_ctx *t;
	__u64 now;

	stays = wakeup && vcpu__of(here)->stays;
	vcpu__of(here)->stays = 0;
	if (task__waits_for_time(p, cpu, enq_flags))
		return;
	/*
	 * Bound to a vCPU that idles and that nobody waits for, or, in a calm guest, sent to one that has come to idle
	 * since. It is claimed, or another task would be sent there as well: what lies in a vCPU's own queue nobody
	 * else can take.
	 */
	if ((pinned || !mode.contended) && !v->run_at && v->waiting <= 0 && scx_bpf_test_and_clear_cpu_idle(cpu)) {
		vcpu__of(here)->kicks += cpu != here;
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, guest_slice(0), enq_flags | (pinned ? 0 : enq__at_once()));
		return;
	}
	t = task__of(p);
	if (!t) {
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, GUEST_SLICE_NS, enq_flags);
		return;
	}
	now = sched__now_at(cpu);
	if (!pinned && (v->parked || !task__may_run(p, cpu))) {
		target = task__choose_vcpu(p, t->load.mean, cpu, -1);
		if (target >= 0 && last)
			stats__count(migrations);
	}
	if (target < 0) {
		/* Nowhere else to go: this vCPU serves it, parked or not. */
		target = cpu;
		pinned = true;
	}
	v = vcpu__of(target);
	task__count_in(p, t, now);
	task__join(t, target, now);
	if (wakeup && target == cpu && cpu == here && vcpu__makes_way(v, t->vtime, now) && !vcpu__is_given(cpu)) {
		/*
		 * It takes the vCPU that wakes it: put into the vCPU's own queue it makes the kernel reschedule as it
		 * is, without a kick. One at a time: what lies there nobody else can take.
		 */
		stats__count(wake_queued);
		stats__count(preempts);
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, guest_slice(0), enq_flags | SCX_ENQ(PREEMPT));
		return;
	}
	queue__insert(p, t, target, pinned, now, enq_flags);
	/* There may be room for it by now: a guest that runs few and long turns has few other occasions to look. */
	if (mode.contended)
		vcpud__step(now);
	task__tell(p, t, target, pinned, wakeup, stays, last, now);
}

/* The running task yields: it gives up the rest of its turn where somebody waits. */
static __always_inline void task__yield(struct task_struct *p)
{
	__s32 cpu = scx_bpf_task_cpu(p);
	struct vcpu_ctx *v = vcpu__of(cpu);
	struct task_ctx *t = v->waiting > 0 ? task__of(p) : NULL;

	if (t && v->run_at) {
		account__settle(cpu, p, t, scx_bpf_now());
		t->vtime += guest_yield_charge(p->scx.slice, t->share);
		v->run_vtime = t->vtime;
	}
	scx_bpf_task_set_slice(p, 0);
}

#endif /* ENTRAIN_GUEST_SCHED_ENQUEUE_H */
