/* SPDX-License-Identifier: GPL-2.0-only */
/* The scheduler's state per task, CPU and VM, its counters, and the clocks that all of it is measured by. */
#ifndef ENTRAIN_SCHED_STATE_BPF_H
#define ENTRAIN_SCHED_STATE_BPF_H

#include "scx.h"
#include "cpu_or_none.h"
#include "fair.h"
#include "slice.h"
#include "cost.h"
#include "tick.h"
#include "extend.h"
#include "yield.h"
#include "place.h"
#include "perf.h"
#include "balance.h"
#include "interface.h"
#include "tunables.bpf.h"

#define LIMIT_SLOTS SCHED_MAX_LIMITS
#define LIMIT_CPUS  nr_cpus
#include "cgroup_limit.bpf.h"

/* Why a vCPU is let in, out of turn, for a short stay. */
enum short_stay {
	STAY_FULL = 0, /* it is not: it stays as any other */
	STAY_FOR_INTERRUPT,
	STAY_FOR_SECTION,
	STAY_FOR_TIMER, /* in its own time, amid another one's turn (timer.bpf.h) */
};

/* Why a task gives its CPU to others, even where its clock is behind. */
enum leaving {
	LEAVING_NOT = 0, /* it goes as its clock says */
	LEAVING_YIELDED, /* by itself: it was not interrupted, and has no claim to the front */
	LEAVING_LENT,	 /* the section that it was let in for is over */
};

/* A task that was preempted inside a section goes to the front of its queue, once. */
enum front {
	FRONT_NOT = 0,
	FRONT_NEXT, /* when it is queued */
	FRONT_HAD,  /* has been at the front, not again at once */
};

/* Who put a task into a CPU's queue. */
enum queued {
	QUEUED_NOT = 0,
	QUEUED_BY_ITSELF, /* ops.enqueue, under its run-queue lock */
	QUEUED_BY_TIMER,  /* let_go.bpf.h, without */
};

#define CLOCK_MONOTONIC 1
#define ENOMEM		12

#define DSQ_CPU(cpu) (0x10000ULL + (cpu))

/* What the performance part keeps of a task. */
struct task_perf {
	struct entrain_util util;
	__u64 since;  /* on a CPU and not charged since; 0 = is not on one */
	__u64 moved;  /* for capacity, last */
	__u32 est;    /* what it used when it last ran, 0..1024 */
	__u32 home;   /* cpu_or_none: whose sum it is part of */
	__u32 target; /* cpu_or_none: what it leaves for */
	__u32 limit;  /* 1 + its uclamp.max when it was queued last; 0 = not known */
};

