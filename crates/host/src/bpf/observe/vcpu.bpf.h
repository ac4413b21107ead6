/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The state of a vCPU: what is booked, and told its guest, when it changes.
 *
 * How a thread leads to its vCPU and what a guest is told, the program says by what it includes before: page.bpf.h, or
 * no_page.bpf.h where the kernel cannot hold a guest's page.
 */
#ifndef ENTRAIN_OBSERVE_VCPU_BPF_H
#define ENTRAIN_OBSERVE_VCPU_BPF_H

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
	struct entrain_pairing *pairing = vcpu__pairing(vcpu, task);
	bool involuntary, sampled = vcpu->sampled;

	vcpu->wired = task->nr_cpus_allowed == 1;
	vcpu->extended = 0;
	vcpu->in_cs = 0;
	vcpu->sampled = 0;
	if (!runnable) {
		vcpu->gave_way = 0;
		vcpu__enter(vcpu, ENTRAIN_VCPU_HALTED, now);
		hint__remember(pcpu, vcpu, index);
		vcpu__publish(vcpu, pairing, vcpu__would_run(vcpu));
		return;
	}
	involuntary = !vcpu__gave_up(vcpu);
	vcpu->gave_way = 0;
	vcpu->preemptions += involuntary;
	vcpu__count_section(vcpu, pairing, sampled, involuntary);
	wait__begin(index, !involuntary	 ? ENTRAIN_WAIT_GAVE_WAY
			   : vcpu->in_cs ? ENTRAIN_WAIT_CRITICAL
					 : ENTRAIN_WAIT_PREEMPTED);
	vcpu__enter(vcpu, ENTRAIN_VCPU_PREEMPTED, now);
	vcpu__publish(vcpu, pairing, 0);
}

#endif /* ENTRAIN_OBSERVE_VCPU_BPF_H */
