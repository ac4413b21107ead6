/* SPDX-License-Identifier: GPL-2.0-only */
/* What the guest's scheduler remembers: of each vCPU, of each task, of the guest as a whole. */
#ifndef ENTRAIN_GUEST_SCHED_STATE_H
#define ENTRAIN_GUEST_SCHED_STATE_H

#include "cgroup_share.bpf.h"
#include "cpu_or_none.h"
#include "scx.h"
#include "entrain.h"
#include "guest_view.h"
#include "guest_wake.h"
#include "guest_preempt.h"
#include "guest_load.h"
#include "guest_vcpud.h"
#include "stats.h"
#include "tunables.h"

/*
 * Two queues per vCPU, ordered by virtual time: OPEN tasks may be taken over by any vCPU, PINNED ones have no other
 * vCPU to go to. A parked vCPU serves its PINNED queue alone.
 */
#define QUEUE_OPEN(cpu)	  ((__u64)(cpu))
#define QUEUE_PINNED(cpu) ((__u64)(cpu) | (1ULL << 32))

#define PF_KTHREAD 0x00200000

/* A load of guest_load.h, when it was brought up to date, and the work since then, ns. */
struct load {
	__u64 mean;
	__u64 at, ran;
};

struct vcpu_ctx {
	/* By the loader: there is no such CPU now. It counts as parked; hotplug has the scheduler loaded anew. */
	__u64 offline;
	/* By the controller. */
	__u64 parked;
	/* Written by the vCPU itself, under its run-queue lock. */
	__u64 idle;	   /* its kernel idles */
	__u64 run_at;	   /* when the running task's account was last settled, ns; 0 = none of ours runs */
	__u64 run_vtime;   /* the running task's virtual time then */
	__u64 run_share;   /* what it is charged by, 1/1024 of a weight */
	__u64 steal_at;	   /* the steal clock then, ns */
	__u64 steal_clock; /* which of the steal clocks that was */
	__u64 burst;	   /* how long tasks run at a time, mean, ns */
	__u64 ran;	   /* real work since the start, ns */
	__u64 stolen;	   /* withheld by the host while a task was to run, ns */
	__u64 pinned_ran;  /* of `ran`, by pinned tasks */
	struct load load;
	__u64 claim;   /* of the task that runs, 0..1024; 0 = none */
	__s64 waiting; /* sum of the claims of those that wait for it; changed by anybody, atomically */
	__u64 look;    /* where its search for others' work goes on */
	__u64 compare; /* 1: a tick has passed since it last compared its own work with that of others */
	/* Written by the controller. */
	__u64 seen_ran, seen_stolen;	   /* at its last step */
	__u64 step_ran, step_stolen;	   /* since the one before */
	__u64 seen_pinned, pinned;	   /* at its last window */
	__u64 seen_wait, seen_preemptions; /* of the host's words */
	__u64 host_wait;		   /* how long the host lets it wait at a time, mean, ns */
	__u64 stolen_share;		   /* 1/1024, mean */
} __attribute__((aligned(64)));

struct task_ctx {
	__u64 vtime;
	__u64 share; /* what it is charged by, 1/1024 of a weight; added to the total while it is runnable */
	struct cgroup_member member;
	struct load load;
	__u64 ran;	  /* since it woke up */
	__u64 joined;	  /* it has a place in virtual time */
	__u64 est_at;	  /* when it last went to sleep */
	__u32 est;	  /* what it is expected to need when it wakes up, 0..1024 */
	__u32 wait_claim; /* what it adds to `waiting` of ... */
	__u32 waits_on;	  /* ... this vCPU; as cpu_or_none.h has it */
	__u32 boost;	  /* while it waits for devices, 0..1024 */
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct task_ctx);
} sched_tasks SEC(".maps");

/* The agent's pages: its map takes the place of this one before loading, and must have the same name. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct entrain_page);
} entrain_pages SEC(".maps");

struct vcpu_ctx vcpus[ENTRAIN_MAX_VCPUS];
struct sched_stats stats;

/* The guest's virtual time: what a task of weight 100 would have had since the start, had it run as fairness wants. */
__u64 vtime_now;
/* Sum of the shares of all runnable tasks, and their number. */
__s64 total_share;
__s64 nr_runnable;

static __always_inline struct vcpu_ctx *vcpu__of(__s32 cpu)
{
	return &vcpus[(__u32)cpu & (ENTRAIN_MAX_VCPUS - 1)];
}

static __always_inline struct task_ctx *task__of(struct task_struct *p)
{
	return bpf_task_storage_get(&sched_tasks, p, 0, 0);
}

static __always_inline void stats__count(__u64 *counter)
{
	__sync_fetch_and_add(counter, 1);
}

static __always_inline bool task__may_run(struct task_struct *p, __s32 cpu)
{
	return bpf_cpumask_test_cpu(cpu, p->cpus_ptr);
}

/* The task sleeps, or has slept, until a device answers. (The macro has a `p` of its own.) */
static __always_inline bool task__waits_for_io(struct task_struct *task)
{
	return BPF_CORE_READ_BITFIELD(task, in_iowait);
}

/* The task has one vCPU only. */
static __always_inline bool task__is_pinned(struct task_struct *p)
{
	return p->nr_cpus_allowed == 1 || scx_migration_disabled(p);
}

/* A vCPU in use that the task may run on, other than `except`; -1 when there is none. */
static __noinline __s32 vcpu__kept_for(struct task_struct *p, __s32 except)
{
	__s32 cpu = -1;
	int i;

	bpf_for (i, 0, nr_vcpus) {
		if (i != except && !vcpu__of(i)->parked && task__may_run(p, i)) {
			cpu = i;
			break;
		}
	}
	return cpu;
}

#endif /* ENTRAIN_GUEST_SCHED_STATE_H */