struct task_ctx {
	struct sched_public pub; /* first: the daemon reads it */
	__u64 started;		 /* on a CPU, and charged since; 0 = is not on one */
	__u64 waiting;		 /* runnable without a CPU since; 0 = is not */
	__u64 spun;		 /* when KVM last said that its guest spins; 0 = not in this stay */
	__u64 looks_at;		 /* as a spinner, for a sibling to give way to, again */
	__u64 kvm_vcpu;		 /* struct kvm_vcpu, while it is inside KVM_RUN; only for probes */
	struct entrain_extend_state extend;
	enum entrain_extend_verdict verdict; /* of the last look at an extension */
	struct sched_class class;	     /* class.bpf.h */
	struct cgroup_member member;
	struct limit_member limit;
	__u64 owed; /* virtual time of its turns that others had, and it is not charged for yet */
	__u64 beat; /* of its guest's agent, as last seen, and when that changed */
	__u64 beat_at;
	__u64 share_at; /* when `share` was worked out; 0 = never */
	__u32 class_epoch;
	__u32 cpu;		  /* queued: whose queue */
	__u32 queued;		  /* enum queued: waits in a CPU's queue and is counted there */
	__u32 level;		  /* enum entrain_critical when it was last taken off a CPU */
	__u32 polled;		  /* looks in a row that did not find it spinning, since it last did (yield.bpf.h) */
	enum front front;	  /* whether it goes to the front of its queue */
	__u32 share;		  /* what it was charged by last, 1/1024 of a weight */
	__u32 loads;		  /* queued: the share that the CPU's load counts it with */
	enum leaving leaving;	  /* whether it goes, and why */
	enum short_stay stay;	  /* why it was put to the front, and leaves soon */
	__u32 heir;		  /* 1: it goes on with the turn of the one who gave way to it ... */
	__u32 lent;		  /* 1: ... and runs in that one's time */
	__u32 told;		  /* 1: its page says that its slice is extended */
	__u32 fresh;		  /* 1: has not been in a queue yet */
	__u32 forgiven;		  /* 1: its turn comes sooner than by its clock, or it would wait too long */
	__u32 woke;		  /* 1: waits since it woke, or was sent to a CPU then */
	__u32 hurries;		  /* 1: waits, and its class has a target for that */
	__u32 measured;		  /* cpu_or_none: whose clock its own is measured by */
	__u32 llc;		  /* ... and at which LLC that CPU was */
	__u64 together;		  /* its VM's time together when it was charged last */
	__u64 due;		  /* runnable without a CPU: when its guest's timer expires; 0 = never, or not known */
	struct entrain_tick tick; /* what its guest's timers have been */
	__u64 timer_at; /* when it would be let in for that next, if it came as often as it may and no sooner */
	__u32 next_on;	/* the CPU that was to take it next by the latest yield to it */
	__u32 slot;	/* a vCPU's: 1 + its number in `vcpus`; 0 = it is not watched, as far as is known */
	__u32 counts;	/* 1: runs, and its VM's time together is counted */
	__u32 vm;	/* a vCPU's: 1 + the number of its VM's entry; 0 = it has none */
	struct task_perf perf;
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct task_ctx);
} sched_tasks SEC(".maps");

/*
 * One CPU. The first four cache lines are written under its run-queue lock and read by anybody; the fifth is written
 * by whoever queues a task here.
 */
struct cpu_ctx {
	__u64 vtime;	  /* of the running task when it started; its clock now is vtime + charge(now - started) */
	__u64 started;	  /* charged since, or 0 = nothing of ours runs */
	__u64 came;	  /* when the turn here began, or whoever is let in amid it came */
	__u64 clock;	  /* as a queue's `vtime`, of the tasks of this CPU alone */
	__u64 turn;	  /* when it last went to somebody by his clock ... */
	__u64 owner;	  /* ... and the scx tid of that one, who pays for the turn */
	__u64 next;	  /* scx tid of the task that a directed yield put to the front; 0 = none */
	__u64 next_until; /* when that is forgotten */
	__u64 granted;	  /* end of the granted extension or short stay; 0 = none */
	enum short_stay next_stay; /* why that one leaves soon */
	__u32 share;
	__s32 tgid; /* of the running vCPU, 0 = not a vCPU */
	__u32 llc;
	__u32 place;	      /* in that one's ring (llc.bpf.h) */
	__u32 refused;	      /* 1: the extension is over, do not ask again in this turn */
	__u32 probe;	      /* place in the ring, from here, of the queue that was looked at last */
	enum short_stay stay; /* why the task that runs was let in for a short stay */
	__u64 load_avg;	      /* shares of its tasks, averaged over time (balance.h), ... */
	__u64 load_at;	      /* ... until then */
	__u32 bound;	      /* 1: what runs may run nowhere else */
	__u32 offline;	      /* 1: the CPU is on its way out, or is not there */
	__u32 moved;	      /* 1: it belongs to another LLC than what waits here was measured by */
	__u32 coming;	      /* 1: when it found no task for itself, one was counted and in no queue yet */
	__u64 alarm;	      /* when its timer is due; past or 0 = it is not armed */
	__u64 cost;	      /* of a switch here, ns (cost.h) */
	__u64 choices;	      /* made here */
	__u64 asked;	      /* when the choice began whose switch is measured; 0 = none is */
	__u32 less;	      /* of the slice of this turn, ns: what its owner has repaid of its extensions */
	__u32 most;	      /* of this turn, ns; 0 = the slice */
	__u64 aged;	      /* when to look again for a task that waits too long */
	__u64 due;	      /* the first of the timers of who waits here is due then; 0 = none */
	__u64 resumes;	      /* scx tid of the one that was interrupted amid a turn that is to go on; 0 = none */
	__u32 withheld;	      /* 1: a task of a higher class has interrupted that one */
	__u32 looked;	      /* `joined`, as it was when the timer came last */
	__u64 served;	      /* `claimed`, as it was when the CPU looked */
	__u64 seen; /* what had come to the queues when it found no task for itself, as cpu__sees_more() sums it */
	__u32 vain; /* looks for the sake of turns that changed nothing, less those that did */
	__u32 resumes_stay; /* enum short_stay: what `resumes` goes on for */
	__u64 spinner;	/* scx tid of the vCPU that gave way here, as it spun, to a sibling that holds something; 0 =
			   none */
	__u64 compares; /* when queues of other CPUs are looked into again, at the soonest */
	__u64 behind; /* the scheduler's clock is behind CLOCK_MONOTONIC by so much here; known once a choice is made */
	union {
		struct {
			__s32 waiting; /* tasks in its queue */
			__u32 joined;  /* tasks that have come to its queue, ever */
		};
		__u64 arrivals; /* both, to be read and raised at once */
	};
	__s32 hurried; /* tasks in its queue whose class has a target for their wait, ... */
	__u32 again;   /* how often it has looked again for a task that is on its way to a queue */
	__u64 target;  /* ... and the shortest of these targets, ns */
	__u64 load;    /* shares of the tasks in its queue */
	__u64 claimed; /* scx tid of the waiting task for which it was found idle and kicked; 0 = none */
	__u64 idles;   /* 1 + the LLC among whose idle CPUs it is counted; 0 = it does not idle, as far as is known */
	__u64 pad3[2];
};
_Static_assert(sizeof(struct cpu_ctx) == 5 * 64, "whole cache lines");

