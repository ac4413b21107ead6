/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * arm64: waiting in a guest that does not trap. KVM traps `wfe` where others wait for the CPU as the vCPU comes to it
 * (kvm_arch_vcpu_load()), and not where it came alone, whoever comes later. Its guest's preempt count is above 0 as it
 * waits: taken off its CPU then, it looks like one that holds something. Where guests wait is learnt from the waits
 * that do trap: a kernel has a few such loops, and they stay where they are. The loop of udelay() is one of them: a
 * holder of a lock that is taken off in it does not go first either.
 *
 * Threat model: a guest can make up places. Those of a VM count for its own vCPUs alone, and one that stands there only
 * loses its claim to the front of the queue.
 */
#ifndef ENTRAIN_SCHED_UNTRAPPED_BPF_H
#define ENTRAIN_SCHED_UNTRAPPED_BPF_H

#include "guest.bpf.h"

/* A loop that waits for an event reaches so far ahead of the `wfe` that traps and behind it, in bytes, at most. */
#define WAIT_LOOP 32

/* Addresses of the kernel: the upper half. Programs of user mode wait as well, and hold nothing. */
#define ARM64_KERNEL (1ULL << 63)

/* The guest of a vCPU's thread, which runs, waits for an event at `pc`, and that has trapped. */
static __always_inline void task__found_wait(const struct task_ctx *t, __u64 pc)
{
	struct vm_ctx *vm = task__vm(t);
	__u32 i;

	if (!vm || !(pc & ARM64_KERNEL))
		return;
	for (i = 0; i < VM_WAITS; i++)
		if (vm->waits_at[i] == pc)
			return;
	/* Two that come at once may count as one: the other one traps again. */
	vm->waits_at[vm->waits++ % VM_WAITS] = pc;
}

/*
 * Whether the guest of a vCPU that leaves its CPU stands where it, or a sibling, has waited before. A function of its
 * own for the verifier.
 */
__noinline int vm__waits(__u32 vm, __u64 kvm_vcpu)
{
	const struct vm_ctx *v = &sched_vms[vm & (SCHED_MAX_VMS - 1)];
	__u64 pc;
	__u32 i;

	if (!kvm_vcpu || !bpf_core_field_exists(struct kvm_cpu_context, regs))
		return 0;
	pc = BPF_CORE_READ((struct kvm_vcpu *)kvm_vcpu, arch.ctxt.regs.pc);
	if (!(pc & ARM64_KERNEL))
		return 0;
	for (i = 0; i < VM_WAITS; i++)
		if (pc - v->waits_at[i] + WAIT_LOOP <= 2 * WAIT_LOOP)
			return 1;
	return 0;
}

static __always_inline bool task__waits_untrapped(const struct task_ctx *t)
{
	return use_untrapped && t->vm && vm__waits(t->vm - 1, t->kvm_vcpu);
}

#endif /* ENTRAIN_SCHED_UNTRAPPED_BPF_H */
