/* SPDX-License-Identifier: GPL-2.0-only */
/* The scheduler's tunables, its state per task, CPU and VM, and its statistics. */
#ifndef ENTRAIN_SCHED_STATE_H
#define ENTRAIN_SCHED_STATE_H

#include "scx.h"
#include "sched_interface.h"
#include "cgroup_share.h"
#include "fair.h"
#include "slice.h"
#include "extend.h"
#include "yield.h"
#include "corun.h"
#include "place.h"
#include "perf.h"

/*
 * Tunables. The defaults need no tuning; each line says what is paid for what. Set by the loader before load.
 * Slices end at the timer tick (1/HZ), so times below one tick act through the re-check timer alone.
 */

/* In which everyone who waits should have run: longer gives throughput, shorter gives latency under full load. */
const volatile __u64 period_ns = 24 * ENTRAIN_MSEC;
/* Shortest slice: what a switch of vCPUs (caches, VM entry) may cost must stay small beside it. */
const volatile __u64 slice_min_ns = 3 * ENTRAIN_MSEC;
/* Longest slice: the wait of a task that comes when all CPUs are taken and nobody's clock is behind. */
const volatile __u64 slice_max_ns = 20 * ENTRAIN_MSEC;
/* The same while a vCPU waits whose class has a target for its wait: what a switch costs counts less there. */
const volatile __u64 slice_hurry_ns = 1 * ENTRAIN_MSEC;
/* Credit of sleepers: more lets a task that sleeps much preempt more often; less delays it. */
const volatile __u64 credit_ns = 6 * ENTRAIN_MSEC;
/* How far ahead of the queue a clock may be when its task wakes; bounds the wait after a change of queue or weight. */
const volatile __u64 debt_ns = 100 * ENTRAIN_MSEC;
/* Wake-up preemption: virtual time that a victim must be ahead, and how long it has stayed at least. */
const volatile __u64 granularity_ns = 1 * ENTRAIN_MSEC;
const volatile __u64 min_run_ns = 200 * ENTRAIN_USEC;
/*
 * The same where one vCPU wakes and another would have to go: most of them halt again within this time, and taking the
 * CPU from one costs an exit, two switches and the rest of its work. EEVDF protects what runs for a slice of 2.8 ms.
 */
const volatile __u64 min_run_vcpu_ns = 4 * ENTRAIN_MSEC;
/* Critical sections: look again after, at most per event, bucket, refill per million (extend.h). */
const volatile __u64 extend_step_ns = 100 * ENTRAIN_USEC;
const volatile __u64 extend_event_ns = 1 * ENTRAIN_MSEC;
const volatile __u64 extend_burst_ns = 10 * ENTRAIN_MSEC;
const volatile __u64 extend_rate_ppm = 50000;
/* Directed yields: a boost is pending for so long, and the target's clock may be so far ahead. */
const volatile __u64 yield_again_ns = 1 * ENTRAIN_MSEC;
const volatile __u64 yield_ahead_ns = 16 * ENTRAIN_MSEC;
/* A vCPU that was put to the front to take an interrupt has so long for it; 0 = they are not put to the front. */
const volatile __u64 answer_ns = 300 * ENTRAIN_USEC;
/*
 * A vCPU that was put to the front since it holds something is looked at after so long, and leaves when it holds
 * nothing any more: sooner costs exits, later lets it queue for the lock again, behind siblings that are not on a CPU.
 * 0 = it has the rest of the turn.
 */
const volatile __u64 lend_ns = 150 * ENTRAIN_USEC;
/* Virtual time that a task of another CPU must be behind to be taken from its queue: less is fairer from moment to
 * moment, more keeps vCPUs where their caches, TLB and timers are. */
const volatile __u64 migrate_ns = 6 * ENTRAIN_MSEC;
/* Co-scheduling: how far out of turn a sibling may be taken, and how long dependence is remembered; 0 = off. */
const volatile __u64 corun_skew_ns = 0;
const volatile __u64 corun_memory_ns = 20 * ENTRAIN_MSEC;
/* Mechanisms that can be switched off, for measurement. */
const volatile bool use_yield = true;
const volatile bool use_extend = true;
const volatile bool use_front = true;
const volatile bool use_wake_preempt = true;
const volatile bool use_follow = true;

/* Set by the loader from the host's topology. */
const volatile __u32 nr_cpus = 1;
const volatile __u32 nr_llcs = 1;

