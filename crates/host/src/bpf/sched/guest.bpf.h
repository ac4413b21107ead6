/* SPDX-License-Identifier: GPL-2.0-only */
/* What the host knows of a vCPU's guest: whether a thread is a vCPU, and whether its guest is in a critical section. */
#ifndef ENTRAIN_SCHED_GUEST_BPF_H
#define ENTRAIN_SCHED_GUEST_BPF_H

#include "state.bpf.h"
#include "../channel.bpf.h"

/* arm64: the mode field and the interrupt mask of the guest's saved pstate. */
#define PSTATE_MODE_MASK 0xfULL
#define PSTATE_IRQ_MASK	 0x80ULL

/* x86: AMD keeps the guest's privilege level and flags in memory; Intel's are behind vmread and out of BPF's reach. */
#define X86_EFLAGS_IF 0x200ULL

/* Whose virtualization x86 has; set by the loader. A kernel may know the types of both. */
const volatile bool x86_svm = false;
const volatile bool x86_vmx = false;

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct vmcb_save_area {
	__u8 cpl;
	__u64 rflags;
};

struct vmcb {
	struct vmcb_save_area save;
};

struct vcpu_svm {
	struct kvm_vcpu vcpu;
	struct vmcb *vmcb;
};

/* Intel: interrupts that other CPUs have posted and nobody has taken to the APIC's registers yet. */
struct pi_desc {
	unsigned long pir[4];
};

struct vcpu_vt {
	struct pi_desc pi_desc;
};

struct vcpu_vmx {
	struct vcpu_vt vt;
};

/* Before vcpu_vt was split off. */
struct vcpu_vmx___old {
	struct pi_desc pi_desc;
};

#pragma clang attribute pop

static __always_inline __u32 kvm_vcpu__level(__u64 vcpu)
{
	if (bpf_core_field_exists(struct kvm_cpu_context, regs)) {
		__u64 pstate = BPF_CORE_READ((struct kvm_vcpu *)vcpu, arch.ctxt.regs.pstate);

		if (!(pstate & PSTATE_MODE_MASK))
			return ENTRAIN_CRITICAL_USER;
		return pstate & PSTATE_IRQ_MASK ? ENTRAIN_CRITICAL_MASKED : ENTRAIN_CRITICAL_KERNEL;
	}
	if (x86_svm && bpf_core_type_exists(struct vcpu_svm)) {
		struct vcpu_svm *svm = (void *)vcpu;
		struct vmcb *vmcb = BPF_CORE_READ(svm, vmcb);

		if (!BPF_CORE_READ(vmcb, save.cpl))
			return BPF_CORE_READ(vmcb, save.rflags) & X86_EFLAGS_IF ? ENTRAIN_CRITICAL_KERNEL
										: ENTRAIN_CRITICAL_MASKED;
		return ENTRAIN_CRITICAL_USER;
	}
	return ENTRAIN_CRITICAL_UNKNOWN;
}

/*
 * What observe.bpf.c keeps of the vCPU that a thread runs; NULL where the daemon does not watch it. Its number is kept
 * with the task, and looked up when the thread leaves its CPU (task__meet_vcpu): a number that has become another
 * thread's since is no longer ours.
 */
static __always_inline struct entrain_vcpu *task__vcpu(const struct task_struct *p, const struct task_ctx *t)
{
	struct entrain_vcpu *vcpu = t->slot ? vcpu__by_index(t->slot - 1) : NULL;

	return vcpu && vcpu->tid == p->pid ? vcpu : NULL;
}

/*
 * enum entrain_critical of a vCPU thread that runs on this CPU: the guest's preempt count where the channel reaches it,
 * else what KVM last saw.
 */
