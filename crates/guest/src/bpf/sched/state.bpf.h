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
#include "guest_mode.h"
#include "guest_vcpud.h"
#include "../pages.bpf.h"
#include "stats.h"
#include "tunables.h"

/* cgroups with a limit at once; each has a queue from the start, which is some memory for each vCPU. */
#define LIMIT_SLOTS    256
#define LIMIT_CPUS     nr_vcpus
#define LIMIT_PREPARED 1
#include "cgroup_limit.bpf.h"

/*
 * Two queues per vCPU, ordered by virtual time: OPEN tasks may be taken over by any vCPU, PINNED ones have no other
 * vCPU to go to. A parked vCPU serves its PINNED queue alone.
 */
#define QUEUE_OPEN(cpu)	  ((__u64)(cpu))
#define QUEUE_PINNED(cpu) ((__u64)(cpu) | (1ULL << 32))

#define PF_KTHREAD 0x00200000

#define CLOCK_MONOTONIC 1

/* A load of guest_load.h, when it was brought up to date, and the work since then, ns. */
struct load {
	__u64 mean;
	__u64 at, ran;
};

struct vcpu_ctx {
	/* By the loader: there is no such CPU now. It counts as parked; hotplug has the scheduler loaded anew. */
	__u64 offline;
	/* By the loader: which last-level cache, numbered from 0. */
	__u64 llc;
	/* By the controller. */
	__u64 parked;
	__u64 host_wait;    /* how long the host lets it wait at a time, mean, ns */
	__u64 stolen_share; /* 1/1024, mean */

	/* Who waits in its two queues: changed by anybody, atomically. */
	__s64 waiting __attribute__((aligned(64))); /* tasks */
	__s64 waiting_open;			    /* ... of them in the OPEN queue */
	__s64 waiting_long;			    /* ... that are not brief (task__is_brief) */
	__s64 waiting_claim;			    /* sum of their claims, where loads are kept */
	__s64 waiting_share;			    /* sum of their shares, 1/1024 of a weight */
	__u64 claimed; /* it was found idle and kicked for a task in the queue of this vCPU; as cpu_or_none.h has it */
	__u64 idles;   /* 1: it idles */
	__u64 stayed;  /* 1: since the last look somebody has come to wait who is to start soon ... */
	__u64 watched; /* 1: ... and a timer looks whether that came true ... */
	__u64 crowded; /* 1: ... and it did not, for somebody: nobody is to start soon here */
	__u64 emptied; /* 1: since the last look nobody waited, for a moment */
	__u64 woken;   /* it idled, and a task was sent to it then, whose start is measured; 0: none is */

	/* Written by the vCPU itself, under its run-queue lock. */
	__u64 run_at __attribute__((aligned(64))); /* when the running task's account was last settled; 0: none runs */
	__u64 run_vtime;			   /* the running task's virtual time then */
	__u64 run_share;			   /* what it is charged by, 1/1024 of a weight */
	__u64 counted;	   /* the running task is charged; else nobody waited, and its clock is the queue's */
	__u64 clock;	   /* the queue's virtual time: how far those who want to run here have come */
	__u64 steal_at;	   /* the steal clock at `run_at`, ns; only while the guest is contended */
	__u64 steal_clock; /* which of the steal clocks that was; 0 with `steal_at` 0: not read */
	__u64 stay_at;	   /* when the running task came, ns */
	__u64 kicks;	   /* interrupts that it has sent to vCPUs since */
	__u64 sends;	   /* wake-ups that were sent from here in a calm guest */
	__u64 stays;	   /* the one that is sent now is to wait, and nobody is kicked for it */
	__u64 sent;	   /* the last one, when its vCPU was chosen, if it is measured; 0: it is not */
	__u64 sent_kick;   /* ... and it kicked */
	__u64 after_kick;  /* from there to the sender's next wake-up or its sleep, at least, ns, with a kick ... */
	__u64 after_stay;  /* ... and without one (cost.h) */
	__u64 hands_next;  /* 1: whoever runs next has waited for the running task, which woke it ... */
	__u64 hands_from;  /* ... and which stopped then; 0: there is none */
	__u64 handed;	   /* it runs now, after a switch of so many ns + 1; 0: it does not */
	__u64 hands;	   /* how long such tasks stay, with a switch there and one back, at least, ns (cost.h) */
	__u64 peace_until; /* so long no waking task takes the vCPU from it, ns */
	__u64 cost;	   /* of a switch here, ns (cost.h) */
	__u64 choices;	   /* calls of ops.dispatch */
	__u64 asked;	   /* when the choice began whose switch is measured; 0: none is */
	__u64 wake;	   /* how long it took, idle, from the wake-up until the task ran, mean, ns (cost.h) */
	__u64 behind;	   /* the scheduler's clock is behind CLOCK_MONOTONIC by so much here; known once it chose */
	__u64 burst;	   /* how long tasks run at a time, mean, ns (vcpu__stay) */
	__u64 ran;	   /* work since the start, ns */
	__u64 pinned_ran;  /* of `ran`, by pinned tasks */
	struct load load;
	__u64 claim;   /* of the task that runs, 0..1024; 0 = none, or loads are not kept */
	__u64 look;    /* where its search for others' work goes on */
	__u64 looks;   /* 1: it is in mask_looking */
	__u64 served;  /* `claimed`, as it was when it looked */
	__u64 again;   /* how often it has looked again for a task that is on its way to a queue */
	__u64 compare; /* 1: a tick has passed since it last compared its own work with that of others */
	struct sched_stats stats;

