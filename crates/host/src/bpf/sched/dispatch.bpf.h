/* SPDX-License-Identifier: GPL-2.0-only */
/* Whom a CPU takes next, and whether the task that runs there is to be looked at. */
#ifndef ENTRAIN_SCHED_DISPATCH_BPF_H
#define ENTRAIN_SCHED_DISPATCH_BPF_H

#include "turn.bpf.h"
#include "grant.bpf.h"
#include "balance.bpf.h"
#include "idle.bpf.h"
#include "perf_place.bpf.h"

/*
 * Siblings hand a turn on to one another as long as nobody else has a right to the CPU. One whose timer is due comes
 * between them, since a CPU that changes hands anyway is had for nothing; one that woke and may take the CPU, or whose
 * turn it is, ends the turn. A function of its own for the verifier.
 */
__noinline int cpu__hands_on(__s32 cpu, __u64 now)
{
	struct cpu_ctx *c = cpu__ctx(cpu);
	__u64 next = c->next;
	enum short_stay stay = c->next_stay;

	if (!next || c->waiting <= 0 || stay == STAY_FOR_TIMER)
		return 0;
	c->next = 0;
	if (!entrain_before(now, cpu__next_look(c, cpu, now)))
		return 0;
	if (cpu__timer_is_due(cpu, now) && cpu__due_goes_next(cpu, now)) {
		cpu__will_resume(c, next, stay);
		return 0;
	}
	c->next = next;
	return 0;
}

/* Puts another task on this CPU, where one is to run. Returns whether it did: else `prev` goes on, or nothing is there.
 */
static __always_inline bool cpu__choose(struct cpu_ctx *c, __s32 cpu, struct task_struct *prev, __u64 now)
{
	struct task_ctx *t = NULL;
	bool waits, stays, compares, goes_on;
	__s32 behind = -1;
	__u64 first = 0;

	/* The kernel keeps the one that ran when nothing is dispatched and it has a slice. */
	if (prev && (prev->scx.flags & SCX_TASK_QUEUED))
		t = task__ctx(prev);
	cpu__hands_on(cpu, now);
	if (c->next && c->next_stay == STAY_FOR_TIMER && t && t->started && !t->leaving) {
		/* Whose timer is due interrupts another one, but not inside a section. */
		if (t->pub.vcpu && task__may_stay(prev, t, c, cpu, now))
			return false;
		if (c->stay != STAY_FOR_TIMER)
			cpu__will_resume(c, prev->scx.tid, c->stay);
	}
	if (cpu__take_next(c, cpu, now) || cpu__take_aged(c, cpu, now) || cpu__resume(c, cpu, now))
		return true;
	if (t && perf__leaves(t))
		t = NULL;
	if (t && limit__ends(prev, &t->limit, cpu, now)) {
		/* Its group has no time left. Inside a section it borrows some, as it does of its turn. */
		if (t->started && t->pub.vcpu && task__may_stay(prev, t, c, cpu, now))
			return false;
		t = NULL;
	}
	/* One that yielded makes way even where its clock is behind. */
	stays = t && t->started && !t->leaving;
	/*
	 * The clocks of this queue's first and of other queues' are far apart before a task is moved: where vCPUs halt
	 * at each few us they are not compared at each switch.
	 */
	compares = cpu__others_wait(c) && (t || !entrain_before(now, c->compares));
	if (compares)
		c->compares = now + cpu__peace(c);
	waits = t || compares ? cpu__first_vtime(c, cpu, &first) : c->waiting > 0;
	goes_on = stays && (!waits || entrain_before(cpu__shown_vtime(c, now), first));
	if (compares && (waits || stays))
		behind = cpu__behind(c, cpu, goes_on ? cpu__running_vtime(c, now) : first, !waits, FETCH_SCAN);
	if (waits || behind >= 0) {
		if (goes_on && behind < 0) {
			task__new_turn(prev, t, c, cpu, now, true, first);
			return false;
		}
		if (stays && t->pub.vcpu && task__may_stay(prev, t, c, cpu, now))
			return false;
		if (cpu__balance(c))
			return true;
		if (behind >= 0 && queue__take_first(DSQ_CPU(behind)))
			return true;
		if (waits && queue__take_first(DSQ_CPU(cpu)))
			return true;
	}
	/* One that yielded goes on where nobody waits in this queue: to fetch another for each yield costs moves. */
	if (t ? cpu__balance(c) : cpu__fetch_any(cpu))
		return true;
	if (t) {
		task__new_turn(prev, t, c, cpu, now, waits, first);
		return false;
	}
	perf__pull(cpu);
	if (!prev)
		cpu__found_nothing(c, cpu);
	return false;
}

/* ops.dispatch. Now and then what a switch costs is measured, from here to when the task that was chosen begins. */
static __always_inline void cpu__dispatch(__s32 cpu, struct task_struct *prev)
{
	struct cpu_ctx *c = cpu__ctx(cpu);
	__u64 now = scx_bpf_now(), began;

	/* Taken back before the look: a claim that comes after it is for ops.running to see. */
	c->served = c->claimed ? __sync_lock_test_and_set(&c->claimed, 0) : 0;
	began = choice__began(c->choices++, &c->behind);
	c->asked = cpu__choose(c, cpu, prev, now) ? began : 0;
}

/*
 * ops.tick. Timers end turns; where one was lost or does not serve, the tick does. And one that never leaves its CPU is
 * not charged for ever by what it shared with others when it came.
 */
static __always_inline void cpu__tick(struct task_struct *p)
{
	__s32 cpu = scx_bpf_task_cpu(p);
	struct cpu_ctx *c = cpu__ctx(cpu);
	struct task_ctx *t = task__ctx(p);
	__u64 now = scx_bpf_now();

	perf__tick(p);
	if (!t || !c->started)
		return;
	task__renew_share(p, t, now);
	balance__tick(c, now);
	if (cpu__is_excused(c) || c->waiting <= 0)
		return;
	if (!entrain_before(now, cpu__next_look(c, cpu, now)))
		scx_bpf_task_set_slice(p, 0);
}

#endif /* ENTRAIN_SCHED_DISPATCH_BPF_H */
