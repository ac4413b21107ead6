/* SPDX-License-Identifier: GPL-2.0-only */
/* A task's stay on a CPU: what is booked when it begins and when it ends. */
#ifndef ENTRAIN_SCHED_STAY_BPF_H
#define ENTRAIN_SCHED_STAY_BPF_H

#include "turn.bpf.h"
#include "grant.bpf.h"
#include "idle.bpf.h"
#include "perf_level.bpf.h"
#include "perf_idle.bpf.h"
#include "untrapped.bpf.h"

/*
 * The turn that the task runs in: its own, or what is left of that of the sibling that gave way to it. Whoever runs is
 * left in peace from when the turn began: siblings that hand a turn on to one another every few microseconds, as those
 * do that fight for a lock, would else be left in peace until it is over.
 */
static __always_inline void stay__take_turn(struct task_struct *p, struct task_ctx *t, struct cpu_ctx *c, __u64 now)
{
	bool heir = t->heir;
	struct task_ctx *owner;

	t->heir = 0;
	if (t->stay == STAY_FOR_TIMER && c->resumes) {
		/* Amid another one's turn, in its own time. */
		t->lent = 0;
		c->vtime = t->pub.vtime;
		c->share = t->share;
		c->came = now;
		return;
	}
	t->lent = heir && c->owner != p->scx.tid;
	/* What is left of its own turn may have come back to it: that is no new one. */
	owner = t->lent ? cpu__lender(c, t) : heir ? t : NULL;
	/* A turn is handed on within a VM only. */
	if (!owner || owner->pub.tgid != t->pub.tgid) {
		cpu__turn_begins(c, p, t, now);
	} else {
		task__repays(t, 0, 0);
		c->vtime = owner->pub.vtime + owner->owed;
		c->share = owner->share;
	}
	c->came = c->turn;
}

/* ops.running. */
static __always_inline void stay__begin(struct task_struct *p)
{
	__s32 cpu = scx_bpf_task_cpu(p);
	struct task_ctx *t = task__ctx(p);
	struct cpu_ctx *c = cpu__ctx(cpu);
	__u64 now = scx_bpf_now(), first = 0;
	bool waits;

	if (!t)
		return;
	if (c->asked)
		c->cost = entrain_cost(c->cost, entrain_sub(bpf_ktime_get_ns(), c->asked));
	c->asked = 0;
	task__wait_end(t);
	if (c->claimed || c->served)
		cpu__pass_claim(c, p);
	/* It came by none of our operations: a CPU that goes, a kernel that lets nobody choose. */
	if (!t->waiting)
		task__wants(p, t, now);
	else
		task__count(t, SCHED_READY_NS, entrain_sub(now, t->waiting));
	t->waiting = 0;
	t->started = now;
	t->spun = 0;
	if (t->due && t->due == cpu__ctx(t->cpu)->due)
		cpu__expects_anew(t->cpu);
	t->due = 0;
	if (t->stay == STAY_FOR_TIMER)
		t->timer_at = entrain_max(t->timer_at, now) + timer__again(c);
	t->leaving = LEAVING_NOT;
	t->front = t->front == FRONT_NEXT ? FRONT_HAD : FRONT_NOT;
	task__renew_share(p, t, now);
	task__count(t, SCHED_SWITCHES, 1);

	t->pub.queue = 1 + (c->llc & (SCHED_MAX_LLCS - 1));
	task__measure_by(t, c, cpu);
	task__settle(t);
	waits = c->waiting > 0;
	/* Whoever goes by his clock is the first himself; the queue is asked only where another one has been let in. */
	first = t->pub.vtime;
	if (t->stay || t->heir || t->forgiven)
		waits = cpu__first_vtime(c, cpu, &first);
	cpu__clocks_move(c, t, waits, first);
	stay__take_turn(p, t, c, now);
	c->bound = task__is_bound(p);
	c->granted = 0;
	c->refused = 0;
	c->withheld = 0;
	c->stay = STAY_FULL;
	c->tgid = t->pub.vcpu ? t->pub.tgid : 0;
	c->started = now;
	if (t->stay)
		cpu__short_stay(c, t->stay, cpu, now);
	t->stay = STAY_FULL;
	cpu__turn_began(c, cpu, now);
	if (cpu__polls(c, t))
		cpu__alarm_turn(c, cpu, now + cpu__peace(c) + cpu__look_later(c), now);
	task__limit_begins(p, t, cpu, now);
	together__begin(t, now);
	perf__running(p, t, cpu, now);
}

