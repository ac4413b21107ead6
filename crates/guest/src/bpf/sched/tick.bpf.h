/* SPDX-License-Identifier: GPL-2.0-only */
/* What a vCPU does at each tick: settles the account, tells the host, looks after one other vCPU. */
#ifndef ENTRAIN_GUEST_SCHED_TICK_H
#define ENTRAIN_GUEST_SCHED_TICK_H

#include "helper.bpf.h"
#include "park.bpf.h"
#include "task.bpf.h"

/* `p` is the task that runs. */
static __always_inline void vcpu__tick(struct task_struct *p)
{
	__s32 cpu = scx_bpf_task_cpu(p), other;
	struct vcpu_ctx *v = vcpu__of(cpu);
	struct task_ctx *t = task__of(p);
	__u64 now = scx_bpf_now();

	if (t) {
		account__settle(cpu, p, t, now);
		task__refresh_share(p, t, now);
	}
	vcpud__step(now);
	page__publish_wants(cpu);
	page__publish_runnable(cpu);
	v->compare = 1;
	if (v->parked && !task__is_pinned(p) && vcpu__kept_for(p, cpu) >= 0)
		scx_bpf_task_set_slice(p, 0);

	/* One other vCPU a tick: what waits behind a parked or preempted one gets a helper, were all kicks lost. */
	other = ++v->look % nr_vcpus;
	if (other != cpu && scx_bpf_dsq_nr_queued(QUEUE_OPEN(other)) > 0) {
		if (vcpu__of(other)->parked)
			scx_bpf_kick_cpu(other, SCX_KICK_IDLE);
		if (vcpu__of(other)->parked || host__vcpu_view(other).state == ENTRAIN_VCPU_PREEMPTED)
			helper__wake(p, other, vcpu__of(other)->parked);
	}
}

#endif /* ENTRAIN_GUEST_SCHED_TICK_H */
