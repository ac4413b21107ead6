/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * arm64: waiting in a guest that does not trap. KVM traps `wfe` where others wait for the CPU as the vCPU comes to it
 * (kvm_arch_vcpu_load()), and not where it came alone, whoever comes later. Its guest's preempt count is above 0 as it
 * waits: taken off its CPU then, it looks like one that holds something. Where guests wait is learnt from the waits
 * that do trap: a kernel has a few such loops, and they stay where they are.
 *
 * Threat model: a guest can make up places. Those of a VM count for its own vCPUs alone, and one that stands there only
 * loses its claim to the front of the queue.
 */
#ifndef ENTRAIN_SCHED_UNTRAPPED_BPF_H
#define ENTRAIN_SCHED_UNTRAPPED_BPF_H

#include "guest.bpf.h"

/* A loop that waits for an event reaches so far ahead of the `wfe` that traps and behind it, in bytes, at most. */
#define WAIT_LOOP 32

/* The guest of the thread that runs waits for an event at `pc`, which has trapped. */
static __always_inline void task__waits_at(const struct task_ctx *t, __u64 pc)
{
	struct vm_ctx *vm = task__vm(t);
	__u32 i;

	if (!vm)
		return;
	for (i = 0; i < VM_WAITS; i++)
		if (vm->waits_at[i] == pc)
			return;
	/* Two that come at once may count as one: the other one traps again. */
	vm->waits_at[vm->waits++ % VM_WAITS] = pc;
}

/*
 * Whether a guest that is not on a CPU stands where it, or a sibling, has waited before. `number` as in task_ctx.vm. A
 * function of its own for the verifier.
 */
__noinline int vm__waits(__u32 number, __u64 kvm_vcpu)
{
	const struct vm_ctx *vm = &sched_vms[(number - 1) & (SCHED_MAX_VMS - 1)];
	__u64 pc;
	__u32 i;

	if (!number || !kvm_vcpu || !vm->waits || !bpf_core_field_exists(struct kvm_cpu_context, regs))
		return 0;
	pc = BPF_CORE_READ((struct kvm_vcpu *)kvm_vcpu, arch.ctxt.regs.pc);
	for (i = 0; i < VM_WAITS; i++)
		if (pc - vm->waits_at[i] + WAIT_LOOP <= 2 * WAIT_LOOP)
			return 1;
	return 0;
}

/* Whether what the guest of a vCPU waits for would not trap, were it alone on its CPU, and could be told from work. */
static __always_inline bool task__may_wait_untrapped(const struct task_ctx *t)
{
	const struct vm_ctx *vm = use_untrapped && t->pub.vcpu ? task__vm(t) : NULL;

	return vm && vm->waits;
}

#endif /* ENTRAIN_SCHED_UNTRAPPED_BPF_H */