/* A vCPU is taken off its CPU while it is runnable: whether it was interrupted where siblings will miss it. */
static __always_inline void task__interrupted(struct task_struct *p, struct task_ctx *t, const struct cpu_ctx *c,
					      __u64 now)
{
	enum front front = FRONT_NOT;
	struct entrain_vcpu *vcpu;

	t->level = task__sampled(p, t);
	vcpu = task__vcpu(p, t);
	if (vcpu && vcpu->spins)
		t->polled = 0;
	/* One that yielded was not interrupted, whatever it spins in. */
	if (t->leaving != LEAVING_YIELDED) {
		task__count(t, SCHED_PREEMPTIONS, 1);
		if (entrain_critical_holds(t->level)) {
			task__count(t, SCHED_PREEMPTIONS_HELD, 1);
			if (use_front && t->front == FRONT_NOT && !task__spins(t, c, now) && !task__waits_untrapped(t))
				front = FRONT_NEXT;
		}
	}
	t->front = front;
}

/* ops.stopping. */
static __always_inline void stay__end(struct task_struct *p, bool runnable)
{
	__s32 cpu = scx_bpf_task_cpu(p);
	struct task_ctx *t = task__ctx(p);
	struct cpu_ctx *c = cpu__ctx(cpu);
	__u64 now = scx_bpf_now(), ran;

	if (!t || !t->started)
		return;
	ran = entrain_sub(now, t->started);
	limit__charge(p, &t->limit, cpu, true, now);
	cpu__charge(c, t, now);
	t->started = 0;
	t->told = 0;
	perf__stopping(t, cpu, runnable, now);
	together__end(t, now);
	/*
	 * A higher class took the CPU. The kernel would keep the task in that CPU's own queue for as long as that
	 * lasts; without a slice it comes to ours, where others find it. It goes on with its turn afterwards.
	 */
	if (runnable && p->scx.slice) {
		scx_bpf_task_set_slice(p, 0);
		if (c->stay != STAY_FOR_TIMER)
			cpu__will_resume(c, p->scx.tid, STAY_FULL);
		c->withheld = 1;
	}
	cpu__grant_over(c, t, now);
	c->started = 0;
	c->tgid = 0;

	if (runnable || !t->slot)
		task__meet_vcpu(p, t);
	if (!runnable) {
		t->level = ENTRAIN_CRITICAL_UNKNOWN;
		t->front = FRONT_NOT;
		return;
	}
	t->waiting = now;
	if (!t->pub.vcpu)
		return;
	task__interrupted(p, t, c, now);
	if (use_timer)
		t->due = timer__due(c, t, x86__timer(t->kvm_vcpu, ran, cpu__peace(c)), now);
}

/* arm64: KVM saves a timer of the current thread's vCPU, which leaves its CPU; its thread is queued already, if at all.
 */
static __always_inline void stay__timer_saved(struct arch_timer_context *timer)
{
	struct task_ctx *t;
	struct cpu_ctx *c;
	__u64 now;

	/* KVM saves others beside it, which no guest that is no hypervisor has for its clock. */
	if (timer->timer_id != bpf_core_enum_value(enum kvm_arch_timers, TIMER_VTIMER))
		return;
	t = task__ctx(bpf_get_current_task_btf());
	if (!t || !t->queued || !t->kvm_vcpu)
		return;
	c = cpu__ctx(t->cpu);
	now = scx_bpf_now();
	t->due = timer__due(c, t, arm64__timer(t->kvm_vcpu, timer), now);
	cpu__expects(c, t->due);
	if (t->due)
		cpu__turn_ends(c, t->cpu, now);
}

#endif /* ENTRAIN_SCHED_STAY_BPF_H */
