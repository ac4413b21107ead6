/* SPDX-License-Identifier: GPL-2.0-only */
/* What a vCPU runs next: of its own queues, of others', or what it ran before. */
#ifndef ENTRAIN_GUEST_SCHED_DISPATCH_H
#define ENTRAIN_GUEST_SCHED_DISPATCH_H

#include "account.bpf.h"
#include "helper.bpf.h"
#include "park.bpf.h"
#include "takeover.bpf.h"

/* A parked vCPU: its pinned tasks, and what no vCPU in use may run. */
static __always_inline void vcpu__dispatch_parked(__s32 cpu, struct task_struct *prev, bool queued)
{
	struct task_struct *head;
	bool stranded = false;

	if (scx_bpf_dsq_move_to_local(QUEUE_PINNED(cpu)))
		return;
	bpf_rcu_read_lock();
	head = scx_bpf_dsq_peek(QUEUE_OPEN(cpu));
	if (head) {
		stranded = vcpu__kept_for(head, cpu) < 0;
		/* It came before this vCPU was parked. Were all in use idle, nobody would look for it. */
		if (!stranded)
			helper__wake(head, cpu, true);
	}
	bpf_rcu_read_unlock();
	if (stranded && scx_bpf_dsq_move_to_local(QUEUE_OPEN(cpu)))
		return;
	if (queued && (task__is_pinned(prev) || vcpu__kept_for(prev, cpu) < 0))
		scx_bpf_task_set_slice(prev, GUEST_SLICE_NS);
}

/* A vCPU whose queue of the kernel is empty: what it runs next. */
static __always_inline void vcpu__dispatch(__s32 cpu, struct task_struct *prev)
{
	bool queued = prev && (prev->scx.flags & SCX_TASK_QUEUED), has = false;
	__u64 now = scx_bpf_now(), open, pinned, vtime = NO_HEAD, own = 0;
	struct task_ctx *t = queued ? task__of(prev) : NULL;

	if (t)
		account__settle(cpu, prev, t, now);
	vcpud__step(now);
	if (vcpu__of(cpu)->parked) {
		vcpu__dispatch_parked(cpu, prev, queued);
		return;
	}

	/* Of the task that ran and those that wait here, the one that has had the least. */
	open = queue__head_vtime(QUEUE_OPEN(cpu));
	pinned = queue__head_vtime(QUEUE_PINNED(cpu));
	if (t) {
		vtime = own = t->vtime;
		has = true;
	}
	if (open != NO_HEAD && (!has || entrain_before(open, own))) {
		own = open;
		has = true;
	}
	if (pinned != NO_HEAD && (!has || entrain_before(pinned, own))) {
		own = pinned;
		has = true;
	}
	if (has) {
		if (vcpu__of(cpu)->compare && takeover__look(cpu, true, own))
			return;
		if (t && own == vtime) {
			scx_bpf_task_set_slice(prev, guest_slice(scx_bpf_dsq_nr_queued(QUEUE_OPEN(cpu))));
			return;
		}
		if (own == pinned && scx_bpf_dsq_move_to_local(QUEUE_PINNED(cpu)))
			return;
	}
	/* The heads may have gone meanwhile, or may not run here. */
	if (scx_bpf_dsq_move_to_local(QUEUE_OPEN(cpu)) || scx_bpf_dsq_move_to_local(QUEUE_PINNED(cpu)))
		return;
	if (queued)
		scx_bpf_task_set_slice(prev, GUEST_SLICE_NS);
	else
		takeover__look(cpu, false, 0);
}

#endif /* ENTRAIN_GUEST_SCHED_DISPATCH_H */
