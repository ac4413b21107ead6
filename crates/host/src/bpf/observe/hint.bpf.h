/* SPDX-License-Identifier: GPL-2.0-only */
/* The instant hint: whether a halted vCPU would run at once if it were kicked now, kept true as pCPUs come and go. */
#ifndef ENTRAIN_OBSERVE_HINT_BPF_H
#define ENTRAIN_OBSERVE_HINT_BPF_H

#include "../channel.bpf.h"
#include "state.bpf.h"

#define MAX_RT_PRIO 100

/*
 * Whether a vCPU that wakes gets the CPU at once from a task; `slot` names it if it is a vCPU. Under our
 * scheduler tasks of the host that compute without a pause do not keep a vCPU waiting, which had slept (place.h).
 */
static __always_inline bool task__gives_way(const struct task_struct *task, __u32 slot)
{
	if (task->pid == 0)
		return true;
	return (READ_ONCE(mode_features) & ENTRAIN_F_HOST_SCHED) && !slot && task->prio >= MAX_RT_PRIO;
}

/*
 * Whether a halted vCPU would run at once: a thread is woken on a CPU that shares a cache with its last one and is
 * idle, or gives way, if there is any, or on its only CPU.
 */
static __always_inline __u32 vcpu__would_run(const struct entrain_vcpu *vcpu)
{
	__u32 cpu = vcpu->pcpu, domain;
	struct entrain_pcpu *pcpu = bpf_map_lookup_elem(&pcpus, &cpu);
	struct entrain_domain *dom;

	if (!pcpu)
		return 0;
	if (pcpu->open)
		return 1;
	if (vcpu->wired)
		return 0;
	domain = pcpu->domain;
	dom = bpf_map_lookup_elem(&domains, &domain);
	return dom && READ_ONCE(dom->open) > 0;
}

/* Brings the hint of one halted vCPU up to date; `slot` names it. Stale slots change nothing. */
static __always_inline bool hint__refresh(__u32 slot)
{
	struct entrain_vcpu *vcpu;
	struct entrain_thread *thread;
	struct entrain_pairing *pairing;
	struct task_struct *task;
	__u32 index = slot__index(slot), instant;

	if (!slot)
		return false;
	vcpu = vcpu__by_index(index);
	if (!vcpu || !vcpu->used || READ_ONCE(vcpu->state) != ENTRAIN_VCPU_HALTED)
		return false;
	instant = vcpu__would_run(vcpu);
	if (instant == vcpu->instant)
		return false;
	vcpu->instant = instant;
	thread = bpf_map_lookup_elem(&vcpu_threads, &index);
	if (!thread)
		return false;
	task = thread->task;
	if (!task)
		return false;
	pairing = pairing__of(task);
	if (pairing)
		page__put_instant(vcpu, pairing);
	return true;
}

/* From now on a vCPU that wakes here runs at once, or no more. */
static __always_inline void pcpu__opens(struct entrain_pcpu *pcpu, bool open)
{
	struct entrain_domain *dom;
	int i, before;
	__u32 id;

	if (pcpu->open == open)
		return;
	if (open)
		pcpu->counted = pcpu->domain;
	id = pcpu->counted;
	dom = bpf_map_lookup_elem(&domains, &id);
	pcpu->open = open;
	for (i = 0; i < ENTRAIN_PCPU_SLOTS; i++)
		pcpu->instants += hint__refresh(pcpu->slots[i]);
	if (!dom)
		return;
	before = __sync_fetch_and_add(&dom->open, open ? 1 : -1);
	if (before != (open ? 0 : 1))
		return;
	bpf_for (i, 0, ENTRAIN_DOMAIN_SLOTS) {
		if (i >= 0 && i < ENTRAIN_DOMAIN_SLOTS)
			pcpu->instants += hint__refresh(dom->slots[i]);
	}
}

/* Remembers a vCPU that halts here, so that a change of its pCPU finds it. A newer one takes the place of an older. */
static __always_inline void hint__remember(struct entrain_pcpu *pcpu, const struct entrain_vcpu *vcpu, __u32 index)
{
	__u32 id = pcpu->domain;
	struct entrain_domain *dom;

	if (vcpu->wired) {
		pcpu->slots[index % ENTRAIN_PCPU_SLOTS] = slot__of(index);
		return;
	}
	dom = bpf_map_lookup_elem(&domains, &id);
	if (dom)
		dom->slots[index % ENTRAIN_DOMAIN_SLOTS] = slot__of(index);
}

#endif /* ENTRAIN_OBSERVE_HINT_BPF_H */
