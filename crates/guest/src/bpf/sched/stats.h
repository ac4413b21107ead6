/* SPDX-License-Identifier: GPL-2.0-only */
/* What the guest's scheduler counts. The loader exports every field by its name here: nothing else names them. */
#ifndef ENTRAIN_GUEST_SCHED_STATS_H
#define ENTRAIN_GUEST_SCHED_STATS_H

/* Since the scheduler was loaded, and as the controller saw it at its last step. */
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
	__u64 stolen;	     /* share of the wanted time that the host withholds now, 1/1024 */
	__u64 runnable;	     /* tasks now */
	__u64 contended;     /* 1: contended now, as guest_mode.h has it */
};

#endif /* ENTRAIN_GUEST_SCHED_STATS_H */
