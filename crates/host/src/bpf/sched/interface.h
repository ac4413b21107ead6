/* SPDX-License-Identifier: GPL-2.0-only */
/* What the scheduler's BPF programs and its daemon share; Rust has these types from the skeleton. */
#ifndef ENTRAIN_SCHED_INTERFACE_H
#define ENTRAIN_SCHED_INTERFACE_H

#ifndef __bpf__
#include <linux/types.h>
#endif

/* Bounds of the tables. */
#define SCHED_MAX_CPUS	 1024
#define SCHED_MAX_VMS	 4096
/* cgroups with a limit at once: a node of Kubernetes has some hundred pods of a few containers. 32 KB of each CPU. */
#define SCHED_MAX_LIMITS 4096
/* Last-level caches: a power of two. A host that has more shares the last entry. */
#define SCHED_MAX_LLCS	 64

/* Bytes of the dump that the daemon logs: what the kernel keeps by default (SCX_EXIT_DUMP_DFL_LEN). */
#define SCHED_MAX_DUMP 32768

/* In place of the LLC of a CPU that is offline. */
#define SCHED_NO_LLC (~0U)

/* What a class says of its VMs' vCPUs. Times in ns. */
#define SCHED_CLASS_DEFAULT (~0ULL) /* the class says nothing: as the tunable has it */
struct sched_class {
	__u64 event;	/* most that one event may be extended; 0 = no extensions */
	__u64 burst;	/* most that a full bucket of extensions holds */
	__u64 rate_ppm; /* its refill */
	__u64 latency;	/* target for the wait of a vCPU that wakes */
};

/*
 * What is counted, of each vCPU and of the whole host: the only list of the counters. What the operator is told of each
 * stands in one table, src/counters.rs; a test fails when a counter is missing there. Times in ns.
 */
enum sched_counter {
	SCHED_SWITCHES,		/* put on a CPU */
	SCHED_PREEMPTIONS,	/* taken off a CPU while runnable, its own yields not counted */
	SCHED_PREEMPTIONS_HELD, /* of those, in what may be a critical section */
	SCHED_READY_NS,		/* runnable without a CPU */
	SCHED_EXTENSIONS,	/* times that a slice was extended */
	SCHED_EXTENDED_NS,	/* by so much in all */
	SCHED_REPAID_NS,	/* taken off later slices for it */
	/* Extensions refused, in the order of enum entrain_extend_verdict. */
	SCHED_REFUSED_NOT_CRITICAL,
	SCHED_REFUSED_EVENT_SPENT,
	SCHED_REFUSED_BUDGET_SPENT,
	/* Directed yields to it, in the order of enum entrain_yield_verdict. */
	SCHED_YIELDS_HONOURED,
	SCHED_YIELDS_NOT_WAITING,
	SCHED_YIELDS_HOLDS_NOTHING,
	SCHED_YIELDS_JUST_BOOSTED,
	SCHED_YIELDS_FOREIGN,
	SCHED_YIELDS_UNFAIR,
	SCHED_YIELDS_NOT_ALLOWED,
	SCHED_YIELDS_LOST, /* honoured, but somebody else had taken the target meanwhile */
	SCHED_FRONTED,	   /* went to the front since it was preempted inside a section */
	SCHED_URGENT,	   /* wake-ups that its guest called latency-critical */
	SCHED_CORUN_NS,	   /* on a CPU while a sibling was on another */
	SCHED_COUNTERS,
};

/* Counters of one vCPU (in task storage) and of the whole host (one per CPU). */
struct sched_stats {
	__u64 of[SCHED_COUNTERS]; /* by enum sched_counter */
};

/* What the scheduler keeps of a task, readable by the daemon through its pidfd. */
struct sched_public {
	__u64 vtime;
	__u32 vcpu; /* 1: a vCPU thread */
	__s32 tgid;
	__u32 queue; /* 1 + the queue (of an LLC) that it runs from or waits in; 0 = it sleeps */
	__u32 pad;
	struct sched_stats stats;
};

/* Of host_arrange. */
struct sched_arrange_args {
	__u32 running; /* 1: the scheduler runs already */
};

/* How the scheduler ended, written once. */
struct sched_exit {
	__s64 code;
	__s32 kind; /* enum scx_exit_kind of the kernel */
	__s32 ended;
	char reason[128];
	char message[512];
};

#endif /* ENTRAIN_SCHED_INTERFACE_H */
