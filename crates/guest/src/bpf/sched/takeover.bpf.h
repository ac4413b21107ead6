/* SPDX-License-Identifier: GPL-2.0-only */
/* What a vCPU takes over from the queues of the others. The decision is guest_take_over() of guest_wake.h. */
#ifndef ENTRAIN_GUEST_SCHED_TAKEOVER_H
#define ENTRAIN_GUEST_SCHED_TAKEOVER_H

#include "host.bpf.h"

/* Virtual time of the head of a queue; NO_HEAD when it is empty. */
#define NO_HEAD (~0ULL)

__noinline __u64 queue__head_vtime(__u64 queue)
{
	struct task_struct *head;
	__u64 vtime = NO_HEAD;

	bpf_rcu_read_lock();
	head = scx_bpf_dsq_peek(queue);
	if (head)
		vtime = head->scx.dsq_vtime;
	bpf_rcu_read_unlock();
	return vtime;
}

/* Takes the head of another vCPU's queue when the policy says so; true when this one has got a task. */
__noinline int takeover__from(__s32 other, int own_work, __u64 own_vtime)
{
	struct vcpu_ctx *v = vcpu__of(other);
	struct guest_takeover t = {
		.own_work = own_work,
		.own_vtime = own_vtime,
		.head_vtime = queue__head_vtime(QUEUE_OPEN(other)),
		.slice = GUEST_SLICE_NS,
		.victim_parked = v->parked != 0,
		.victim_idle = v->idle != 0,
	};
	struct guest_vcpu_view view;

	if (t.head_vtime == NO_HEAD)
		return false;
	view = host__vcpu_view(other);
	t.victim_state = view.state;
	t.victim_instant = view.instant;
	if (!guest_take_over(&t) || !scx_bpf_dsq_move_to_local(QUEUE_OPEN(other)))
		return false;
	stats__count(&stats.takeovers);
	if (t.victim_parked || view.state == ENTRAIN_VCPU_PREEMPTED)
		stats__count(&stats.rescues);
	return true;
}

/*
 * Looks for work of others: at a few when there is own work, at all before the vCPU idles. With own work once a tick: a
 * look costs more than most wake-ups take.
 */
static __noinline bool takeover__look(__s32 cpu, int own_work, __u64 own_vtime)
{
	struct vcpu_ctx *v = vcpu__of(cpu);
	__u32 looks = own_work && nr_vcpus > LOOK_AT_BUSY ? LOOK_AT_BUSY : nr_vcpus;
	int i;

	v->compare = 0;

	bpf_for (i, 0, looks) {
		__s32 other = ++v->look % nr_vcpus;

		if (other != cpu && takeover__from(other, own_work, own_vtime))
			return true;
	}
	return false;
}

#endif /* ENTRAIN_GUEST_SCHED_TAKEOVER_H */
