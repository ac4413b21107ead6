/* SPDX-License-Identifier: GPL-2.0-only */
/* cpu.max as it bears on this scheduler's tasks and queues. The limits themselves are kept by cgroup_limit.bpf.h. */
#ifndef ENTRAIN_GUEST_SCHED_LIMIT_H
#define ENTRAIN_GUEST_SCHED_LIMIT_H

#include "queue.bpf.h"

static __always_inline struct limit_member *limit__member(struct task_struct *p)
{
	struct task_ctx *t = task__of(p);

	return t ? &t->limit : NULL;
}

/*
 * To an idle vCPU in use where there is one, else to the one where it was, or another in use where that is parked. It
 * is counted there before it is moved: from then on the vCPU may take it. Where it has been dequeued meanwhile it stays
 * counted until it is queued the next time, which costs a look.
 */
static __always_inline bool limit__release(struct bpf_iter_scx_dsq *it, struct task_struct *p)
{
	__s32 cpu = scx_bpf_task_cpu(p), target = cpu, idle;
	bool pinned = task__is_pinned(p), moved;
	struct task_ctx *t = task__of(p);
	__u64 now = sched__now();

	if (!t)
		return false;
	if (!pinned && vcpu__of(cpu)->parked) {
		target = vcpu__kept_for(p, cpu);
		pinned = target < 0;
		target = pinned ? cpu : target;
	}
	idle = scx_bpf_test_and_clear_cpu_idle(target) ? target : -1;
	if (idle < 0 && !pinned)
		idle = scx_bpf_pick_idle_cpu(p->cpus_ptr, 0);
	if (idle >= 0 && !vcpu__of(idle)->parked)
		target = idle;
	task__join(t, target, now);
	task__wait_begin(p, t, target, pinned, now);
	scx_bpf_dsq_move_set_vtime(it, t->vtime);
	moved = scx_bpf_dsq_move_vtime(it, p, pinned ? QUEUE_PINNED(target) : QUEUE_OPEN(target), 0);
	/* It has been claimed: it must look, or nobody finds it idle again. */
	if (idle >= 0)
		vcpu__kick(idle, SCX_KICK_IDLE);
	return moved;
}

/* In ops.enqueue: whether the task waits for its group's time now. */
static __always_inline bool task__waits_for_time(struct task_struct *p, __s32 cpu, __u64 enq_flags)
{
	struct task_ctx *t = READ_ONCE(limited.groups) ? task__of(p) : NULL;

	return t && limit__parks(p, &t->limit, cpu, t->vtime - vcpu__of(cpu)->clock, sched__now_at(cpu), enq_flags);
}

/*
 * ops.running: the turn lasts as long as there is time for it. A task that has none leaves at once: it has come by
 * ops.select_cpu, which does not ask.
 */
static __always_inline void task__limit_begins(struct task_struct *p, __s32 cpu)
{
	struct task_ctx *t = READ_ONCE(limited.groups) ? task__of(p) : NULL;
	__u64 slice = p->scx.slice, turn;

	if (!t || !slice)
		return;
	turn = limit__begin(p, &t->limit, cpu, slice, scx_bpf_now());
	if (!turn)
		vcpu__kick(cpu, SCX_KICK_PREEMPT);
	else if (turn < slice)
		scx_bpf_task_set_slice(p, turn);
}

/* ops.stopping. */
static __always_inline void task__limit_stops(struct task_struct *p, __s32 cpu)
{
	struct task_ctx *t = READ_ONCE(limited.groups) ? task__of(p) : NULL;

	if (t)
		limit__charge(p, &t->limit, cpu, true, scx_bpf_now());
}

/* In ops.dispatch: whether the task that ran may go on with a new turn. */
static __always_inline bool task__limit_goes_on(struct task_struct *p, __s32 cpu)
{
	struct task_ctx *t = READ_ONCE(limited.groups) ? task__of(p) : NULL;
	__u64 now;

	if (!t)
		return true;
	now = scx_bpf_now();
	if (limit__ends(p, &t->limit, cpu, now))
		return false;
	limit__charge(p, &t->limit, cpu, false, now);
	return !t->limit.slot || limit__turn(t->limit.slot, cpu, GUEST_SLICE_NS, now) || limit__excuses(p);
}

#endif /* ENTRAIN_GUEST_SCHED_LIMIT_H */
