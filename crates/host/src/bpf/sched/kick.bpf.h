/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A vCPU that kicks another one of its VM out of its halt waits for it more often than not: it halts itself soon, or
 * has given away all its work. So the kicked one is queued where its kicker runs, and a VM that hands its work around
 * stays on few CPUs, where it would otherwise wait behind another VM at every step.
 */
#ifndef ENTRAIN_SCHED_KICK_BPF_H
#define ENTRAIN_SCHED_KICK_BPF_H

#include "state.bpf.h"

/* Where a vCPU that wakes is queued when no CPU is idle: with its kicker, else at `cpu`. */
static __always_inline __s32 task__kicker_cpu(struct task_struct *p, __s32 cpu)
{
	struct task_struct *waker = bpf_get_current_task_btf();
	__s32 here = bpf_get_smp_processor_id();
	struct task_ctx *t, *w;

	if (here == cpu || waker->tgid != p->tgid || p->migration_disabled || !bpf_cpumask_test_cpu(here, p->cpus_ptr))
		return cpu;
	t = task__ctx(p);
	w = task__ctx(waker);
	return t && w && t->pub.vcpu && w->pub.vcpu && w->started ? here : cpu;
}

#endif /* ENTRAIN_SCHED_KICK_BPF_H */
