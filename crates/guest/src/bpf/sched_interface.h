/* SPDX-License-Identifier: GPL-2.0-only */
/* What the guest's scheduler and its loader exchange; src/schedule/interface.rs is the Rust mirror. */
#ifndef ENTRAIN_GUEST_SCHED_INTERFACE_H
#define ENTRAIN_GUEST_SCHED_INTERFACE_H

/* Counters since the scheduler was loaded. */
struct sched_stats {
	__u64 wake_previous; /* wake-ups to the previous vCPU while it was idle */
	__u64 wake_idle;     /* ... to another idle vCPU ... */
	__u64 wake_instant;  /* ... of all those to idle vCPUs: the host said it runs at once */
	__u64 wake_queued;   /* ... to the queue of a vCPU that runs something */
	__u64 preempts;	     /* a waking task took the vCPU from the running one */
	__u64 takeovers;     /* tasks that a vCPU took from another one's queue ... */
	__u64 rescues;	     /* ... which the host held back, or which was parked */
	__u64 parks;	     /* vCPUs parked and ... */
	__u64 unparks;	     /* ... taken into use again */
	__u64 migrations;    /* running tasks moved away from a parked vCPU */
	__u64 keep;	     /* vCPUs in use now */
	__u64 entitlement;   /* what the host says now, 1/1024 pCPU; ~0 = nothing */
	__u64 host_alive;    /* 1: the host's words are used */
	__u64 stolen;	     /* share of the wanted time that the host withheld, 1/1024 */
	__u64 runnable;	     /* tasks */
};

#endif /* ENTRAIN_GUEST_SCHED_INTERFACE_H */
