/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What discovery reads of one VM: who owns it, its memory slots, its vCPUs. All reads go through probes, without locks.
 *
 * Records go either into the output of an iterator or into the table `found`, which a program of kind syscall fills.
 * Which of them is known where it is compiled (`seq` is NULL for the table).
 */
#ifndef ENTRAIN_DISCOVER_VM_H
#define ENTRAIN_DISCOVER_VM_H

#include "kernel.h"
#include "../interface.h"

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

typedef struct {
	unsigned int val;
} kuid_t;

struct cred {
	kuid_t uid;
};

/* What only these programs read; the loader takes what stands before the three underscores for the name. */
struct task_struct___owner {
	const struct cred *cred;
};

struct mm_struct___owned {
	struct task_struct *owner;
};

struct list_head {
	struct list_head *next, *prev;
};

struct xarray {
	void *xa_head;
};

struct xa_node {
	__u8 shift;
	void *slots[64];
};

struct kvm___listed {
	struct xarray vcpu_array;
	struct list_head vm_list;
};

/* x86 keeps the offset in the vCPU, arm64 in its virtual timer. */
struct arch_timer_cpu {
	struct arch_timer_context timers[2];
};

struct kvm_vcpu_arch___counter {
	__u64 l1_tsc_offset;
	struct arch_timer_cpu timer_cpu;
};

struct kvm_vcpu___counter {
	struct kvm_vcpu_arch___counter arch;
};

#pragma clang attribute pop

#define PAGE_SHIFT 12

/* Emitted slots per VM and nodes looked at per hash bucket; a QEMU guest has some 10 to 60 slots in 128 buckets. */
#define MAX_SLOTS 256
#define MAX_CHAIN 64
#define BUCKETS	  128

/* Who owns a VM's memory: the task that its process's memory is known by; NULL where there is none any more. */
static __always_inline struct task_struct *kvm__owner(struct kvm *kvm)
{
	struct mm_struct *mm = BPF_CORE_READ(kvm, mm);
	struct task_struct *owner = NULL;

	if (bpf_core_field_exists(struct mm_struct___owned, owner))
		owner = BPF_CORE_READ((struct mm_struct___owned *)mm, owner);
	return owner && BPF_CORE_READ(owner, mm) == mm ? owner : NULL;
}

static __always_inline __u32 task__user(struct task_struct *task)
{
	return BPF_CORE_READ((struct task_struct___owner *)task, cred, uid.val);
}

/* The VM's place in KVM's list of all VMs; 0 where the kernel has another. */
static __always_inline __u64 kvm__node(struct kvm *kvm)
{
	struct kvm___listed *listed = (void *)kvm;

	return bpf_core_field_exists(listed->vm_list) ? (__u64)&listed->vm_list : 0;
}

/* Takes one record. False: there is no room for more of this VM. */
static __always_inline bool tell(struct seq_file *seq, struct entrain_found *record);

/* What the slots of one VM are read with. */
struct slots {
	struct seq_file *seq;
	struct kvm *kvm;
	int tgid;
	int emitted;
	/* Address of the table of buckets, and from a slot to the node by which it is in one. */
	__u64 buckets;
	__u64 to_node;
};

static __always_inline long bucket__emit(__u32 bucket, struct slots *slots, struct seq_file *seq)
{
	struct entrain_found out = {
		.kind = ENTRAIN_FOUND_SLOT,
		.tgid = slots->tgid,
		.kvm = (__u64)slots->kvm,
	};
	struct hlist_node *node = NULL;
	int i;

	bpf_probe_read_kernel(&node, sizeof(node), (void *)(slots->buckets + bucket * sizeof(struct hlist_head)));
	for (i = 0; i < MAX_CHAIN; i++) {
		struct kvm_memory_slot *slot;

		if (!node)
			return 0;
		if (slots->emitted >= MAX_SLOTS)
			return 1;
		slot = (void *)node - slots->to_node;
		out.a = BPF_CORE_READ(slot, base_gfn) << PAGE_SHIFT;
		out.b = (__u64)BPF_CORE_READ(slot, npages) << PAGE_SHIFT;
		out.c = BPF_CORE_READ(slot, userspace_addr);
		out.id = BPF_CORE_READ(slot, flags);
		if (!tell(seq, &out))
			return 1;
		slots->emitted++;
		node = BPF_CORE_READ(node, next);
	}
	return 0;
}

/* One bucket. `bpf_loop` calls it, since kernels before 6.4 have no other loop that is not unrolled by the verifier. */
static long bucket__to_seq(__u32 bucket, struct slots *slots)
{
	return bucket__emit(bucket, slots, slots->seq);
}

static long bucket__to_table(__u32 bucket, struct slots *slots)
{
	return bucket__emit(bucket, slots, NULL);
}

static __always_inline void kvm__emit_slots(struct seq_file *seq, struct kvm *kvm, struct kvm_memslots *table, int tgid)
{
	int node_idx = BPF_CORE_READ(table, node_idx) & 1;
	struct slots slots = {
		.seq = seq,
		.kvm = kvm,
		.tgid = tgid,
		.buckets = (__u64)table + bpf_core_field_offset(struct kvm_memslots, id_hash),
		.to_node =
			bpf_core_field_offset(struct kvm_memory_slot, id_node) + node_idx * sizeof(struct hlist_node),
	};

	if (seq)
		bpf_loop(BUCKETS, bucket__to_seq, &slots, 0);
	else
		bpf_loop(BUCKETS, bucket__to_table, &slots, 0);
}

/*
 * By how much a vCPU's counter is ahead of the host's (TSC, or arm64's virtual counter): it ties the clocks of a
 * recording in the guest to those of one on the host. False where the kernel keeps it otherwise, or KVM scales the
 * counter.
 */
static __always_inline bool vcpu__counter(struct kvm_vcpu *vcpu, __u64 *ahead)
{
	struct kvm_vcpu___counter *known = (void *)vcpu;
	__u64 *behind, value = 0;

	if (bpf_core_field_exists(known->arch.l1_tsc_offset)) {
		*ahead = BPF_CORE_READ(known, arch.l1_tsc_offset);
		return true;
	}
	if (!bpf_core_field_exists(known->arch.timer_cpu) ||
	    !bpf_core_field_exists(struct arch_timer_offset, vm_offset))
		return false;
	behind = BPF_CORE_READ(known, arch.timer_cpu.timers[TIMER_VTIMER].offset.vm_offset);
	if (!behind || bpf_probe_read_kernel(&value, sizeof(value), behind))
		return false;
	*ahead = -value;
	return true;
}

static __always_inline bool vcpu__emit(struct seq_file *seq, struct kvm_vcpu *vcpu, struct kvm *kvm, int tgid)
{
	struct entrain_found out = {
		.kind = ENTRAIN_FOUND_VCPU,
		.tgid = tgid,
		.kvm = (__u64)kvm,
		.a = (__u64)vcpu,
		.id = BPF_CORE_READ(vcpu, vcpu_id),
		.tid = BPF_CORE_READ(vcpu, pid, numbers[0].nr),
	};

	out.c = vcpu__counter(vcpu, &out.b);
	return tell(seq, &out);
}

#endif /* ENTRAIN_DISCOVER_VM_H */