	/* Written by the controller. */
	__u64 seen_ran __attribute__((aligned(64))); /* at its last step ... */
	__u64 seen_steal, seen_which;		     /* ... and the steal clock */
	__u64 step_ran, step_stolen;		     /* since the one before */
	__u64 seen_pinned, pinned;		     /* at its last window */
	__u64 seen_wait, seen_preemptions, seen_seq; /* of the host's words ... */
	__u64 seen_state;			     /* ... at its last step */
} __attribute__((aligned(64)));

struct task_ctx {
	__u64 vtime; /* by the clock of the queue of `home` */
	__u64 share; /* what it is charged by, 1/1024 of a weight */
	struct limit_member limit;
	struct cgroup_member member;
	struct load load;
	__u64 ran;	    /* since it woke up, where loads are kept or the guest is contended */
	__u64 est_at;	    /* when it last went to sleep */
	__u64 waits_share;  /* what it adds to `waiting_share` of the vCPU that it waits on */
	__u32 est;	    /* what it is expected to need when it wakes up, 0..1024 */
	__u32 boost;	    /* while it waits for devices, 0..1024 */
	__u32 waits_claim;  /* what it adds to `waiting_claim` */
	__u32 waits_on;	    /* ... of this vCPU; as cpu_or_none.h has it */
	__u32 waits_pinned; /* it waits in the PINNED queue */
	__u32 waits_long;   /* it counts in `waiting_long` */
	__u32 home; /* whose clock its virtual time is measured by; as cpu_or_none.h; none: it has no place yet */
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct task_ctx);
} sched_tasks SEC(".maps");

struct vcpu_ctx vcpus[GUEST_MAX_CPUS];

/*
 * What every wake-up reads and only the controller writes, on a line of its own: whether prices decide where a task
 * goes, and whether the loads of tasks are kept because somebody goes by them.
 */
struct {
	__u64 contended;
	__u64 paced;
	__u64 furthest; /* virtual time: the clock of the busy vCPU that has come furthest, at the last step */
	__u64 wake;	/* how long an idle vCPU takes from a wake-up until the task runs, ns; 0: not known */
	__u64 send;	/* what a kick takes whoever sends it, ns; as much as the wake-up until it is known */
} mode __attribute__((aligned(64)));

/* Tasks that count in a group (cgroup_share.bpf.h): only such as have waited for a vCPU, or run while others wait. */
__s64 members __attribute__((aligned(64)));

/* As the controller saw it at its last step. */
struct sched_stats stats __attribute__((aligned(64)));

static __always_inline struct vcpu_ctx *vcpu__of(__s32 cpu)
{
	return &vcpus[(__u32)cpu & (GUEST_MAX_CPUS - 1)];
}

static __always_inline const __u64 *cpu__clock_behind(__u32 cpu)
{
	const struct vcpu_ctx *v = vcpu__of(cpu);

	return v->choices ? &v->behind : NULL;
}

static __always_inline struct task_ctx *task__of(struct task_struct *p)
{
	return bpf_task_storage_get(&sched_tasks, p, 0, 0);
}

/* Counts for the vCPU on which this code runs; whoever reads adds them up. */
#define stats__count(counter)	     (vcpu__of(bpf_get_smp_processor_id())->stats.counter++)
#define stats__count_if(is, counter) (vcpu__of(bpf_get_smp_processor_id())->stats.counter += (is) ? 1 : 0)

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

#endif /* ENTRAIN_GUEST_SCHED_STATE_H */
