/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What a scheduler that is compiled natively shares with the simulated kernel.
 *
 * Each machine has its own copy of the shared object, so that all globals and maps are the machine's own. The simulated
 * kernel sets `sim` before it calls an operation; the object calls back through `sim.calls`. src/native/ is the mirror
 * in Rust, and both sides compare SIM_ABI and the size of these structures when an object is loaded.
 */
#ifndef ENTRAIN_SIM_H
#define ENTRAIN_SIM_H

#include <linux/types.h>

/* Raised by each change of the structures below. */
#define SIM_ABI 8

struct task_struct;
struct cgroup;
struct cpumask;

/* What the object asks of the kernel. `m` is the machine; the kernel function that each stands for has the same name,
 * with the prefix scx_bpf_ where it has one. */
struct sim_calls {
	void *(*alloc)(void *memory, __u64 size); /* zeroed, and freed with the object */
	__s32 (*select_cpu_dfl)(void *m, __u64 task, __s32 prev, __u64 wake_flags, _Bool *idle);
	__s32 (*select_cpu_and)(void *m, __u64 task, __s32 prev, __u64 wake_flags, const struct cpumask *, __u64 flags);
	__s32 (*create_dsq)(void *m, __u64 dsq, __s32 node);
	void (*dsq_insert)(void *m, __u64 task, __u64 dsq, __u64 slice, __u64 vtime, __u64 flags, _Bool by_vtime);
	_Bool (*dsq_move_to_local)(void *m, __u64 dsq, __u64 flags);
	__s32 (*dsq_nr_queued)(void *m, __u64 dsq);
	struct task_struct *(*dsq_peek)(void *m, __u64 dsq);
	__s32 (*iter_new)(void *m, __u64 *it, __u64 dsq, __u64 flags);
	struct task_struct *(*iter_next)(void *m, __u64 *it);
	void (*iter_destroy)(void *m, __u64 *it);
	_Bool (*dsq_move)(void *m, __u64 *it, __u64 task, __u64 dsq, __u64 flags, _Bool by_vtime);
	struct task_struct *(*tid_to_task)(void *m, __u64 tid);
	_Bool (*task_set_slice)(void *m, __u64 task, __u64 slice);
	void (*kick_cpu)(void *m, __s32 cpu, __u64 flags);
	__s32 (*task_cpu)(void *m, __u64 task);
	_Bool (*task_running)(void *m, __u64 task);
	struct task_struct *(*cpu_curr)(void *m, __s32 cpu);
	_Bool (*test_and_clear_cpu_idle)(void *m, __s32 cpu);
	__s32 (*pick_idle_cpu)(void *m, const struct cpumask *allowed, __u64 flags);
	/* Of a node, or (-1) of the machine; `smt`: the CPUs of cores that idle as a whole. */
	const struct cpumask *(*idle_cpumask)(void *m, __s32 node, _Bool smt);
	const struct cpumask *(*online_cpumask)(void *m);
	void (*cpuperf_set)(void *m, __s32 cpu, __u32 perf);
	void (*timer_start)(void *m, __u32 timer, __u64 ns, _Bool pinned);
	void (*exit)(void *m, __s64 code, const char *text, _Bool error);
	struct task_struct *(*task_from_pid)(void *m, __s32 pid);
	void (*dsq_reenq)(void *m, __u64 dsq, __u64 flags);
	void (*gap)(void *m); /* what other CPUs do may come here */
};

/* What the object has done since the kernel looked last: what an operation costs. */
struct sim_done {
	__u64 helpers; /* calls of helpers and kernel functions */
	__u64 lookups; /* in maps and storages */
	__u64 atomics;
	__u64 inlined; /* of `lookups`: those that the verifier replaces by instructions */
	__u64 shared;  /* of `atomics`: on what is not one CPU's or task's own; only of the guest's scheduler */
};

