/* SPDX-License-Identifier: GPL-2.0-only */
/* What the host's BPF programs and its daemon exchange; Rust has these types from the skeletons (src/interface.rs). */
#ifndef ENTRAIN_HOST_INTERFACE_H
#define ENTRAIN_HOST_INTERFACE_H

#ifndef __bpf__
#include <linux/types.h>
#endif
#include "entrain_host.h"

/* Bounds of the tables: what one host can hold is limited whatever its guests do. */
#define ENTRAIN_HOST_VCPUS 4096
#define ENTRAIN_HOST_VMS   1024
#define ENTRAIN_VM_SLOTS   8

/* Halted vCPUs whose instant bit follows a pCPU's change at once; the others follow within one tick (100 ms). */
#define ENTRAIN_PCPU_SLOTS   4
#define ENTRAIN_DOMAIN_SLOTS 16

/* One vCPU, indexed by the number that the daemon gave it. Readable by the daemon through mmap. */
struct entrain_vcpu {
	__u32 used; /* 1 while this entry belongs to a vCPU */
	__u32 vm;   /* index into `vms` */
	__s32 tid;
	__s32 tgid;
	__u64 kvm_vcpu;	      /* struct kvm_vcpu of the kernel; only ever read through probes */
	__u64 preempt_hva;    /* preempt count in the VMM's memory, where it cannot be pinned; else 0 */
	__u32 preempt_layout; /* enum entrain_preempt_layout of the guest; 0 = not known */
	__u32 entitlement;    /* 1/1024 pCPU, by the daemon */

	/* Written under the run-queue lock of the vCPU's pCPU: by one CPU at a time. Times in ns of CLOCK_MONOTONIC. */
	__u32 state; /* enum entrain_vcpu_state */
	__u32 pcpu;  /* where it runs or ran last */
	__u32 seq;   /* changes of state */
	__u32 in_cs; /* 1: its last switch-out was inside a critical section of the guest */
	__u64 since;
	__u64 run_ns;	/* on a pCPU */
	__u64 ready_ns; /* runnable, waiting for a pCPU */
	__u64 halted_ns;
	__u64 switches;	      /* times that it was put on a pCPU */
	__u64 preemptions;    /* switched out while runnable */
	__u64 samples;	      /* of those, how often the guest's preempt count could be read */
	__u64 preemptions_cs; /* of those, how often it was inside a critical section */
	__u64 boosts;	      /* by the host's scheduler: put in front, or its slice extended; from any CPU */

	/* Written by whoever changes the hint. */
	__u32 instant;
	__u32 preempt_count; /* as last read, without the bit for rescheduling */
	__u32 extended;	     /* set by the host's scheduler while a slice is extended */
	__u32 wired;	     /* 1: may run on one pCPU only */
	__u32 gave_way;	     /* set by the host's scheduler: it spun, and leaves its pCPU to a sibling */
	/* What is known of its guest's critical sections at a switch-out, worked out once for all who ask. */
	__u32 level;   /* enum entrain_critical */
	__u32 sampled; /* 1: the host's scheduler has worked it out for the switch-out that follows */
	__u32 counted; /* 1: the guest's preempt count was read for it */
	__u32 spins;   /* 1: its guest said that it spins for a sleeping lock */

	/* Written by the tick. */
	__u64 link;	  /* the page's link word as last read */
	__u64 util;	  /* of the guest's run queue, 0..1024 */
	__u64 runnable;	  /* tasks */
	__u64 guest_beat; /* heartbeat of the guest's scheduler */
	__u64 wants;	  /* vCPUs */
	__u64 gone;	  /* 0, or ENTRAIN_GONE of the pairing that has ended by itself */
	__u32 races;	  /* words left as they were since another CPU was writing them */
	__u32 own_only;	  /* by the daemon: its guest is told nothing that tells of its neighbours */
	__u32 speaks;	  /* by the daemon: its page speaks for its guest as a whole */
	__u32 paired;	  /* 1: its thread has a pairing; else nobody need look for one */
	__u64 beat_at;	  /* when `guest_beat` changed last */
	__u32 tells;	  /* 1: an agent that lives says when its guest spins for a sleeping lock */

	__u32 level_told; /* capacity << 16 | level, as its guest was told last; by whoever told it */
};

/* One VM: where its memory is, and how to find a preempt count that belongs to a task (arm64). */
struct entrain_slot {
	__u64 gpa, size, hva;
};

struct entrain_vm {
	__u32 preempt_offset;
	__u32 nr_slots;
	__u64 linear_base, linear_size, linear_gpa;
	struct entrain_slot slots[ENTRAIN_VM_SLOTS];
};

