/* SPDX-License-Identifier: GPL-2.0-only */
/* Helpers: idle vCPUs that are woken so that they take over what waits behind another one. */
#ifndef ENTRAIN_GUEST_SCHED_HELPER_H
#define ENTRAIN_GUEST_SCHED_HELPER_H

#include "host.bpf.h"

/* Kicks an idle vCPU in use that may run the task; only one that the host would run at once, if `instant`. */
static __noinline bool helper__wake_one(struct task_struct *p, __s32 except, bool instant)
{
	int i;

	bpf_for (i, 0, nr_vcpus) {
		struct vcpu_ctx *v = vcpu__of(i);
		struct guest_vcpu_view view;

		if (i == except || v->parked || !v->idle || !task__may_run(p, i))
			continue;
		view = host__vcpu_view(i);
		if (instant && view.state != ENTRAIN_VCPU_UNKNOWN && !view.instant &&
		    view.state != ENTRAIN_VCPU_RUNNING)
			continue;
		if (!scx_bpf_test_and_clear_cpu_idle(i))
			continue;
		scx_bpf_kick_cpu(i, SCX_KICK_IDLE);
		return true;
	}
	return false;
}

/*
 * Wakes an idle vCPU in use that may help with the task. Where the vCPU that has it will run it itself, only one that
 * the host would run at once is of help. Where it will not (`stuck`: it is parked), any is: were all others idle,
 * nobody else would ever look.
 */
static __noinline void helper__wake(struct task_struct *p, __s32 except, bool stuck)
{
	if (!helper__wake_one(p, except, true) && stuck)
		helper__wake_one(p, except, false);
}

#endif /* ENTRAIN_GUEST_SCHED_HELPER_H */