/* One more in `arrivals`. */
#define CPU_ARRIVAL ((1ULL << 32) + 1)

struct cpu_ctx sched_cpus[SCHED_MAX_CPUS] __attribute__((aligned(64)));

/* One CPU's performance (perf_level.bpf.h), read by the daemon. Written under its run-queue lock, but for `removed`. */
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

/* A timer in a map. */
struct entry_timer {
	struct bpf_timer timer;
};

/* One per CPU: when whoever runs there is to be looked at (look.bpf.h). */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SCHED_MAX_CPUS);
	__type(key, __u32);
	__type(value, struct entry_timer);
} sched_alarms SEC(".maps");

/* Places where guests wait that are kept for each VM: Linux has about ten, mostly in its locks. */
#define VM_WAITS 12

/* One VM. */
struct vm_ctx {
	__s32 tgid;		  /* of its VMM; 0 = the entry is free */
	__s32 vcpus;		  /* threads known */
	__s32 running;		  /* on a CPU now */
	__u32 waits;		  /* places found of those below, ever */
	__u64 together;		  /* time in which two or more of them were on a CPU, ns ... */
	__u64 together_at;	  /* ... until then; goes on while `running` is above 1 */
	__u64 waits_at[VM_WAITS]; /* arm64: where its guest waited for an event, and trapped (untrapped.bpf.h) */
};
_Static_assert(sizeof(struct vm_ctx) == 2 * 64, "whole cache lines");

/* A vCPU's thread keeps the number of its VM's entry, so that nobody searches as it runs. */
struct vm_ctx sched_vms[SCHED_MAX_VMS] __attribute__((aligned(64)));

/* The host's sums, one per CPU. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sched_stats);
} sched_total SEC(".maps");

/* Never used: keeps the names of the counters in the object's type information, for the daemon. */
enum sched_counter sched_keep_counters;

/*
 * What the CPUs of an LLC share. First what changes as its tasks run: virtual time, as far as their clocks have come
 * (fair.h). Then what changes when CPUs come or go, and when loads are balanced.
 */
