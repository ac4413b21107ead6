/* SPDX-License-Identifier: GPL-2.0-only */
/* cpu.max as it bears on turns. The limits themselves are kept by cgroup_limit.bpf.h. */
#ifndef ENTRAIN_SCHED_LIMIT_BPF_H
#define ENTRAIN_SCHED_LIMIT_BPF_H

#include "state.bpf.h"

/* ops.running: the turn lasts as long as there is time for it; a task that has none leaves at once. */
static __always_inline void task__limit_begins(struct task_struct *p, struct task_ctx *t, __s32 cpu, __u64 now)
{
	__u64 slice = p->scx.slice, turn;

	if (!READ_ONCE(limited.groups) || !slice)
		return;
	turn = limit__begin(p, &t->limit, cpu, slice, now);
	if (!turn)
		scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);
	else if (turn < slice)
		scx_bpf_task_set_slice(p, turn);
}

/* The same for one that goes on with a new turn. Returns its slice. */
static __always_inline __u64 task__limit_goes_on(struct task_ctx *t, __s32 cpu, __u64 slice, __u64 now)
{
	if (!READ_ONCE(limited.groups) || !t->limit.slot)
		return slice;
	/* It was found to have time a moment ago; if that has gone to others, the next tick looks again. */
	return entrain_max(limit__turn(t->limit.slot, cpu, slice, now), 1);
}

#endif /* ENTRAIN_SCHED_LIMIT_BPF_H */
