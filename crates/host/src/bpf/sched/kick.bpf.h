/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A vCPU that kicks another one of its VM out of its halt waits for it more often than not: it halts itself soon, or
 * has given away all its work. So the kicked one is queued where its kicker runs, and a VM that hands its work around
 * stays on few CPUs, where it would otherwise wait behind another VM at every step.
 *
 * That is no reason to herd: no more may wait here than wait and run at home, so that whoever broadcasts an interrupt
 * does not gather all its siblings behind itself. And a vCPU that its own timer wakes follows nobody, whoever happens
 * to run where the timer's interrupt came.
 */
#ifndef ENTRAIN_SCHED_KICK_BPF_H
#define ENTRAIN_SCHED_KICK_BPF_H

#include "state.bpf.h"
#include "context.h"

/* Where a vCPU that wakes is queued when no CPU is idle: with its kicker, else at `cpu`. */
static __always_inline __s32 task__kicker_cpu(struct task_struct *p, const struct task_ctx *t, __s32 cpu)
{
	struct task_struct *waker = bpf_get_current_task_btf();
	__s32 here = bpf_get_smp_processor_id();
	struct cpu_ctx *c, *home;
	struct task_ctx *w;

	if (!t->pub.vcpu || here == cpu || waker->tgid != p->tgid || p->migration_disabled ||
	    !bpf_cpumask_test_cpu(here, p->cpus_ptr) || !context__is_task())
		return cpu;
	w = task__ctx(waker);
	c = cpu__ctx(here);
	home = cpu__ctx(cpu);
	if (!w || !w->pub.vcpu || !w->started)
		return cpu;
	/* The kicker does not count, since it is expected to go. */
	if (c->llc != home->llc || c->load > cpu__load(home))
		return cpu;
	return here;
}

#endif /* ENTRAIN_SCHED_KICK_BPF_H */
