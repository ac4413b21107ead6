/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The kernel's structures as far as Entrain's BPF programs read them.
 *
 * Hand-written on purpose: no vmlinux.h of some kernel. Only the named members matter; libbpf finds where they are in
 * the running kernel (CO-RE), also in the BTF of modules (KVM is one on x86). Order and size here mean nothing.
 */
#ifndef ENTRAIN_KERNEL_H
#define ENTRAIN_KERNEL_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

#ifndef NULL
#define NULL ((void *)0)
#endif
#ifndef __cplusplus
typedef _Bool bool;
#define true  1
#define false 0
#endif

#define READ_ONCE(x)	 (*(const volatile typeof(x) *)&(x))
#define WRITE_ONCE(x, v) (*(volatile typeof(x) *)&(x) = (v))

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct hlist_node {
	struct hlist_node *next, **pprev;
};

struct hlist_head {
	struct hlist_node *first;
};

struct mm_struct;
struct cpumask;

/* Only of kernels with sched_ext; scx.h holds the rest of it. */
struct sched_ext_entity {
	__u32 flags;
	__u32 weight;
	__u64 tid;
	__u64 slice;
	__u64 dsq_vtime;
};

struct thread_info {
	__u32 cpu;
	__u64 preempt_count; /* arm64: the low half is the count; on x86 it is not here */
};

struct signal_struct {
	unsigned int flags;
};

struct sched_entity {
	__u64 sum_exec_runtime;
};

struct task_struct {
	struct thread_info thread_info;
	struct sched_entity se;
	struct sched_ext_entity scx;
	struct hlist_head preempt_notifiers;
	const struct cpumask *cpus_ptr;
	unsigned short migration_disabled;
	unsigned int flags;
	int prio;
	int nr_cpus_allowed;
	int pid;
	int tgid;
	unsigned in_iowait : 1;
	unsigned int on_cpu;
	unsigned int __state;
	unsigned long nvcsw; /* times that it went to sleep */
	struct signal_struct *signal;
	struct mm_struct *mm;
};

struct upid {
	int nr;
};

struct pid {
	struct upid numbers[1];
};

struct qstr {
	const unsigned char *name;
};

struct dentry {
	struct qstr d_name;
};

struct path {
	struct dentry *dentry;
};

struct super_block {
	unsigned long s_magic;
};

struct inode {
	struct super_block *i_sb;
};

struct file {
	struct path f_path;
	struct inode *f_inode;
	void *private_data;
};

/* Iterators. */
struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
};

struct bpf_iter__task_file {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
	__u32 fd;
	struct file *file;
};

/* KVM. */
struct kvm_memslots {
	__u64 generation;
	struct hlist_head id_hash[128];
	int node_idx;
};

struct kvm_memory_slot {
	struct hlist_node id_node[2];
	__u64 base_gfn;
	unsigned long npages;
	unsigned long userspace_addr;
	__u32 flags;
};

struct kvm {
	struct mm_struct *mm;
	struct kvm_memslots *memslots[1];
	int created_vcpus;
};

/* arm64: the guest's registers as KVM saved them at the last exit; sp is sp_el0. */
struct user_pt_regs {
	__u64 regs[31];
	__u64 sp;
	__u64 pc;
	__u64 pstate;
};

/* Places in sys_regs: found by name. */
enum vcpu_sysreg {
	CNTV_CVAL_EL0,
	CNTV_CTL_EL0,
};

struct kvm_cpu_context {
	struct user_pt_regs regs;
	__u64 sys_regs[2];
};

/* arm64: one of a vCPU's timers, and by how much its counter is behind the host's. */
enum kvm_arch_timers {
	TIMER_PTIMER,
	TIMER_VTIMER,
};

struct arch_timer_offset {
	__u64 *vm_offset;
};

struct arch_timer_context {
	struct arch_timer_offset offset;
	enum kvm_arch_timers timer_id;
};

/* x86: the timer of an APIC, by the guest's TSC or by the host's clock. */
struct kvm_timer {
	__s64 target_expiration;
	__u64 tscdeadline;
};

/* x86: an APIC as KVM keeps it; `regs` is the page of its registers. */
struct kvm_lapic {
	struct kvm_timer lapic_timer;
	bool apicv_active;
	void *regs;
};

struct kvm_vcpu_arch {
	struct kvm_cpu_context ctxt; /* arm64 */
	struct kvm_lapic *apic;	     /* x86 */
	__u64 last_guest_tsc;	     /* x86: at the last exit */
	__u32 virtual_tsc_khz;	     /* x86 */
};

struct preempt_notifier {
	struct hlist_node link;
};

struct kvm_vcpu {
	struct kvm *kvm;
	struct preempt_notifier preempt_notifier;
	int vcpu_id;
	struct pid *pid;
	__u64 requests;
	/* While KVM looks for a sibling that this vCPU, which spins, could yield to. */
	struct {
		bool in_spin_loop;
	} spin_loop;
	struct kvm_vcpu_arch arch;
};

#pragma clang attribute pop

/* Kernel functions that BPF may call. */
extern struct task_struct *bpf_task_from_pid(int pid) __ksym;
extern void bpf_task_release(struct task_struct *p) __ksym;
extern void bpf_rcu_read_lock(void) __ksym;
extern void bpf_rcu_read_unlock(void) __ksym;

#endif /* ENTRAIN_KERNEL_H */