static __always_inline __u32 task__critical(struct task_struct *p, const struct task_ctx *t)
{
	__u64 kvm_vcpu = kvm_vcpu__of(p);
	struct entrain_pairing *pairing;
	struct entrain_vcpu *vcpu;
	__u32 seen, count = 0;
	bool counted;

	if (!kvm_vcpu)
		return ENTRAIN_CRITICAL_UNKNOWN;
	seen = kvm_vcpu__level(kvm_vcpu);
	if (seen == ENTRAIN_CRITICAL_USER)
		return seen;
	vcpu = task__vcpu(p, t);
	if (!vcpu)
		return seen;
	pairing = vcpu__pairing(vcpu, p);
	/* Before the call below: arguments are evaluated in any order. */
	counted = vcpu__preempt_count(vcpu, pairing, seen, &count);
	return critical__level(seen, counted, count, use_spins && vcpu__spins(vcpu, pairing));
}

/* The page of a vCPU whose guest says when that one spins for a sleeping lock; else NULL. */
static __always_inline struct entrain_page *task__page(struct task_struct *p, const struct task_ctx *t)
{
	struct entrain_vcpu *vcpu = use_spins ? task__vcpu(p, t) : NULL;
	struct entrain_pairing *pairing = vcpu && READ_ONCE(vcpu->tells) ? vcpu__pairing(vcpu, p) : NULL;

	return pairing ? pairing->page : NULL;
}

/* 1 + the number that its guest gives a vCPU; 0 = it says nothing. */
static __always_inline __u64 task__number(struct task_struct *p, const struct task_ctx *t)
{
	struct entrain_page *page = task__page(p, t);

	return page ? 1 + (__u64)READ_ONCE(page->header.vcpu) : 0;
}

/* That of the vCPU which the one that this thread runs spins for. */
static __always_inline __u64 task__spins_for(struct task_struct *p, const struct task_ctx *t)
{
	struct entrain_page *page = task__page(p, t);

	return page ? READ_ONCE(page->guest.spins_for) : 0;
}

/* The same of one that may be taken off its CPU now; kept for whoever asks within this switch. */
static __always_inline __u32 task__sample(struct task_struct *p, const struct task_ctx *t, __u64 kvm_vcpu)
{
	struct entrain_pairing *pairing;
	struct entrain_vcpu *vcpu;
	__u32 seen;

	if (!kvm_vcpu)
		return ENTRAIN_CRITICAL_UNKNOWN;
	seen = kvm_vcpu__level(kvm_vcpu);
	vcpu = task__vcpu(p, t);
	if (!vcpu)
		return seen;
	pairing = seen == ENTRAIN_CRITICAL_USER ? NULL : vcpu__pairing(vcpu, p);
	vcpu__sample(vcpu, pairing, seen, use_spins && vcpu__spins(vcpu, pairing));
	vcpu->sampled = 1;
	return vcpu->level;
}

/* The same of one that leaves its CPU: what ops.dispatch has worked out is taken from there. */
static __always_inline __u32 task__sampled(struct task_struct *p, const struct task_ctx *t)
{
	struct entrain_vcpu *vcpu = task__vcpu(p, t);

	return vcpu && vcpu->sampled ? vcpu->level : task__sample(p, t, t->kvm_vcpu);
}

/*
 * Bits of kvm_vcpu.requests that say that an interrupt waits for the vCPU: KVM_REQ_IRQ_PENDING of arm64, KVM_REQ_EVENT
 * of x86 without APIC virtualization (asm/kvm_host.h: macros, which no BTF has).
 */
#define ARM64_REQ_IRQ_PENDING (1ULL << 9)
#define X86_REQ_EVENT	      (1ULL << 14)

/* The APIC's registers of requested interrupts: eight of 32 bits, 16 bytes apart (Intel SDM, table 11-1). */
#define APIC_IRR	0x200
#define APIC_IRR_WORDS	8
#define APIC_IRR_STRIDE 0x10

/* Whether a vCPU that is off its CPU has an interrupt to take. */
enum owes {
	OWES_NOTHING = 0,
	OWES_ANSWER,
	OWES_UNKNOWN,
};

