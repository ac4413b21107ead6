// SPDX-License-Identifier: GPL-2.0-only
/*
 * Finds the VMs of any VMM: every open file of every process that KVM made, whatever the VMM is called.
 *
 * KVM's files live in the kernel's own file system for anonymous inodes, where user space cannot choose names, so a
 * file there called "kvm-vm" or "kvm-vcpu:N" is KVM's. Its private data is the struct kvm or kvm_vcpu. All reads go
 * through probes, without locks: a VM that changes meanwhile is seen right at the next pass, and the daemon checks
 * everything against the VMM's own memory map before it relies on it.
 */
#include "kernel.h"
#include "interface.h"

char LICENSE[] SEC("license") = "GPL";

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

typedef struct {
	unsigned int val;
} kuid_t;

struct cred {
	kuid_t uid;
};

/* What of a task only this program reads; the loader takes what stands before the three underscores for the name. */
struct task_struct___owner {
	const struct cred *cred;
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

#define ANON_INODE_FS_MAGIC 0x09041934
#define PAGE_SHIFT	    12

/* Emitted slots per VM and nodes looked at per hash bucket; a QEMU guest has some 10 to 60 slots in 128 buckets. */
#define MAX_SLOTS 256
#define MAX_CHAIN 64
#define BUCKETS	  128

static __always_inline bool is_vm(const char *name)
{
	return name[0] == 'k' && name[1] == 'v' && name[2] == 'm' && name[3] == '-' && name[4] == 'v' &&
	       name[5] == 'm' && name[6] == 0;
}

static __always_inline bool is_vcpu(const char *name)
{
	return name[0] == 'k' && name[1] == 'v' && name[2] == 'm' && name[3] == '-' && name[4] == 'v' &&
	       name[5] == 'c' && name[6] == 'p' && name[7] == 'u' && name[8] == ':';
}

/*
 * What one pass tells of at most, of all processes and of one: a VM has some 10 to 60 slots and at most 4,096 vCPUs. A
 * user may open the same VM through half a million descriptors; each VM and vCPU is told of once in a pass.
 */
#define PASS_RECORDS	262144
#define PROCESS_RECORDS 8192
#define TOLD		16384

/* The pass, by the daemon, which runs one at a time; and what it has told of so far. */
__u64 pass = 0;
__u64 told_pass = 0;
__u32 told_records = 0;
__u32 told_process = 0;
int told_tgid = 0;

/* Address of a struct kvm or kvm_vcpu -> the last pass that told of it. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, TOLD);
	__type(key, __u64);
	__type(value, __u64);
} told SEC(".maps");

static __always_inline bool told__first(const void *what)
{
	__u64 key = (__u64)what, now = pass, *last = bpf_map_lookup_elem(&told, &key);

	if (last && *last == now)
		return false;
	bpf_map_update_elem(&told, &key, &now, BPF_ANY);
	return true;
}

static void tell(struct seq_file *seq, struct entrain_found *out)
{
	if (told_pass != pass) {
		told_pass = pass;
		told_records = 0;
		told_tgid = 0;
	}
	if (told_tgid != out->tgid) {
		told_tgid = out->tgid;
		told_process = 0;
	}
	if (told_records >= PASS_RECORDS || told_process >= PROCESS_RECORDS)
		return;
	told_records++;
	told_process++;
	bpf_seq_write(seq, out, sizeof(*out));
}

/* Never used: what an iterator writes has no BTF of its own, and its type reaches Rust through the skeleton. */
struct entrain_found entrain_found_layout;

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

/* One bucket. `bpf_loop` calls it, since kernels before 6.4 have no other loop that is not unrolled by the verifier. */
static long emit_bucket(__u32 bucket, struct slots *slots)
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
		tell(slots->seq, &out);
		slots->emitted++;
		node = BPF_CORE_READ(node, next);
	}
	return 0;
}

static __always_inline void emit_slots(struct seq_file *seq, struct kvm *kvm, int tgid)
{
	struct kvm_memslots *table = BPF_CORE_READ(kvm, memslots[0]);
	int node_idx = BPF_CORE_READ(table, node_idx) & 1;
	struct slots slots = {
		.seq = seq,
		.kvm = kvm,
		.tgid = tgid,
		.buckets = (__u64)table + bpf_core_field_offset(struct kvm_memslots, id_hash),
		.to_node =
			bpf_core_field_offset(struct kvm_memory_slot, id_node) + node_idx * sizeof(struct hlist_node),
	};

	bpf_loop(BUCKETS, emit_bucket, &slots, 0);
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

SEC("iter/task_file")
int discover(struct bpf_iter__task_file *ctx)
{
	struct seq_file *seq = ctx->meta->seq;
	struct task_struct *task = ctx->task;
	struct file *file = ctx->file;
	struct entrain_found out = {};
	char name[16] = {};

	if (!task || !file || file->f_inode->i_sb->s_magic != ANON_INODE_FS_MAGIC)
		return 0;
	bpf_probe_read_kernel_str(name, sizeof(name), BPF_CORE_READ(file, f_path.dentry, d_name.name));
	if (is_vm(name)) {
		struct kvm *kvm = file->private_data;

		/* The file may have been handed to others; the VM belongs to the process whose memory it maps. */
		if (BPF_CORE_READ(kvm, mm) != task->mm || !told__first(kvm))
			return 0;
		out.kind = ENTRAIN_FOUND_VM;
		out.tgid = task->tgid;
		out.kvm = (__u64)kvm;
		out.a = BPF_CORE_READ(kvm, created_vcpus);
		out.id = BPF_CORE_READ((struct task_struct___owner *)task, cred, uid.val);
		tell(seq, &out);
		emit_slots(seq, kvm, task->tgid);
	} else if (is_vcpu(name)) {
		struct kvm_vcpu *vcpu = file->private_data;

		if (BPF_CORE_READ(vcpu, kvm, mm) != task->mm || !told__first(vcpu))
			return 0;
		out.kind = ENTRAIN_FOUND_VCPU;
		out.tgid = task->tgid;
		out.kvm = (__u64)BPF_CORE_READ(vcpu, kvm);
		out.a = (__u64)vcpu;
		out.id = BPF_CORE_READ(vcpu, vcpu_id);
		out.tid = BPF_CORE_READ(vcpu, pid, numbers[0].nr);
		out.c = vcpu__counter(vcpu, &out.b);
		tell(seq, &out);
	}
	return 0;
}
