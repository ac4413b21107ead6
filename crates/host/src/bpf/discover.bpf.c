// SPDX-License-Identifier: GPL-2.0-only
/*
 * Finds the VMs of any VMM, whatever it is called: by KVM's own list of them (discover/list.bpf.h), once one is known.
 * The first one is found here, among the open files of all processes; where a kernel keeps no such list that these
 * programs know, all of them are.
 *
 * KVM's files live in the kernel's own file system for anonymous inodes, where user space cannot choose names, so a
 * file there called "kvm-vm" or "kvm-vcpu:N" is KVM's. Its private data is the struct kvm or kvm_vcpu. All reads go
 * through probes, without locks: a VM that changes meanwhile is seen right at the next pass, and the daemon checks
 * everything against the VMM's own memory map before it relies on it.
 */
#include "discover/list.bpf.h"

char LICENSE[] SEC("license") = "GPL";

#define ANON_INODE_FS_MAGIC 0x09041934

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

/* The program's output has a bound of its own, beside the table's. */
static __always_inline bool tell(struct seq_file *seq, struct entrain_found *record)
{
	if (!seq)
		return found__add(record);
	if (told_pass != pass) {
		told_pass = pass;
		told_records = 0;
		told_tgid = 0;
	}
	if (told_tgid != record->tgid) {
		told_tgid = record->tgid;
		told_process = 0;
	}
	if (told_records >= PASS_RECORDS || told_process >= PROCESS_RECORDS)
		return false;
	told_records++;
	told_process++;
	bpf_seq_write(seq, record, sizeof(*record));
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
		out.c = kvm__node(kvm);
		out.id = task__user(task);
		tell(seq, &out);
		kvm__emit_slots(seq, kvm, BPF_CORE_READ(kvm, memslots[0]), task->tgid);
	} else if (is_vcpu(name)) {
		struct kvm_vcpu *vcpu = file->private_data;
		struct kvm *kvm = BPF_CORE_READ(vcpu, kvm);

		if (BPF_CORE_READ(kvm, mm) == task->mm && told__first(vcpu))
			vcpu__emit(seq, vcpu, kvm, task->tgid);
	}
	return 0;
}