/* Whether interrupts were posted that the APIC's registers do not show yet. */
static __always_inline enum owes kvm_vcpu__posted(__u64 kvm_vcpu)
{
	unsigned long pir[4] = {};

	if (!x86_vmx)
		return OWES_NOTHING;
	if (bpf_core_field_exists(struct vcpu_vmx, vt))
		bpf_core_read(pir, sizeof(pir), &((struct vcpu_vmx *)kvm_vcpu)->vt.pi_desc.pir);
	else if (bpf_core_field_exists(struct vcpu_vmx___old, pi_desc))
		bpf_core_read(pir, sizeof(pir), &((struct vcpu_vmx___old *)kvm_vcpu)->pi_desc.pir);
	else
		return OWES_UNKNOWN;
	return pir[0] | pir[1] | pir[2] | pir[3] ? OWES_ANSWER : OWES_NOTHING;
}

/* x86 with APIC virtualization (APICv, AVIC): senders write into tables that the hardware reads, and request nothing.
 */
static __always_inline enum owes kvm_vcpu__owes_apicv(__u64 kvm_vcpu)
{
	struct kvm_vcpu *vcpu = (void *)kvm_vcpu;
	struct kvm_lapic *apic;
	__u32 i, word = 0;
	void *regs;

	if (!bpf_core_field_exists(struct kvm_vcpu_arch, apic) ||
	    !bpf_core_field_exists(struct kvm_lapic, apicv_active))
		return OWES_UNKNOWN;
	apic = BPF_CORE_READ(vcpu, arch.apic);
	if (!apic || !BPF_CORE_READ(apic, apicv_active))
		return OWES_NOTHING;
	regs = BPF_CORE_READ(apic, regs);
	bpf_for (i, 0, APIC_IRR_WORDS) {
		/* SAFETY: the page is the vCPU's as long as the vCPU is; a bad address reads as 0. */
		bpf_probe_read_kernel(&word, sizeof(word), regs + APIC_IRR + i * APIC_IRR_STRIDE);
		if (word)
			return OWES_ANSWER;
	}
	return kvm_vcpu__posted(kvm_vcpu);
}

/* Whether a vCPU that is off its CPU has an interrupt to take: a sibling may spin until it has. */
static __always_inline enum owes kvm_vcpu__owes(__u64 kvm_vcpu)
{
	bool arm64 = bpf_core_field_exists(struct kvm_cpu_context, regs);

	if (!kvm_vcpu)
		return OWES_NOTHING;
	if (BPF_CORE_READ((struct kvm_vcpu *)kvm_vcpu, requests) & (arm64 ? ARM64_REQ_IRQ_PENDING : X86_REQ_EVENT))
		return OWES_ANSWER;
	return arm64 ? OWES_NOTHING : kvm_vcpu__owes_apicv(kvm_vcpu);
}

/* The page with a vCPU's guest words; NULL where nobody keeps them current, or not since its agent fell silent. */
static __always_inline struct entrain_page *task__guest_words(struct task_ctx *t, struct entrain_pairing *pairing,
							      __u64 now)
{
	struct entrain_page *page = pairing->page;
	__u64 beat;

	if (!page || !(pairing->features & ENTRAIN_F_GUEST_WORDS))
		return NULL;
	beat = READ_ONCE(page->guest.heartbeat);
	if (beat != t->beat || !t->beat_at) {
		t->beat = beat;
		t->beat_at = now;
	}
	return entrain_fresh(now, t->beat_at, ENTRAIN_GUEST_EXPIRY_NS) ? page : NULL;
}

/* Whether a vCPU wakes for a task that its guest calls latency-critical. */
static __always_inline bool task__wakes_urgently(struct task_struct *p, struct task_ctx *t, __u64 now)
{
	struct entrain_vcpu *vcpu = task__vcpu(p, t);
	struct entrain_pairing *pairing = vcpu ? vcpu__pairing(vcpu, p) : NULL;
	struct entrain_page *page = pairing ? task__guest_words(t, pairing, now) : NULL;

	return page && entrain_urgent(READ_ONCE(page->guest.latency));
}

/* It was put in front of others, or stays longer than its slice: its page counts that, from its next state on. */
static __always_inline void task__boosted(struct task_struct *p, const struct task_ctx *t)
{
	struct entrain_vcpu *vcpu = task__vcpu(p, t);

	if (vcpu)
		__sync_fetch_and_add(&vcpu->boosts, 1);
}

