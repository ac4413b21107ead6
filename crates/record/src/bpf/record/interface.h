/* SPDX-License-Identifier: GPL-2.0-only */
/* What the recorder's BPF programs hand to user space; Rust has these types from the skeleton. */
#ifndef ENTRAIN_RECORD_INTERFACE_H
#define ENTRAIN_RECORD_INTERFACE_H

#include <linux/types.h>

/* vCPU threads that one recording can follow, and pCPUs of the host. */
#define RECORD_TARGETS 4096
#define RECORD_CPUS    8192

/* Threads of which it is kept what name was told; those of others are told again. */
#define RECORD_NAMES 16384

/* Kinds are part of the file format (docs/record.md): never renumbered. */
enum record_kind : __u8 {
	RECORD_SWITCH = 1,  /* on `cpu`: `tid` leaves, `other` comes */
	RECORD_WAKEUP = 2,  /* `tid` becomes runnable and queues on `cpu`, where `other` runs */
	RECORD_MIGRATE = 3, /* `tid`, which waits, moves to the queue of `cpu`, where `other` runs */
	RECORD_HALT = 4,    /* the guest's halt on `tid` is over; it took `arg` ns, the search for work included */
	RECORD_SPIN = 5,    /* the guest spins on `tid`: KVM was called for help */
	RECORD_YIELD = 6,   /* `tid` asks the scheduler to run `other` instead; `arg` = the kernel's answer */
	RECORD_STATE = 7,   /* written by user space: what `tid` was doing when it was met, mostly at the begin */
	RECORD_NAME = 64,   /* struct record_name; never in a file */
};

enum record_flag : __u8 {
	RECORD_F_RUNNABLE = 1,	   /* SWITCH: `tid` would have gone on; STATE: it was runnable */
	RECORD_F_GAVE_WAY = 2,	   /* SWITCH: it spun, and KVM gave its pCPU away */
	RECORD_F_CS_KNOWN = 4,	   /* SWITCH: the daemon has read the guest's preempt count */
	RECORD_F_CS = 8,	   /* SWITCH: ... and it was inside a critical section */
	RECORD_F_EXITED = 16,	   /* SWITCH: `tid` has ended */
	RECORD_F_WAITED = 32,	   /* HALT: it slept; else polling was enough */
	RECORD_F_OTHER_KNOWN = 64, /* WAKEUP, MIGRATE: `other` holds something */
};

struct record_event {
	__u64 ns; /* CLOCK_MONOTONIC */
	enum record_kind kind;
	enum record_flag flags; /* any of them */
	__u16 cpu;
	__u32 tid;
	__u32 other;
	__u32 pad;
	__u64 arg;
};

/* Of the same size as an event, with `kind` at the same place. */
struct record_name {
	__u64 tgid;
	enum record_kind kind;
	__u8 pad[3];
	__u32 tid;
	__u8 comm[16];
};

/* One vCPU thread that is followed. User space fills the first two; the rest is kept under run-queue locks. */
struct record_target {
	__u64 kvm_vcpu; /* struct kvm_vcpu of the kernel; only read through probes */
	__u32 entry;	/* 1 + index in the daemon's table of vCPUs; 0 without a daemon */
	__u32 waits_on; /* the pCPU that it queues on; as cpu_or_none.h has it */
	__u32 running;
	__u32 samples; /* 1 + how often the daemon had read its preempt count when it came; 0: not known */
};

struct record_cpu {
	__s32 waiting; /* targets that queue here */
	__u32 runs;    /* 1 + the thread that runs; 0 until the first switch */
};

_Static_assert(sizeof(struct record_event) == 32, "the file format");
_Static_assert(sizeof(struct record_name) == 32, "as an event");

#endif /* ENTRAIN_RECORD_INTERFACE_H */