struct queue_ctx {
	__u64 vtime;
	__s32 waiting; /* CPUs for which somebody waits: written when a queue gets its first or loses its last */
	__s32 idle;    /* CPUs that idle (idle.bpf.h) */
	__u64 pad2[6];
	__u32 nr;    /* its CPUs, and ... */
	__u32 first; /* ... where they begin in llc_cpus */
	__u32 fill;  /* used by llc__arrange() */
	__u32 giver; /* the LLC that it is to take tasks from, and ... */
	__s64 owed;  /* ... how much, in shares */
	__u64 load;  /* shares of its tasks when loads were looked at last, and of those that were forked here since */
	struct entrain_group group; /* its load as the balancer sees it */
	__u64 all;		    /* shares of all its tasks, then */
};
_Static_assert(sizeof(struct queue_ctx) == 2 * 64, "whole cache lines");

struct queue_ctx queues[SCHED_MAX_LLCS];

/* Whether a task may run nowhere else. */
static __always_inline bool task__is_bound(struct task_struct *p)
{
	return p->nr_cpus_allowed == 1 || scx_migration_disabled(p);
}

static __always_inline struct queue_ctx *llc__queue(__u32 llc)
{
	return &queues[llc & (SCHED_MAX_LLCS - 1)];
}

static __always_inline struct task_ctx *task__ctx(struct task_struct *p)
{
	return bpf_task_storage_get(&sched_tasks, p, 0, 0);
}

static __always_inline struct cpu_ctx *cpu__ctx(__u32 cpu)
{
	return &sched_cpus[cpu & (SCHED_MAX_CPUS - 1)];
}

static __always_inline struct sched_stats *stats__total(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&sched_total, &zero);
}

/*
 * Counts for the task and for the host. A vCPU's own counters change under its run-queue lock, but for those of the
 * looks at an extension and of trapped wfe, which another CPU's yield may meet: one of two is lost then.
 */
static __always_inline void task__count(struct task_ctx *t, enum sched_counter counter, __u64 n)
{
	struct sched_stats *sum = stats__total();

	if (counter >= SCHED_COUNTERS)
		return;
	t->pub.stats.of[counter] += n;
	if (sum)
		sum->of[counter] += n;
}

/* The counters of a decision's verdicts stand in the order of the verdicts. */
#define SCHED_REFUSED_AT(name) (SCHED_REFUSED_##name - SCHED_REFUSED_NOT_CRITICAL + ENTRAIN_EXTEND_NOT_CRITICAL)
_Static_assert(SCHED_REFUSED_AT(EVENT_SPENT) == ENTRAIN_EXTEND_EVENT_SPENT, "order");
_Static_assert(SCHED_REFUSED_AT(BUDGET_SPENT) == ENTRAIN_EXTEND_BUDGET_SPENT, "order");
#define SCHED_YIELDS_AT(name) (SCHED_YIELDS_##name - SCHED_YIELDS_HONOURED)
_Static_assert(SCHED_YIELDS_AT(HONOURED) == ENTRAIN_YIELD_HONOURED, "order");
_Static_assert(SCHED_YIELDS_AT(NOT_WAITING) == ENTRAIN_YIELD_NOT_WAITING, "order");
_Static_assert(SCHED_YIELDS_AT(HOLDS_NOTHING) == ENTRAIN_YIELD_HOLDS_NOTHING, "order");
_Static_assert(SCHED_YIELDS_AT(JUST_BOOSTED) == ENTRAIN_YIELD_JUST_BOOSTED, "order");
_Static_assert(SCHED_YIELDS_AT(FOREIGN) == ENTRAIN_YIELD_FOREIGN, "order");
_Static_assert(SCHED_YIELDS_AT(UNFAIR) == ENTRAIN_YIELD_UNFAIR, "order");
_Static_assert(SCHED_YIELDS_AT(NOT_ALLOWED) == ENTRAIN_YIELD_NOT_ALLOWED, "order");

/* Counts one of the `nr` counters from `first` on: a decision's verdict, by its number. */
static __always_inline void task__count_verdict(struct task_ctx *t, enum sched_counter first, __u32 verdict, __u32 nr)
{
	/* The compiler knows the verdicts and would leave the bound out; the verifier does not. */
	barrier_var(verdict);
	if (verdict < nr)
		task__count(t, first + verdict, 1);
}

/*
 * Whether the task that runs stays by an extension or to take an interrupt: it has been asked already. One that was let
 * in since it holds something has no such claim on others, only on the turn of the sibling that gave way to it.
 */
