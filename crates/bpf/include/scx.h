/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * sched_ext as far as Entrain's two schedulers use it: operations, kernel functions and constants, by hand for the same
 * reason as kernel.h. Written against 7.3; what older kernels lack is weak and asked for with bpf_ksym_exists().
 */
#ifndef ENTRAIN_SCX_H
#define ENTRAIN_SCX_H

#include "kernel.h"

struct scx_init_task_args;
struct scx_exit_task_args;
struct scx_cgroup_init_args;
struct scx_exit_info;
struct scx_dump_ctx;

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

/* Whole, not just declared: libbpf compares the kinds of what kernel functions take. */
struct cpumask {
	unsigned long bits[1];
};

struct kernfs_node {
	__u64 id;
};

struct cgroup {
	struct kernfs_node *kn;
	int level;
};

struct scx_cgroup_init_args {
	__u32 weight; /* 1..10000 */
	__u64 bw_period_us;
	__u64 bw_quota_us; /* ~0: no limit */
	__u64 bw_burst_us;
};

enum scx_exit_kind {
	SCX_EXIT_NONE = 0,
};

struct scx_exit_info {
	enum scx_exit_kind kind;
	__s64 exit_code;
	const char *reason;
	char *msg;
	char *dump;
};

struct scx_bpf_dsq_insert_vtime_args {
	__u64 dsq_id;
	__u64 slice;
	__u64 vtime;
	__u64 enq_flags;
};

#pragma clang attribute pop

/* The operations that the schedulers implement; libbpf matches them by name with the running kernel's structure. */
struct sched_ext_ops {
	__s32 (*select_cpu)(struct task_struct *p, __s32 prev_cpu, __u64 wake_flags);
	void (*enqueue)(struct task_struct *p, __u64 enq_flags);
	void (*dequeue)(struct task_struct *p, __u64 deq_flags);
	void (*dispatch)(__s32 cpu, struct task_struct *prev);
	void (*tick)(struct task_struct *p);
	void (*runnable)(struct task_struct *p, __u64 enq_flags);
	void (*running)(struct task_struct *p);
	void (*stopping)(struct task_struct *p, bool runnable);
	void (*quiescent)(struct task_struct *p, __u64 deq_flags);
	bool (*yield)(struct task_struct *from, struct task_struct *to);
	void (*set_weight)(struct task_struct *p, __u32 weight);
	void (*set_cpumask)(struct task_struct *p, const struct cpumask *cpumask);
	void (*update_idle)(__s32 cpu, bool idle);
	void (*cpu_online)(__s32 cpu);
	void (*cpu_offline)(__s32 cpu);
	__s32 (*init_task)(struct task_struct *p, struct scx_init_task_args *args);
	void (*exit_task)(struct task_struct *p, struct scx_exit_task_args *args);
	void (*enable)(struct task_struct *p);
	void (*disable)(struct task_struct *p);
	void (*dump)(struct scx_dump_ctx *ctx);
	void (*dump_cpu)(struct scx_dump_ctx *ctx, __s32 cpu, bool idle);
	void (*dump_task)(struct scx_dump_ctx *ctx, struct task_struct *p);
	__s32 (*cgroup_init)(struct cgroup *cgrp, struct scx_cgroup_init_args *args);
	void (*cgroup_exit)(struct cgroup *cgrp);
	void (*cgroup_move)(struct task_struct *p, struct cgroup *from, struct cgroup *to);
	void (*cgroup_set_weight)(struct cgroup *cgrp, __u32 weight);
	void (*cgroup_set_bandwidth)(struct cgroup *cgrp, __u64 period_us, __u64 quota_us, __u64 burst_us);
	__s32 (*init)(void);
	void (*exit)(struct scx_exit_info *info);
	__u32 dispatch_max_batch;
	__u64 flags;
	__u32 timeout_ms;
	char name[128];
};

/* Constants that the kernel may renumber are taken from the running kernel: SCX_ENUM(enq, LAST). */
enum scx_enq_flags {
	SCX_ENQ_WAKEUP = 1,
	SCX_ENQ_CPU_SELECTED = 0x20000,
	SCX_ENQ_PREEMPT = 1ULL << 32,
	SCX_ENQ_IMMED = 1ULL << 33,
	SCX_ENQ_LAST = 1ULL << 41,
};

enum scx_wake_flags {
	SCX_WAKE_FORK = 4,
	SCX_WAKE_TTWU = 8,
	SCX_WAKE_SYNC = 16,
};