/* One pCPU. */
struct entrain_pcpu {
	__u32 idle;
	__u32 open;	/* a vCPU that wakes here runs at once */
	__u32 domain;	/* CPUs that share a cache: the kernel looks for an idle CPU among them */
	__u32 capacity; /* 0..1024, by the daemon */
	__u32 perf;	/* performance level now, 0..1024 */
	__u32 counted;	/* the domain in which it counts as open: its own may change as CPUs come and go */
	__u32 runs;	/* 1 + index of the vCPU that runs here, 0 = none */
	__u32 pad;
	__u32 slots[ENTRAIN_PCPU_SLOTS]; /* 1 + index, 0 = none: halted vCPUs that may run on this pCPU only */
	/* Counters since start. */
	__u64 switches;	 /* context switches of vCPUs */
	__u64 idles;	 /* transitions to or from idle */
	__u64 instants;	 /* instant bits changed by transitions */
	__u64 wakeups;	 /* of vCPUs */
	__u64 doorbells; /* rung, before rate limiting */
	__u64 levels;	 /* told a vCPU, of its capacity or level, as it came here or as they changed ... */
	__u64 late;	 /* ... and by the tick alone: until then its guest had others */
};

struct entrain_domain {
	__s32 open; /* pCPUs in it on which a vCPU that wakes runs at once */
	__u32 pad;
	__u32 slots[ENTRAIN_DOMAIN_SLOTS]; /* 1 + index, 0 = none: halted vCPUs that ran here last */
};

/* Rare events, in the ring buffer. */
enum entrain_event_kind {
	ENTRAIN_EVENT_DOORBELL = 1, /* arg = guest-physical address that the guest named */
	ENTRAIN_EVENT_EXIT = 2,	    /* a vCPU thread has ended */
};

struct entrain_event {
	enum entrain_event_kind kind;
	__s32 tid;
	__s32 tgid;
	__u32 pad;
	__u64 arg;
};

/*
 * Who had the pCPU that a waiting vCPU gets, by vCPU, thread and cause. Filled only while a client asks for it
 * (`watch_waits` of observe.bpf.c), as it costs each wait a table look-up.
 */
#define ENTRAIN_HOST_WAITS 8192

enum entrain_wait_cause {
	ENTRAIN_WAIT_WOKEN = 0,	    /* it had halted */
	ENTRAIN_WAIT_PREEMPTED = 1, /* it was switched out while it ran */
	ENTRAIN_WAIT_CRITICAL = 2,  /* the same, inside a critical section */
	ENTRAIN_WAIT_GAVE_WAY = 3,  /* it spun, and KVM gave its pCPU away */
};

struct entrain_wait_key {
	__u32 index; /* of the vCPU */
	__s32 who;   /* thread of a vCPU, process of any other; 0: the pCPU was idle */
	enum entrain_wait_cause cause;
};

struct entrain_wait {
	__u64 ns;
	__u64 waits;
	__u8 comm[16];
};

/* Contexts of the programs that the daemon calls. */
struct entrain_track_args {
	__u32 index; /* the entry of `vcpus` that the daemon has filled */
	__s32 tid;
	__s32 error; /* out: 0 or negative errno */
};

struct entrain_link_args {
	__u32 index;
	enum entrain_link_op op;
	__u64 expected;
	__u64 wanted;
	__u64 was;   /* out: what the word held; the exchange happened if this is `expected` */
	__s32 error; /* out: 0, -ENOENT when nothing is mapped, -ESTALE when it is not the page that was verified */
	__u32 pad;
};

struct entrain_tick_args {
	__u32 entries;	/* entries of `vcpus` (tick) or `pcpus` (levels) to visit */
	__u32 paired;	/* out */
	__u32 gone;	/* out: pairings that have ended */
	__u32 speakers; /* 1: only vCPUs that speak for their guests */
	__u64 layouts;	/* out: sum of the generations of the memory slots behind the pairings */
};

struct entrain_selftest_args {
	__u32 entries; /* entries of `vcpus` to visit */
	__u32 loops;   /* additions for each page */
	__u64 trips;   /* out: words answered */
	__u64 added;   /* out */
};

/* What the discovery reports. */
enum entrain_found_kind {
	ENTRAIN_FOUND_VM = 1,	/* a = vCPUs created, c = its place in KVM's list or 0, id = user of the process */
	ENTRAIN_FOUND_VCPU = 2, /* a = struct kvm_vcpu, id = vcpu_id, tid; c = 1: b = its counter minus the host's */
	ENTRAIN_FOUND_SLOT = 3, /* a = gpa, b = size, c = hva, id = flags */
	ENTRAIN_FOUND_MEMBER =
		4, /* of KVM's list, but no VM of a process: its head, or a VM that ends; c = its place */
};

struct entrain_found {
	enum entrain_found_kind kind;
	__s32 tgid;
	__u64 kvm;
	__u64 a, b, c;
	__u32 id;
	__s32 tid;
};

struct entrain_list_args {
	__u64 at;    /* a member of KVM's list of VMs */
	__u32 count; /* out: records in the table */
	/* out: 0; -ESTALE when it is none; -EAGAIN when the list changed meanwhile; -EOPNOTSUPP when it is kept
	 * otherwise */
	__s32 error;
};

/* No VM's memory slots ever have it. */
#define ENTRAIN_NO_GENERATION (~0ULL)

struct entrain_look_args {
	__u64 kvm;
	__u64 generation; /* of the memory slots that are known, which are left out then; out: of those that there are
			   */
	__s32 tgid;
	__u32 count; /* out: records in the table */
	__s32 error; /* out: 0, or -ESTALE when there is no such VM of that process any more */
	__u32 pad;
};

#endif /* ENTRAIN_HOST_INTERFACE_H */
