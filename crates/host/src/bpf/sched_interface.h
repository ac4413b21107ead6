/* SPDX-License-Identifier: GPL-2.0-only */
/* What the scheduler's BPF programs and its daemon share; src/schedule/interface.rs is the Rust mirror. */
#ifndef ENTRAIN_SCHED_INTERFACE_H
#define ENTRAIN_SCHED_INTERFACE_H

#ifndef __bpf__
#include <linux/types.h>
#endif

/* Bounds of the tables. */
#define SCHED_MAX_CPUS 1024
#define SCHED_MAX_VMS  4096

/* What a class says of its VMs' vCPUs; src/schedule/classes.rs is the mirror. Times in ns. */
#define SCHED_CLASS_DEFAULT (~0ULL) /* the class says nothing: as the tunable has it */
struct sched_class {
	__u64 event;	/* most that one event may be extended; 0 = no extensions */
	__u64 burst;	/* most that a full bucket of extensions holds */
	__u64 rate_ppm; /* its refill */
	__u64 latency;	/* target for the wait of a vCPU that wakes */
};

/* Counters of one vCPU (in task storage) and of the whole host (one per CPU). Times in ns. */
struct sched_stats {
	__u64 switches;		/* put on a CPU */
	__u64 preemptions;	/* taken off a CPU while runnable, its own yields not counted */
	__u64 preemptions_held; /* of those, in what may be a critical section */
	__u64 ran;
	__u64 waited; /* runnable without a CPU */
	__u64 wakeups;
	__u64 extended;	    /* times that a slice was extended */
	__u64 extended_ns;  /* by so much in all */
	__u64 repaid_ns;    /* taken off later slices for it */
	__u64 extend_no[4]; /* by enum entrain_extend_verdict: refused */
	__u64 yields[8];    /* directed yields to it, by enum entrain_yield_verdict */
	__u64 yields_lost;  /* honoured, but somebody else had taken the target meanwhile */
	__u64 fronted;	    /* went to the front since it was preempted inside a section */
	__u64 corun;	    /* chosen out of turn since a sibling ran */
	__u64 corun_ns;	    /* on a CPU while a sibling was on another */
	__u64 preempts;	    /* wake-ups that asked for a CPU that was taken */
	__u64 spins;	    /* times that it gave up the CPU to a sibling */
	__u64 urgent;	    /* wake-ups that its guest called latency-critical */
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

#endif /* ENTRAIN_SCHED_INTERFACE_H */