static __always_inline bool cpu__is_excused(const struct cpu_ctx *c)
{
	return c->granted && c->stay != STAY_FOR_SECTION;
}

/*
 * The clock that whoever wakes on a CPU is measured by. Where tasks are bound to CPUs, clocks of CPUs drift apart
 * without end; by that of the furthest, one that wakes on another CPU would wait until its neighbours had come as far.
 */
static __always_inline __u64 cpu__clock(const struct cpu_ctx *c)
{
	__u64 all = llc__queue(c->llc)->vtime, here = c->clock;

	return (c->started || c->waiting > 0) && entrain_before(here, all) ? here : all;
}

static __always_inline const __u64 *cpu__clock_behind(__u32 cpu)
{
	const struct cpu_ctx *c = cpu__ctx(cpu);

	return c->choices ? &c->behind : NULL;
}

/* What so long on a CPU costs a task, in virtual time. */
static __always_inline __u64 task__vtime(const struct task_ctx *t, __u64 ns)
{
	return entrain_charge_share(ns, t->share);
}

/* So many times what a switch costs here, at most `most`. */
static __always_inline __u64 cpu__costs(const struct cpu_ctx *c, __u64 times, __u64 most)
{
	return times ? entrain_costs(c->cost, times, most) : most;
}

/* For how long the task that runs is left in peace by plain tasks. */
static __always_inline __u64 cpu__peace(const struct cpu_ctx *c)
{
	return cpu__costs(c, protect_costs, min_run_ns);
}

/* How soon one that was let in since it holds something is looked at. */
static __always_inline __u64 cpu__look_ns(const struct cpu_ctx *c)
{
	return cpu__costs(c, look_costs, lend_ns);
}

/*
 * Whether the vCPU that runs here spins: its guest's preempt count is above 0 then, but what it waits for is elsewhere.
 * KVM says so whenever the guest's wait traps, again and again while it lasts.
 */
static __always_inline bool task__spins(const struct task_ctx *t, const struct cpu_ctx *c, __u64 now)
{
	return t->spun && entrain_sub(now, t->spun) < cpu__look_ns(c);
}

/* What each CPU would have of all that want one, at the balancer's last look (balance.bpf.h), 1/1024 of a weight. */
__u64 load_mean;

/* The shares of all who want this CPU, 1/1024 of a weight. */
static __always_inline __u64 cpu__load(const struct cpu_ctx *c)
{
	return c->load + (c->started ? c->share : 0);
}

/* The share of those who want this CPU in the mean, 1/1024 of a weight; the largest there is where nobody does. */
static __always_inline __u64 cpu__mean_share(const struct cpu_ctx *c)
{
	__s32 tasks = c->waiting + (c->started != 0);

	return tasks > 0 ? cpu__load(c) / tasks : ENTRAIN_SHARE_MAX;
}

/* The clock of the task that runs on a CPU, charged up to now. */
static __always_inline __u64 cpu__running_vtime(const struct cpu_ctx *c, __u64 now)
{
	__u64 started = c->started;

	return c->vtime + (started ? entrain_charge_share(entrain_sub(now, started), c->share) : 0);
}

/*
 * Where a task of such a share counts as being among those of a CPU. One that is due a whole CPU can have no more, and
 * is behind without end; one that is due half of one or more is close to that as long as it has to share. Those count
 * as no further behind than by `migrate_ns` of their own time. For those that are due less the bound would come before
 * the order of clocks: a light one is far behind by its nature.
 */
static __always_inline __u64 cpu__seen_vtime(const struct cpu_ctx *c, __u64 vtime, __u64 share)
{
	__u64 clock = c->clock, all = llc__queue(c->llc)->vtime, mean = READ_ONCE(load_mean);

	if (!mean || 2 * share < mean)
		return vtime;
	return entrain_bounded_vtime(vtime, entrain_before(clock, all) ? clock : all,
				     entrain_charge_share(migrate_ns, share));
}

/* Where the one that runs on a CPU counts as being. */
static __always_inline __u64 cpu__shown_vtime(const struct cpu_ctx *c, __u64 now)
{
	return cpu__seen_vtime(c, cpu__running_vtime(c, now), c->share);
}

#endif /* ENTRAIN_SCHED_STATE_BPF_H */