/* The vCPU stays after all: when it leaves its CPU, its guest is elsewhere. */
static __always_inline void task__sample_again(struct task_struct *p, const struct task_ctx *t)
{
	struct entrain_vcpu *vcpu = task__vcpu(p, t);

	if (vcpu)
		vcpu->sampled = 0;
}

/* The vCPU was to leave its CPU, and stays: when it is taken off later, it did not give way, and is another sample. */
static __always_inline void task__stayed(struct task_struct *p, const struct task_ctx *t)
{
	struct entrain_vcpu *vcpu = task__vcpu(p, t);

	if (!vcpu)
		return;
	vcpu->gave_way = 0;
	vcpu->sampled = 0;
}

/*
 * A vCPU's page says whether its slice is extended. Only in ops.dispatch, for the one that ran there: the run-queue
 * lock orders those who write its state. That it is over when it leaves its CPU is observe.bpf.c's to say.
 */
static __always_inline void task__tell_extended(struct task_struct *p, struct task_ctx *t, bool extended)
{
	struct entrain_pairing *pairing;
	struct entrain_vcpu *vcpu;

	if (t->told == extended)
		return;
	t->told = extended;
	vcpu = task__vcpu(p, t);
	if (!vcpu)
		return;
	vcpu->extended = extended;
	vcpu->seq++;
	pairing = vcpu__pairing(vcpu, p);
	if (pairing)
		page__put_state(vcpu, pairing);
}

/* Entries that are looked at for a VM: with more of one hash, those without one are not seen together. */
#define VM_PROBES 32

/* Knuth's multiplicative hash of a process id. */
static __always_inline __u32 vm__entry(__s32 tgid, __u32 probe)
{
	return (((__u32)tgid * 2654435769U >> 16) + probe) & (SCHED_MAX_VMS - 1);
}

/* 1 + the entry of a VM, made if there is none; 0 where there is no room. A function of its own for the verifier. */
__noinline __u32 vm__find(__s32 tgid)
{
	__u32 i;

	bpf_for (i, 0, VM_PROBES) {
		__u32 at = vm__entry(tgid, i);

		if (sched_vms[at].tgid == tgid)
			return 1 + at;
	}
	bpf_for (i, 0, VM_PROBES) {
		__u32 at = vm__entry(tgid, i);
		__s32 was = __sync_val_compare_and_swap(&sched_vms[at].tgid, 0, tgid);

		/* A sibling may have been quicker. */
		if (!was || was == tgid)
			return 1 + at;
	}
	return 0;
}

static __always_inline struct vm_ctx *task__vm(const struct task_ctx *t)
{
	return t->vm ? &sched_vms[(t->vm - 1) & (SCHED_MAX_VMS - 1)] : NULL;
}

/* Notes that a thread is a vCPU the first time that it is seen inside KVM_RUN. */
static __always_inline void task__meet_vcpu(struct task_struct *p, struct task_ctx *t)
{
	struct vm_ctx *vm;

	t->kvm_vcpu = kvm_vcpu__of(p);
	if (!t->kvm_vcpu)
		return;
	if (!task__vcpu(p, t))
		t->slot = vcpu__slot(p);
	if (t->pub.vcpu)
		return;
	t->pub.vcpu = 1;
	t->pub.tgid = p->tgid;
	t->vm = vm__find(p->tgid);
	vm = task__vm(t);
	if (vm)
		__sync_fetch_and_add(&vm->vcpus, 1);
}

static __always_inline void vm__forget_waits(struct vm_ctx *vm)
{
	__u32 i;

	for (i = 0; i < VM_WAITS; i++)
		vm->waits_at[i] = 0;
}

static __always_inline void task__forget_vcpu(struct task_ctx *t)
{
	struct vm_ctx *vm = task__vm(t);

	/* Whoever takes the entry next may be another one. */
	if (vm && __sync_fetch_and_add(&vm->vcpus, -1) <= 1) {
		vm__forget_waits(vm);
		WRITE_ONCE(vm->tgid, 0);
	}
	t->vm = 0;
	t->pub.vcpu = 0;
}

#endif /* ENTRAIN_SCHED_GUEST_BPF_H */