enum scx_kick_flags {
	SCX_KICK_IDLE = 1 << 0,
	SCX_KICK_PREEMPT = 1 << 1,
};

enum scx_ops_flags {
	SCX_OPS_KEEP_BUILTIN_IDLE = 1 << 0,
	SCX_OPS_ENQ_LAST = 1 << 1,
	SCX_OPS_ENQ_EXITING = 1 << 2,
	SCX_OPS_TID_TO_TASK = 1 << 8,
};

enum scx_ent_flags {
	SCX_TASK_QUEUED = 1 << 0,
	SCX_TASK_REENQ_REASON_MASK = 7 << 12,
	SCX_TASK_REENQ_IMMED = 2 << 12,
};

#define SCX_ENQ(name)	       bpf_core_enum_value(enum scx_enq_flags, SCX_ENQ_##name)
/* One that kernels have only had since 7.1: 0 where the running one does not know it. */
#define SCX_ENQ_IF_KNOWN(name) (bpf_core_enum_value_exists(enum scx_enq_flags, SCX_ENQ_##name) ? SCX_ENQ(name) : 0)
#define SCX_WAKE(name)	       bpf_core_enum_value(enum scx_wake_flags, SCX_WAKE_##name)

/* Dispatch queues: part of the interface, never renumbered. */
#define SCX_DSQ_LOCAL	 ((1ULL << 63) | 2)
#define SCX_DSQ_LOCAL_ON ((1ULL << 63) | (1ULL << 62))

/* From the last task on. */
#define SCX_DSQ_ITER_REV (1ULL << 16)

struct bpf_iter_scx_dsq {
	__u64 opaque[6];
};

extern int bpf_iter_scx_dsq_new(struct bpf_iter_scx_dsq *it, __u64 dsq_id, __u64 flags) __ksym;
extern struct task_struct *bpf_iter_scx_dsq_next(struct bpf_iter_scx_dsq *it) __ksym;
extern void bpf_iter_scx_dsq_destroy(struct bpf_iter_scx_dsq *it) __ksym;
extern bool scx_bpf_dsq_move(struct bpf_iter_scx_dsq *it, struct task_struct *p, __u64 dsq_id, __u64 enq_flags) __ksym;
extern void scx_bpf_dsq_move_set_vtime(struct bpf_iter_scx_dsq *it, __u64 vtime) __ksym;
extern bool scx_bpf_dsq_move_vtime(struct bpf_iter_scx_dsq *it, struct task_struct *p, __u64 dsq_id,
				   __u64 enq_flags) __ksym;
extern struct task_struct *scx_bpf_tid_to_task(__u64 tid) __ksym;
extern __s32 scx_bpf_select_cpu_dfl(struct task_struct *p, __s32 prev_cpu, __u64 wake_flags, bool *is_idle) __ksym;
extern __s32 scx_bpf_create_dsq(__u64 dsq_id, __s32 node) __ksym;
extern void scx_bpf_dsq_insert(struct task_struct *p, __u64 dsq_id, __u64 slice, __u64 enq_flags) __ksym;
extern bool __scx_bpf_dsq_insert_vtime(struct task_struct *p, struct scx_bpf_dsq_insert_vtime_args *args) __ksym __weak;
extern void scx_bpf_dsq_insert_vtime(struct task_struct *p, __u64 dsq_id, __u64 slice, __u64 vtime,
				     __u64 enq_flags) __ksym __weak;