/* The machine's moment, as the kernel sets it before it calls the object. */
struct sim_context {
	const struct sim_calls *calls;
	void *machine;
	void *memory;	/* whoever owns what `alloc` gives */
	__u64 now;	/* ns */
	__u64 rq_clock; /* what scx_bpf_now() says: at most `now` */
	__u64 frozen;	/* times that it was less */
	struct sim_done done;
	__u32 cpu; /* the CPU on which the code runs */
	__u32 nr_cpus;
	__u32 nr_llcs;	/* of the whole machine, all as large as each other; neighbours have neighbouring numbers */
	__u32 nr_nodes; /* the same */
	__u32 threads;	/* of a core, the same */
	__u32 arm64;	/* 1: KVM keeps the guest's registers as arm64's does; 0: as AMD's */
	__u32 intel;	/* 1: a machine of Intel's, which keeps them out of BPF's reach */
	__u32 abi;	/* SIM_ABI, set by the object */
	__u32 races;	/* operations of several CPUs run at once: sim_gap() is a gap */
	__u32 spins;	/* bpf_spin_locks that are held: nobody else comes in between */
	struct task_struct *current;
	struct task_struct *subjects[2]; /* the tasks that the operation is on: kf_tasks of the kernel */
};

/* Where the fields of one task are that the kernel reads and writes. */
struct sim_task_fields {
	struct task_struct *task;
	__u64 *slice;
	__u64 *vtime;
	__u64 *tid;
	__u32 *flags;  /* of scx */
	__u32 *weight; /* of scx */
	__u64 *sum_exec;
	unsigned long *nvcsw;
	__u64 *preempt_count; /* of thread_info */
};

/* What is fixed when a task is made. */
struct sim_task_args {
	__u64 id;
	__s32 pid;
	__s32 tgid;
	__s32 prio;
	__s32 nr_cpus_allowed;
	__u32 flags; /* PF_* */
	__u32 pad;
	const struct cpumask *allowed;
	void *kvm_vcpu; /* of sim_vcpu_new(), NULL: the thread is no vCPU */
};

/* Where the fields of one struct kvm_vcpu are that KVM writes. */
struct sim_vcpu_fields {
	void *kvm_vcpu;
	__u64 *pstate;	     /* arm64: of the guest, as saved at the last exit */
	__u64 *pc;	     /* arm64: the same */
	__u8 *cpl;	     /* AMD: the same */
	__u64 *rflags;	     /* AMD: the same */
	__u64 *requests;     /* KVM_REQ_* */
	__u32 *irr;	     /* x86 with APIC virtualization: a word of requested interrupts; else NULL */
	_Bool *in_spin_loop; /* KVM looks for a sibling to yield to */
};

/* The operations that a scheduler implements; NULL where it does not. */
struct sim_ops {
	__s32 (*select_cpu)(struct task_struct *p, __s32 prev_cpu, __u64 wake_flags);
	void (*enqueue)(struct task_struct *p, __u64 enq_flags);
	void (*dequeue)(struct task_struct *p, __u64 deq_flags);
	void (*dispatch)(__s32 cpu, struct task_struct *prev);
	void (*tick)(struct task_struct *p);
	void (*runnable)(struct task_struct *p, __u64 enq_flags);
	void (*running)(struct task_struct *p);
	void (*stopping)(struct task_struct *p, _Bool runnable);
	void (*quiescent)(struct task_struct *p, __u64 deq_flags);
	_Bool (*yield)(struct task_struct *from, struct task_struct *to);
	void (*set_weight)(struct task_struct *p, __u32 weight);
	void (*set_cpumask)(struct task_struct *p, const struct cpumask *allowed);
	void (*update_idle)(__s32 cpu, _Bool idle);
	void (*cpu_online)(__s32 cpu);
	void (*cpu_offline)(__s32 cpu);
	void (*enable)(struct task_struct *p);
	void (*cgroup_set_weight)(struct cgroup *c, __u32 weight);
	void (*cgroup_exit)(struct cgroup *c);
	void (*cgroup_move)(struct task_struct *p, struct cgroup *from, struct cgroup *to);
	void (*cgroup_set_bandwidth)(struct cgroup *c, __u64 period_us, __u64 quota_us, __u64 burst_us);
	__s32 (*init)(void);
	__u64 flags;
	__u64 timeout_ms;
};

#endif /* ENTRAIN_SIM_H */
