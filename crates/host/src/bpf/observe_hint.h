/* SPDX-License-Identifier: GPL-2.0-only */
/* The instant hint: whether a halted vCPU would run at once if it were kicked now, kept true as pCPUs go idle and wake.
 */
#ifndef ENTRAIN_OBSERVE_HINT_H
#define ENTRAIN_OBSERVE_HINT_H

#include "observe_state.h"

/* Set by the daemon while VMs compete: it wants to hear of the next pCPU that goes idle. */
__u32 want_idle = 0;

/*
 * Whether a halted vCPU would run at once: the kernel wakes a thread on an idle CPU that shares a cache with its last
 * one if there is any, or on its only CPU.
 */
static __always_inline __u32 would_run(const struct entrain_vcpu *vcpu)
{
	__u32 cpu = vcpu->pcpu, domain;
	struct entrain_pcpu *pcpu = bpf_map_lookup_elem(&pcpus, &cpu);
	struct entrain_domain *dom;

	if (!pcpu)
		return 0;
	if (pcpu->idle)
		return 1;
	if (vcpu->wired)
		return 0;
	domain = pcpu->domain;
	dom = bpf_map_lookup_elem(&domains, &domain);
	return dom && READ_ONCE(dom->idle) > 0;
}

/* Brings the hint of one halted vCPU up to date; `slot` is 1 + its index. Stale slots change nothing. */
static __always_inline bool refresh(__u32 slot)
{
	struct entrain_vcpu *vcpu;
	struct entrain_thread *thread;
	struct entrain_pairing *pairing;
	struct task_struct *task;
	__u32 index = slot - 1, instant;

	if (!slot)
		return false;
	vcpu = entrain_vcpu_by_index(index);
	if (!vcpu || !vcpu->used || READ_ONCE(vcpu->state) != ENTRAIN_VCPU_HALTED)
		return false;
	instant = would_run(vcpu);
	if (instant == vcpu->instant)
		return false;
	vcpu->instant = instant;
	thread = bpf_map_lookup_elem(&vcpu_threads, &index);
	if (!thread)
		return false;
	task = thread->task;
	if (!task)
		return false;
	pairing = entrain_pairing_of(task);
	if (pairing)
		entrain_put_instant(vcpu, pairing);
	return true;
}

static __always_inline void idle_transition(struct entrain_pcpu *pcpu, bool idle)
{
	__u32 id = pcpu->domain;
	struct entrain_domain *dom = bpf_map_lookup_elem(&domains, &id);
	int i, before;

	if (pcpu->idle == idle)
		return;
	pcpu->idle = idle;
	pcpu->idles++;
	if (idle && READ_ONCE(want_idle)) {
		WRITE_ONCE(want_idle, 0);
		report(ENTRAIN_EVENT_IDLE, 0, 0, 0);
	}
	for (i = 0; i < ENTRAIN_PCPU_SLOTS; i++)
		pcpu->instants += refresh(pcpu->slots[i]);
	if (!dom)
		return;
	before = __sync_fetch_and_add(&dom->idle, idle ? 1 : -1);
	if (before != (idle ? 0 : 1))
		return;
	bpf_for (i, 0, ENTRAIN_DOMAIN_SLOTS) {
		if (i >= 0 && i < ENTRAIN_DOMAIN_SLOTS)
			pcpu->instants += refresh(dom->slots[i]);
	}
}

/* Remembers a vCPU that halts here, so that idle transitions find it. Direct-mapped: a newer one displaces an older. */
static __always_inline void remember(struct entrain_pcpu *pcpu, const struct entrain_vcpu *vcpu, __u32 index)
{
	__u32 id = pcpu->domain;
	struct entrain_domain *dom;

	if (vcpu->wired) {
		pcpu->slots[index % ENTRAIN_PCPU_SLOTS] = index + 1;
		return;
	}
	dom = bpf_map_lookup_elem(&domains, &id);
	if (dom)
		dom->slots[index % ENTRAIN_DOMAIN_SLOTS] = index + 1;
}

#endif /* ENTRAIN_OBSERVE_HINT_H */