/* Why a vCPU was put to the front for a short stay only. */
#define CAME_FOR_INTERRUPT 1
#define CAME_FOR_SECTION   2

/* Why a task gives its CPU to others. */
#define LEAVES_YIELDED 1 /* itself: it was not interrupted, and has no claim to the front */
#define LEAVES_LENT    2 /* the section that it was let in for is over */

#define CLOCK_MONOTONIC 1
#define ENOMEM		12

#define DSQ_CPU(cpu) (0x10000ULL + (cpu))

/* What sched_perf.h keeps of a task. */
struct task_perf {
	struct entrain_util util;
	__u64 since;  /* on a CPU and not charged since; 0 = is not on one */
	__u64 moved;  /* for capacity, last */
	__u32 est;    /* what it used when it last ran, 0..1024 */
	__s32 home;   /* 1 + the CPU whose sum it is part of */
	__u32 target; /* 1 + the CPU that it leaves for */
	__u32 limit;  /* 1 + its uclamp.max when it was queued last; 0 = not known */
};

struct task_ctx {
	struct sched_public pub; /* first: the daemon reads it */
	__u64 started;		 /* on a CPU, and charged since; 0 = is not on one */
	__u64 waiting;		 /* runnable without a CPU since; 0 = is not */
	__u64 boosted;		 /* put to the front by a yield at; 0 = not since it last ran */
	__u64 kvm_vcpu;		 /* struct kvm_vcpu, while it is inside KVM_RUN; only for probes */
	struct entrain_extend_state extend;
	struct sched_class class; /* sched_class.h */
	struct cgroup_member member;
	__u64 beat; /* of its guest's agent, as last seen, and when that changed */
	__u64 beat_at;
	__u64 share_at; /* when `share` was worked out; 0 = never */
	__u32 class_epoch;
	__u32 cpu;	/* queued: whose queue */
	__u32 queued;	/* 1: waits in a CPU's queue and is counted there */
	__u32 level;	/* enum entrain_critical when it was last taken off a CPU */
	__u32 front;	/* 1: preempted inside a section, goes first, once */
	__u32 share;	/* what it was charged by last, 1/1024 of a weight */
	__u32 leaves;	/* LEAVES_*: it goes, even where its clock is behind; 0 = as its clock says */
	__u32 brief;	/* CAME_FOR_*: why it was put to the front, and leaves soon */
	__u32 heir;	/* 1: it goes on with the turn of the one who gave way to it */
	__u32 told;	/* 1: its page says that its slice is extended */
	__u32 fresh;	/* 1: has not been in a queue yet */
	__u32 hurries;	/* 1: waits, and its class has a target for that */
	__u32 of;	/* 1 + the CPU whose clock its own is measured by; 0 = none yet */
	__u64 together; /* its VM's time together when it was charged last */
	struct task_perf perf;
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct task_ctx);
} sched_tasks SEC(".maps");

/* One CPU. Written under its run-queue lock, read by anybody. */
struct cpu_ctx {
	__u64 vtime;	  /* of the running task when it started; its clock now is vtime + charge(now - started) */
	__u64 started;	  /* charged since, or 0 = nothing of ours runs */
	__u64 came;	  /* when the running task was put here */
	__u64 clock;	  /* as a queue's `vtime`, of the tasks of this CPU alone */
	__u64 turn;	  /* when it last went to somebody by his clock */
	__u64 next;	  /* scx tid of the task that a directed yield put to the front; 0 = none */
	__u64 next_until; /* when that is forgotten */
	__u64 granted;	  /* end of the granted extension or short stay; 0 = none */
	__u32 next_brief; /* CAME_FOR_*: why that one leaves soon */
	__u32 share;
	__s32 tgid; /* of the running vCPU, 0 = not a vCPU */
	__u32 llc;
	__u32 leave;   /* 1: the extension is over, do not ask again */
	__s32 waiting; /* tasks in its queue */
	__u32 probe;   /* the other CPU whose queue was looked at last */
	__u32 soon;    /* CAME_FOR_*: why the task that runs was let in for a short stay; 0 = was not */
	__s32 hurried; /* tasks in its queue whose class has a target for their wait, ... */
	__u32 pad;
	__u64 target; /* ... and the shortest of these targets, ns */
	__u64 pad2[2];
};

