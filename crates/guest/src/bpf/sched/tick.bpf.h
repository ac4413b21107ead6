/* SPDX-License-Identifier: GPL-2.0-only */
/* What a vCPU does at each tick: settles the account, tells the host, looks after one other vCPU. */
#ifndef ENTRAIN_GUEST_SCHED_TICK_H
#define ENTRAIN_GUEST_SCHED_TICK_H

#include "helper.bpf.h"
#include "park.bpf.h"
#include "task.bpf.h"

/* One other vCPU a tick: what waits behind a parked or preempted one gets a helper, were all kicks lost. */
static __always_inline void vcpu__look_after(__s32 cpu, struct vcpu_ctx *v, struct task_struct *p)
{
	__u32 word = (v->look / 64) % nr_words;
	__u64 bits = mask__word(&mask_waiting, word);
	__s32 other;

	if (!bits) {
		v->look += 64;
		return;
	}
	other = word * 64 + bits__next(bits, v->look + 1);
	v->look = other;
	if (other == cpu)
		return;
	if (vcpu__of(other)->parked)
		vcpu__kick(other, SCX_KICK_IDLE);
	if (vcpu__of(other)->parked || host__vcpu_view(other).state == ENTRAIN_VCPU_PREEMPTED)
		helper__wake(p, vcpu__of(other)->parked);
}

/* Whether the first of a queue takes the vCPU: it came while the task that runs was left in peace. */
static __always_inline bool queue__takes(__u64 queue, const struct vcpu_ctx *v, __u64 now)
{
	__u64 vtime = queue__head_vtime(queue);

	return vtime != NO_HEAD && vcpu__makes_way(v, vtime, now);
}

/* `p` is the task that runs. */
static __always_inline void vcpu__tick(struct task_struct *p)
{
	__s32 cpu = scx_bpf_task_cpu(p);
	struct vcpu_ctx *v = vcpu__of(cpu);
	__u64 now = scx_bpf_now();
	struct task_ctx *t;

	vcpud__step(now);
	t = v->counted || accounts__matter() ? task__of(p) : NULL;
	if (t && v->run_at) {
		/* Others of its group came and went. */
		task__count_in(p, t, now);
		account__settle(cpu, p, t, now);
	} else if (v->run_at) {
		account__settle_alone(v, p, now);
	}
	load__update(&v->load, cpu, now);
	page__publish_util(cpu, now);
	page__publish_runnable(cpu);
	v->compare = 1;
	if (READ_ONCE(v->waiting) > 0 &&
	    (queue__takes(QUEUE_OPEN(cpu), v, now) || queue__takes(QUEUE_PINNED(cpu), v, now)))
		scx_bpf_task_set_slice(p, 0);
	if (v->parked && !task__is_pinned(p) && vcpu__kept_for(p, cpu) >= 0)
		scx_bpf_task_set_slice(p, 0);
	vcpu__look_after(cpu, v, p);
}

#endif /* ENTRAIN_GUEST_SCHED_TICK_H */
