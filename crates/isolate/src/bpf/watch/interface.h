/* SPDX-License-Identifier: GPL-2.0-only */
/* What watch.bpf.c and user space exchange; Rust has these types from the skeleton (src/watch/interface.rs). */
#ifndef ENTRAIN_ISOLATE_INTERFACE_H
#define ENTRAIN_ISOLATE_INTERFACE_H

#include <linux/types.h>

/* CPUs that a kernel can have (x86's NR_CPUS_RANGE_END), in words of the bit mask. */
#define WATCH_CPU_WORDS 128
#define WATCH_COMM	16
/* Frames of a sender's kernel stack, those of the tracing itself included. */
#define WATCH_STACK	24

/* What interrupts. */
enum watch_kind {
	WATCH_WORK = 1,	   /* work item; subject: its function, what: the workqueue, detail: 1 = unbound */
	WATCH_CALL = 2,	   /* function call IPI; subject: the function, 0 when the kernel does not tell */
	WATCH_RESCHED = 3, /* reschedule IPI */
	WATCH_IRQWORK = 4, /* irq_work interrupt */
	WATCH_TIMER = 5,   /* local timer interrupt; subject: the first timer's function, detail: tick dependency */
	WATCH_IRQ = 6,	   /* device interrupt; subject: its number, what: its name */
	WATCH_VECTOR = 7,  /* another vector of the local interrupt controller; detail: its number */
	WATCH_SOFTIRQ = 8, /* softirq; detail: its number, subject: the first timer's function, if any */
	WATCH_KTHREAD = 9, /* a kernel thread; what: its name, detail: its priority (0 to 139) */
	WATCH_TASK = 10,   /* a task of user space; as for a kernel thread */
	WATCH_NMI = 11,	   /* subject: the handler */
};

/* One cause. The sender is who queued the work, sent the IPI or woke the thread; empty when that is not known. */
struct watch_key {
	__u32 cpu;
	enum watch_kind kind;
	__u64 subject;
	__u64 cgroup; /* of the sender: the number of its folder in the cgroup 2 tree */
	__u8 what[WATCH_COMM];
	__u8 sender[WATCH_COMM];
	__s32 stack; /* of the sender; negative: none */
	__u32 detail;
};

/* What it took. Times in ns; time of causes that nest inside (an interrupt in a kernel thread) is theirs alone. */
struct watch_total {
	__u64 count;
	__u64 ns;
	__u64 max_ns;
	__u64 last; /* CLOCK_MONOTONIC, ns */
	__u32 pid;  /* of the sender, or of the task where there is none; the last one */
	__u32 pad;
};

/* One interruption, for the timeline. */
struct watch_event {
	__u64 start; /* CLOCK_MONOTONIC, ns */
	__u64 ns;
	struct watch_key key;
	__u32 pid;
	__u32 pad;
};

/* What could not be kept. */
struct watch_lost {
	__u64 totals; /* causes without a place in the map */
	__u64 events; /* interruptions missing in the timeline: rate limit or full buffer */
};

#endif /* ENTRAIN_ISOLATE_INTERFACE_H */