/* One CPU's performance (sched_perf.h), read by the daemon. Written under its run-queue lock, but for `removed`. */
struct sched_perf_cpu {
	struct entrain_util own;	 /* of all its tasks */
	__u64 removed;			 /* loads of tasks that have gone to other CPUs since */
	struct entrain_perf_level level; /* asked for */
	__u64 asks;			 /* times that the frequency driver was told */
	__u32 capacity;			 /* 0..1024, by the loader; 0 = not there */
	__u32 wanted;			 /* level, 0..1024 */
	__u32 claim;			 /* of the task that runs */
	__u32 demand;			 /* of the task that runs: of what is measured and claimed, the larger */
	__u32 busy;
	__u32 bound; /* 1: the task that runs may not leave */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SCHED_MAX_CPUS);
	__type(key, __u32);
	__type(value, struct cpu_ctx);
} sched_cpus SEC(".maps");

/* A timer in a map. */
struct entry_timer {
	struct bpf_timer timer;
};

/* They look again at a vCPU inside a critical section, one per CPU. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SCHED_MAX_CPUS);
	__type(key, __u32);
	__type(value, struct entry_timer);
} sched_rechecks SEC(".maps");

/* One VM, by process id of its VMM. */
struct vm_ctx {
	__s32 vcpus;	   /* threads known */
	__s32 running;	   /* on a CPU now */
	__u64 together;	   /* time in which two or more of them were on a CPU, ns ... */
	__u64 together_at; /* ... until then; goes on while `running` is above 1 */
	__u64 depends;	   /* when a vCPU last spun for a sibling */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, SCHED_MAX_VMS);
	__type(key, __s32);
	__type(value, struct vm_ctx);
} sched_vms SEC(".maps");

/* The host's sums, one per CPU. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sched_stats);
} sched_total SEC(".maps");

/* What the CPUs of an LLC share: virtual time, as far as the clocks of their tasks have come (fair.h). */
struct queue_ctx {
	__u64 vtime;
	__s32 waiting; /* tasks in the queues of its CPUs */
	__u32 pad;
	__u64 pad2[6];
};

struct queue_ctx queues[64];

/* Whether a task may run nowhere else. */
static __always_inline bool is_bound(struct task_struct *p)
{
	return p->nr_cpus_allowed == 1 || scx_migration_disabled(p);
}

static __always_inline struct queue_ctx *queue_of(__u32 llc)
{
	return &queues[llc & 63];
}

static __always_inline struct task_ctx *task_ctx(struct task_struct *p)
{
	return bpf_task_storage_get(&sched_tasks, p, 0, 0);
}

static __always_inline struct cpu_ctx *cpu_ctx(__u32 cpu)
{
	return bpf_map_lookup_elem(&sched_cpus, &cpu);
}

static __always_inline struct sched_stats *total(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&sched_total, &zero);
}

/*
 * Counts for the task and for the host. A vCPU's own counters change under its run-queue lock, but for those of the
 * looks at an extension and of trapped wfe, which another CPU's yield may meet: one of two is lost then.
 */
#define COUNT(t, field, n)                                                                                             \
	do {                                                                                                           \
		struct sched_stats *___sum = total();                                                                  \
                                                                                                                       \
		(t)->pub.stats.field += (n);                                                                           \
		if (___sum)                                                                                            \
			___sum->field += (n);                                                                          \
	} while (0)

/*
 * Whether the task that runs stays by an extension or to take an interrupt: it has been asked already. One that was let
 * in since it holds something has no such claim on others, only on the turn of the sibling that gave way to it.
 */
static __always_inline bool is_excused(const struct cpu_ctx *c)
{
	return c->granted && c->soon != CAME_FOR_SECTION;
}

/*
 * The clock that whoever wakes on a CPU is measured by. Where tasks are bound to CPUs, clocks of CPUs drift apart
 * without end; by that of the furthest, one that wakes on another CPU would wait until its neighbours had come as far.
 */
static __always_inline __u64 clock_of(const struct cpu_ctx *c)
{
	__u64 all = queue_of(c->llc)->vtime, here = c->clock;

	return (c->started || c->waiting > 0) && entrain_before(here, all) ? here : all;
}

/* The clock of the task that runs on a CPU, charged up to now. */
static __always_inline __u64 running_vtime(const struct cpu_ctx *c, __u64 now)
{
	__u64 started = c->started;

	return c->vtime + (started ? entrain_charge_share(entrain_sub(now, started), c->share) : 0);
}

#endif /* ENTRAIN_SCHED_STATE_H */