extern bool scx_bpf_dsq_move_to_local(__u64 dsq_id) __ksym;
/* With flags, since 7.1. To libbpf what follows the last ___ is no part of the name. */
extern bool scx_bpf_dsq_move_to_local___v2___compat(__u64 dsq_id, __u64 enq_flags) __ksym __weak;
extern __s32 scx_bpf_dsq_nr_queued(__u64 dsq_id) __ksym;
extern struct task_struct *scx_bpf_dsq_peek(__u64 dsq_id) __ksym __weak;
extern void scx_bpf_dsq_reenq(__u64 dsq_id, __u64 reenq_flags) __ksym __weak;
extern bool scx_bpf_task_set_slice(struct task_struct *p, __u64 slice) __ksym __weak;
extern void scx_bpf_kick_cpu(__s32 cpu, __u64 flags) __ksym;
extern __s32 scx_bpf_task_cpu(const struct task_struct *p) __ksym;
extern struct task_struct *scx_bpf_cpu_curr(__s32 cpu) __ksym __weak;
extern bool scx_bpf_test_and_clear_cpu_idle(__s32 cpu) __ksym;
extern const struct cpumask *scx_bpf_get_idle_cpumask(void) __ksym;
extern void scx_bpf_put_idle_cpumask(const struct cpumask *cpumask) __ksym;
extern __s32 scx_bpf_pick_idle_cpu(const struct cpumask *cpus_allowed, __u64 flags) __ksym;
extern void scx_bpf_cpuperf_set(__s32 cpu, __u32 perf) __ksym __weak;
extern __u32 scx_bpf_cpuperf_cur(__s32 cpu) __ksym __weak;
extern __u64 scx_bpf_now(void) __ksym __weak;
extern void scx_bpf_exit_bstr(__s64 exit_code, char *fmt, unsigned long long *data, __u32 data_len) __ksym;
extern void scx_bpf_error_bstr(char *fmt, unsigned long long *data, __u32 data_len) __ksym;
extern void scx_bpf_dump_bstr(char *fmt, unsigned long long *data, __u32 data_len) __ksym;
extern struct cgroup *scx_bpf_task_cgroup(struct task_struct *p) __ksym __weak;

extern struct cgroup *bpf_cgroup_ancestor(struct cgroup *cgrp, int level) __ksym;
extern struct cgroup *bpf_cgroup_from_id(__u64 cgid) __ksym;
extern void bpf_cgroup_release(struct cgroup *cgrp) __ksym;
extern bool bpf_cpumask_test_cpu(__u32 cpu, const struct cpumask *cpumask) __ksym;
extern bool bpf_cpumask_subset(const struct cpumask *src1, const struct cpumask *src2) __ksym;

/*
 * Whether a task may not leave its CPU for a moment. On kernels with CONFIG_PREEMPT_RCU each BPF program forbids it to
 * the task in which it runs, so that the current one always looks so; the kernel itself keeps those that really are
 * from ops.enqueue.
 */
static inline bool scx_migration_disabled(struct task_struct *p)
{
	return p->migration_disabled > 1 || (p->migration_disabled && bpf_get_current_task_btf() != p);
}

/* BPF_PROG as a struct_ops program: SCX_OP(name, args…); SCX_OP_SLEEPABLE where the operation may block. */
#define SCX_OP(name, args...)		SEC("struct_ops/" #name) BPF_PROG(name, ##args)
#define SCX_OP_SLEEPABLE(name, args...) SEC("struct_ops.s/" #name) BPF_PROG(name, ##args)

/* Leaves the scheduler with a message that names the program; the guest or host falls back to EEVDF. */
#define scx_error(text)                                                                                                \
	({                                                                                                             \
		static char ___fmt[] = text;                                                                           \
		unsigned long long ___param[1] = {};                                                                   \
		scx_bpf_error_bstr(___fmt, ___param, sizeof(___param));                                                \
	})

/* Leaves the scheduler in good order, with a code and a message. */
#define scx_exit(code, text)                                                                                           \
	({                                                                                                             \
		static char ___fmt[] = text;                                                                           \
		unsigned long long ___param[1] = {};                                                                   \
		scx_bpf_exit_bstr(code, ___fmt, ___param, sizeof(___param));                                           \
	})

/* Adds to a dump; only in ops.dump and its like. Arguments are numbers, or addresses of text as numbers. */
#define scx_dump(text, args...)                                                                                        \
	({                                                                                                             \
		static char ___fmt[] = text;                                                                           \
		unsigned long long ___param[] = {args};                                                                \
		scx_bpf_dump_bstr(___fmt, ___param, sizeof(___param));                                                 \
	})

/* scx_bpf_dsq_insert_vtime() by whichever name the kernel has it. */
static inline void scx_insert_vtime(struct task_struct *p, __u64 dsq_id, __u64 slice, __u64 vtime, __u64 enq_flags)
{
	if (bpf_ksym_exists(__scx_bpf_dsq_insert_vtime)) {
		struct scx_bpf_dsq_insert_vtime_args args = {
			.dsq_id = dsq_id,
			.slice = slice,
			.vtime = vtime,
			.enq_flags = enq_flags,
		};

		__scx_bpf_dsq_insert_vtime(p, &args);
	} else {
		scx_bpf_dsq_insert_vtime(p, dsq_id, slice, vtime, enq_flags);
	}
}

#endif /* ENTRAIN_SCX_H */
