/* SPDX-License-Identifier: GPL-2.0-only */
/* Whom a CPU takes next, and whether the task that runs there is to be looked at. */
#ifndef ENTRAIN_SCHED_DISPATCH_BPF_H
#define ENTRAIN_SCHED_DISPATCH_BPF_H

#include "turn.bpf.h"
#include "perf_place.bpf.h"

/* A slice that would end within this time after a tick ends with it. */
#define TICK_EARLY_NS ENTRAIN_MSEC

/* ops.dispatch. */
static __always_inline void cpu__dispatch(__s32 cpu, struct task_struct *prev)
{
	struct cpu_ctx *c = cpu__ctx(cpu);
	struct task_ctx *t = NULL;
	__u64 now = scx_bpf_now(), first = 0, clock = 0;
	__s32 behind = -1;
	bool waits, stays;

	if (!c || cpu__take_next(c, cpu, now) || cpu__take_aged(c, cpu, now))
		return;
	/* The kernel keeps the one that ran when nothing is dispatched and it has a slice. */
	if (prev && (prev->scx.flags & SCX_TASK_QUEUED))
		t = task__ctx(prev);
	if (t && perf__leaves(t))
		t = NULL;
	if (t && limit__ends(prev, &t->limit, cpu, now)) {
		/* Its group has no time left. Inside a section it borrows some, as it does of its turn. */
		if (t->started && t->pub.vcpu && task__may_stay(prev, t, c, cpu, now))
			return;
		t = NULL;
	}
	waits = cpu__first_vtime(c, cpu, &first);
	/* One that yielded makes way even where its clock is behind. */
	stays = t && t->started && !t->leaving;
	if (stays)
		clock = cpu__running_vtime(c, now);
	if (waits || stays)
		behind = cpu__behind(c, cpu, stays && (!waits || entrain_before(clock, first)) ? clock : first);
	if (waits || behind >= 0) {
		if (stays && behind < 0 && entrain_before(clock, first)) {
			task__new_turn(prev, t, c, cpu, now, true, first);
			return;
		}
		if (stays && t->pub.vcpu && task__may_stay(prev, t, c, cpu, now))
			return;
		if (behind >= 0 && scx_bpf_dsq_move_to_local(DSQ_CPU(behind)))
			return;
		if (waits && scx_bpf_dsq_move_to_local(DSQ_CPU(cpu)))
			return;
	}
	/* One that yielded goes on where nobody waits in this queue: to fetch another for each yield costs moves. */
	if (!t && cpu__fetch_any(c, cpu))
		return;
	if (t)
		task__new_turn(prev, t, c, cpu, now, waits, first);
	else
		perf__pull(cpu);
}

/*
 * ops.tick. A slice was measured out when the task began; whoever has come since must not wait for one that nobody
 * waited for. And who woke too early to take the CPU, takes it now. One that never leaves its CPU is not charged for
 * ever by what it shared with others when it came.
 */
static __always_inline void cpu__tick(struct task_struct *p)
{
	__s32 cpu = scx_bpf_task_cpu(p);
	struct cpu_ctx *c = cpu__ctx(cpu);
	struct task_ctx *t = task__ctx(p);
	__u64 now = scx_bpf_now();
	struct task_struct *first;
	struct wanting w;

	perf__tick(p);
	if (!c || !t || !c->started)
		return;
	task__renew_share(p, t, now);
	if (cpu__is_excused(c) || c->waiting <= 0)
		return;
	if (entrain_sub(now, c->turn) + TICK_EARLY_NS < cpu__slice(c)) {
		first = cpu__first_task(c, cpu);
		t = first ? task__ctx(first) : NULL;
		if (!t)
			return;
		wanting__fill(&w, t, first->scx.dsq_vtime, true, false);
		if (!wanting__takes(&w, cpu__running_vtime(c, now), c, now))
			return;
	}
	scx_bpf_task_set_slice(p, 0);
}

#endif /* ENTRAIN_SCHED_DISPATCH_BPF_H */
