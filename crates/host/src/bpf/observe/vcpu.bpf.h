/* SPDX-License-Identifier: GPL-2.0-only */
/* The state of a vCPU: what is booked, and told its guest, when it changes. */
#ifndef ENTRAIN_OBSERVE_VCPU_BPF_H
#define ENTRAIN_OBSERVE_VCPU_BPF_H

#include "hint.bpf.h"
#include "wait.bpf.h"

/* Closes the books on the state that ends now, and begins the next one. */
static __always_inline void vcpu__enter(struct entrain_vcpu *vcpu, __u32 state, __u64 now)
{
	__u64 spent = now > vcpu->since ? now - vcpu->since : 0;

	if (vcpu->state == ENTRAIN_VCPU_RUNNING)
		vcpu->run_ns += spent;
	else if (vcpu->state == ENTRAIN_VCPU_PREEMPTED)
		vcpu->ready_ns += spent;
	else if (vcpu->state == ENTRAIN_VCPU_HALTED)
		vcpu->halted_ns += spent;
	vcpu->since = now;
	vcpu->seq++;
	WRITE_ONCE(vcpu->state, state);
}

static __always_inline void vcpu__publish(struct entrain_vcpu *vcpu, struct task_struct *task, __u32 instant)
{
	struct entrain_pairing *pairing = pairing__of(task);

	vcpu->instant = instant;
	if (!pairing)
		return;
	page__put_state(vcpu, pairing);
	page__put_instant(vcpu, pairing);
}

/* Compares the preempt count with what the guest's self-test says it must be. */
static __always_inline void selftest__sample(struct entrain_pairing *pairing, __u32 count)
{
	struct entrain_page *page = pairing->page;
	__u64 levels;

	if (!(extra_features & ENTRAIN_F_SELFTEST) || !(pairing->features & ENTRAIN_F_SELFTEST) || !page)
		return;
	levels = READ_ONCE(page->selftest_guest.levels);
	/* In the guest's interrupt handlers the count has levels of its own. */
	if (!levels || count & ~0xff)
		return;
	page->selftest_host.samples++;
	if ((count & 0xff) == levels - 1)
		page->selftest_host.matches++;
}

/* It spun, and KVM gave its pCPU to a sibling: it was not taken from it. */
static __always_inline bool vcpu__gave_up(struct entrain_vcpu *vcpu)
{
	struct kvm_vcpu *kvm_vcpu = (struct kvm_vcpu *)vcpu->kvm_vcpu;

	if (vcpu->gave_way)
		return true;
	return kvm_vcpu && bpf_core_field_exists(kvm_vcpu->spin_loop.in_spin_loop) &&
	       BPF_CORE_READ(kvm_vcpu, spin_loop.in_spin_loop);
}

static __always_inline void vcpu__switch_out(struct entrain_vcpu *vcpu, __u32 index, struct task_struct *task,
					     struct entrain_pcpu *pcpu, bool runnable, __u64 now)
{
	bool involuntary, sampled = vcpu->sampled;
	struct entrain_pairing *pairing;

	vcpu->wired = task->nr_cpus_allowed == 1;
	vcpu->extended = 0;
	vcpu->in_cs = 0;
	vcpu->sampled = 0;
	if (!runnable) {
		vcpu->gave_way = 0;
		vcpu__enter(vcpu, ENTRAIN_VCPU_HALTED, now);
		hint__remember(pcpu, vcpu, index);
		vcpu__publish(vcpu, task, vcpu__would_run(vcpu));
		return;
	}
	involuntary = !vcpu__gave_up(vcpu);
	vcpu->gave_way = 0;
	vcpu->preemptions += involuntary;
	if (vcpu->preempt_layout) {
		pairing = pairing__of(task);
		if (!sampled)
			vcpu__sample(vcpu, pairing, ENTRAIN_CRITICAL_UNKNOWN);
		if (vcpu->counted) {
			vcpu->in_cs = vcpu->level == ENTRAIN_CRITICAL_SECTION;
			vcpu->samples += involuntary;
			vcpu->preemptions_cs += involuntary && vcpu->in_cs;
			if (pairing)
				selftest__sample(pairing, vcpu->preempt_count);
		}
	}
	wait__begin(index, !involuntary	 ? ENTRAIN_WAIT_GAVE_WAY
			   : vcpu->in_cs ? ENTRAIN_WAIT_CRITICAL
					 : ENTRAIN_WAIT_PREEMPTED);
	vcpu__enter(vcpu, ENTRAIN_VCPU_PREEMPTED, now);
	vcpu__publish(vcpu, task, 0);
}

/* The vCPU that a thread runs, as a slot; 0 for all other threads. */
static __always_inline __u32 vcpu__slot(struct task_struct *task)
{
	struct entrain_ref *ref = bpf_task_storage_get(&vcpu_refs, task, 0, 0);

	return ref ? slot__of(ref->index) : 0;
}

#endif /* ENTRAIN_OBSERVE_VCPU_BPF_H */
