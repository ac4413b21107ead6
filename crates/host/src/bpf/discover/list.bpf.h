/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The VMs of this host by KVM's own list of them, from any member on: what that costs grows with the VMs, and not with
 * what their processes have opened. The daemon learns a first member by the walk over files (`discover`), and remembers
 * the others; the list's head is one of them, and stays.
 *
 * Nothing is locked. A VM that ends is taken out of the list, and its links are poisoned, before its memory is freed: a
 * walk that meets it fails and is made again. A VM that was looked into must be in the list afterwards, as one of its
 * neighbours says, and belong to the same process.
 */
#ifndef ENTRAIN_DISCOVER_LIST_H
#define ENTRAIN_DISCOVER_LIST_H

#include "vm.bpf.h"

/* asm-generic/errno.h */
#define EAGAIN	   11
#define EOPNOTSUPP 95
#define ESTALE	   116

/* Members of the list that one walk tells of, and records of one VM: 4,096 vCPUs at most, and slots. */
#define FOUND	  16384
#define MAX_VCPUS 4096

/* What the programs below have found in their last call. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, FOUND);
	__type(key, __u32);
	__type(value, struct entrain_found);
} found SEC(".maps");

__u32 found_count = 0;

static __always_inline bool found__add(const struct entrain_found *record)
{
	__u32 at = found_count;
	struct entrain_found *entry = bpf_map_lookup_elem(&found, &at);

	if (!entry)
		return false;
	*entry = *record;
	found_count = at + 1;
	return true;
}

/* Whether the list has this member: its neighbour leads back to it. */
static __always_inline bool list__has(struct list_head *node)
{
	struct list_head *next = NULL, *back = NULL;

	return node && !bpf_probe_read_kernel(&next, sizeof(next), &node->next) &&
	       !bpf_probe_read_kernel(&back, sizeof(back), &next->prev) && back == node;
}

struct walk {
	struct list_head *at, *first;
	__s32 error;
};

static long list__step(__u32 nth, struct walk *walk)
{
	struct kvm *kvm = (void *)walk->at - bpf_core_field_offset(struct kvm___listed, vm_list);
	struct entrain_found out = {
		.kind = ENTRAIN_FOUND_MEMBER,
		.kvm = (__u64)kvm,
		.c = (__u64)walk->at,
	};
	/* The head is no VM, and what stands around it no owner. */
	struct task_struct *owner = kvm__owner(kvm);
	struct list_head *next = NULL;

	if (owner) {
		out.kind = ENTRAIN_FOUND_VM;
		out.tgid = BPF_CORE_READ(owner, tgid);
		out.a = BPF_CORE_READ(kvm, created_vcpus);
		out.id = task__user(owner);
	}
	/* Backwards: KVM puts the newest first, and who was there before is told first. */
	if (bpf_probe_read_kernel(&next, sizeof(next), &walk->at->prev)) {
		walk->error = -EAGAIN;
		return 1;
	}
	if (!found__add(&out))
		return 1;
	walk->at = next;
	return next == walk->first;
}

/* Called by the daemon: all members of the list. */
SEC("syscall")
int list_vms(struct entrain_list_args *args)
{
	struct walk walk = {.at = (void *)args->at, .first = (void *)args->at};

	found_count = 0;
	args->count = 0;
	args->error = -EOPNOTSUPP;
	if (!bpf_core_field_exists(struct kvm___listed, vm_list) ||
	    !bpf_core_field_exists(struct kvm___listed, vcpu_array) ||
	    !bpf_core_field_exists(struct mm_struct___owned, owner))
		return 0;
	args->error = -ESTALE;
	if (!list__has(walk.at))
		return 0;
	bpf_loop(FOUND, list__step, &walk, 0);
	args->count = found_count;
	args->error = walk.error;
	return 0;
}

/* An entry of an xarray that is a node: its lowest bits say so; what is below a page is none. */
static __always_inline bool entry__is_node(__u64 entry)
{
	return (entry & 3) == 2 && entry > 4096;
}

/* The levels of a tree of 64 slots a node, or 16, that hold MAX_VCPUS. */
#define LEVELS 3

static __always_inline struct kvm_vcpu *kvm__vcpu(struct kvm *kvm, __u32 nth)
{
	__u64 entry = (__u64)BPF_CORE_READ((struct kvm___listed *)kvm, vcpu_array.xa_head);
	struct xa_node *node;
	__u32 slots;
	__u64 at;
	int i;

	/* A lone first entry stands in the head itself. */
	if (!entry__is_node(entry))
		return nth ? NULL : (void *)entry;
	slots = bpf_core_field_size(struct xa_node, slots) / sizeof(void *);
	for (i = 0; i < LEVELS && entry__is_node(entry); i++) {
		node = (void *)(entry - 2);
		at = (nth >> (BPF_CORE_READ(node, shift) & 31)) & (slots - 1);
		at = (__u64)node + bpf_core_field_offset(struct xa_node, slots) + at * sizeof(void *);
		if (bpf_probe_read_kernel(&entry, sizeof(entry), (void *)at))
			return NULL;
	}
	/* An entry that is only reserved is no pointer. */
	return entry & 3 ? NULL : (void *)entry;
}

struct look {
	struct kvm *kvm;
	int tgid;
};

static long vcpu__look(__u32 nth, struct look *look)
{
	struct kvm_vcpu *vcpu = kvm__vcpu(look->kvm, nth);

	if (vcpu && BPF_CORE_READ(vcpu, kvm) == look->kvm && !vcpu__emit(NULL, vcpu, look->kvm, look->tgid))
		return 1;
	return 0;
}

/* Called by the daemon: one VM's memory slots, unless they are as they were, and its vCPUs. */
SEC("syscall")
int look_into_vm(struct entrain_look_args *args)
{
	struct kvm *kvm = (void *)args->kvm;
	struct look look = {.kvm = kvm, .tgid = args->tgid};
	struct kvm_memslots *table = BPF_CORE_READ(kvm, memslots[0]);
	__u64 generation = BPF_CORE_READ(table, generation);
	struct task_struct *owner;
	__u32 vcpus = BPF_CORE_READ(kvm, created_vcpus);

	found_count = 0;
	if (generation != args->generation)
		kvm__emit_slots(NULL, kvm, table, look.tgid);
	bpf_loop(vcpus < MAX_VCPUS ? vcpus : MAX_VCPUS, vcpu__look, &look, 0);
	args->count = found_count;
	/* What was read while the slots changed is read again. */
	if (BPF_CORE_READ(kvm, memslots[0]) == table && BPF_CORE_READ(table, generation) == generation)
		args->generation = generation;
	else
		args->generation = ENTRAIN_NO_GENERATION;
	owner = kvm__owner(kvm);
	args->error =
		owner && BPF_CORE_READ(owner, tgid) == look.tgid && list__has((void *)kvm__node(kvm)) ? 0 : -ESTALE;
	return 0;
}

#endif /* ENTRAIN_DISCOVER_LIST_H */
