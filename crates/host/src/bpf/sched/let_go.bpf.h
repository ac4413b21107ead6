/* SPDX-License-Identifier: GPL-2.0-only */
/* Where a task goes that has waited for its group's time: what cgroup_limit.bpf.h asks of this scheduler. */
#ifndef ENTRAIN_SCHED_LET_GO_BPF_H
#define ENTRAIN_SCHED_LET_GO_BPF_H

#include "turn.bpf.h"
#include "idle.bpf.h"

static __always_inline struct limit_member *limit__member(struct task_struct *p)
{
	struct task_ctx *t = task__ctx(p);

	return t ? &t->limit : NULL;
}

/*
 * To an idle CPU where there is one, else to the one where it was. The task is counted there before it is moved: from
 * then on the CPU may take it. Nobody holds its run-queue lock here, so that it may be dequeued meanwhile; whoever
 * queues it then counts it anew, and what was counted here is taken back only where nobody has.
 */
static __always_inline bool limit__release(struct bpf_iter_scx_dsq *it, struct task_struct *p)
{
	__s32 cpu = scx_bpf_task_cpu(p), idle;
	struct task_ctx *t = task__ctx(p);
	struct cpu_ctx *c;
	bool moved;

	if (!t)
		return false;
	if (scx_bpf_test_and_clear_cpu_idle(cpu))
		idle = cpu;
	else
		idle = task__is_bound(p) ? -1 : scx_bpf_pick_idle_cpu(p->cpus_ptr, 0);
	if (idle >= 0)
		cpu = idle;
	c = cpu__ctx(cpu);
	/* Its time stood still for those that it waits with now, as if it had slept. */
	task__measure_by(t, c, cpu);
	task__woke(t, c, credit_ns);
	task__wait_begin(t, c, cpu);
	t->queued = QUEUED_BY_TIMER;
	scx_bpf_dsq_move_set_vtime(it, t->pub.vtime);
	moved = scx_bpf_dsq_move_vtime(it, p, DSQ_CPU(cpu), 0);
	if (!moved && __sync_val_compare_and_swap(&t->queued, QUEUED_BY_TIMER, 0) == QUEUED_BY_TIMER)
		task__wait_uncount(t, cpu);
	if (idle >= 0 && !cpu__claim(idle, p))
		task__kick_idle(p, cpu, task__is_bound(p));
	return moved;
}

#endif /* ENTRAIN_SCHED_LET_GO_BPF_H */
