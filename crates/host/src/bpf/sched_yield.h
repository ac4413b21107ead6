/* SPDX-License-Identifier: GPL-2.0-only */
/* Directed yields: a vCPU that spins gives its CPU to the sibling that KVM proposes, if that is of use. */
#ifndef ENTRAIN_SCHED_YIELD_H
#define ENTRAIN_SCHED_YIELD_H

#include "sched_state.h"
#include "sched_guest.h"

/* Called with the run-queue locks of both held, so neither moves meanwhile. */
static __always_inline bool yield_directed(struct task_struct *from, struct task_ctx *f, struct task_struct *to)
{
	struct entrain_yield_limits limits = {.again = yield_again_ns, .ahead = yield_ahead_ns};
	struct entrain_yield_in in = {};
	enum entrain_yield_verdict verdict;
	__u64 now = scx_bpf_now();
	__s32 cpu = scx_bpf_task_cpu(from);
	struct task_ctx *t = task_ctx(to);
	struct cpu_ctx *c = cpu_ctx(cpu), *home = t ? cpu_ctx(t->cpu) : NULL;
	struct vm_ctx *vm;

	if (!t || !c || !home)
		return false;
	vm = vm_of(f);
	if (vm)
		vm->depends = now;

	in.sibling = from->tgid == to->tgid;
	in.waiting = t->waiting && t->queued;
	in.allowed = !to->migration_disabled && bpf_cpumask_test_cpu(cpu, to->cpus_ptr);
	in.level = t->level;
	in.boosted = t->boosted ? entrain_sub(now, t->boosted) : ~0ULL;
	in.vtime = t->pub.vtime;
	in.queue = queue_of(home->llc)->vtime;
	verdict = entrain_yield(&in, &limits);
	COUNT(t, yields[verdict & 7], 1);
	if (verdict != ENTRAIN_YIELD_HONOURED)
		return false;

	t->boosted = now;
	c->next = to->scx.tid;
	c->next_at = now;
	f->yielded = 1;
	COUNT(f, spins, 1);
	/* The kernel reschedules after a yield that was followed; with no slice left, ops.dispatch comes to decide. */
	scx_bpf_task_set_slice(from, 0);
	return true;
}

#endif /* ENTRAIN_SCHED_YIELD_H */
