/* SPDX-License-Identifier: GPL-2.0-only */
/* What user space sets, and the kernel's structures that only these programs read. */
#ifndef ENTRAIN_ISOLATE_WATCH_CONFIG_H
#define ENTRAIN_ISOLATE_WATCH_CONFIG_H

#include "kernel.h"
#include "interface.h"

/* Zero until all programs are attached: attaching patches code, which interrupts every CPU. */
volatile __u32 enabled = 0;

/* The rest is set before loading. The CPUs to watch. */
const volatile __u64 cpus[WATCH_CPU_WORDS] = {};
/* Possible CPUs. */
const volatile __u32 nr_cpus = 1;
/* Work of unbound workqueues may run on a watched CPU: note who queues it. */
const volatile __u32 unbound = 0;
/* Address of the kernel's tick handler; 0: not found. */
const volatile __u64 tick_handler = 0;
/* Threads that the watched CPUs are for are named: every other one interrupts. */
const volatile __u32 has_owners = 0;

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct task_struct___watch {
	int wake_cpu;
	char comm[16];
};

struct work_struct {
	void *func;
};

struct worker_pool {
	int cpu;
};

struct workqueue_struct {
	char name[1];
};

struct pool_workqueue {
	struct worker_pool *pool;
	struct workqueue_struct *wq;
};

struct irqaction {
	const char *name;
};

struct hrtimer {
	void *function;
};

struct timer_list {
	void *function;
};

#pragma clang attribute pop

#endif /* ENTRAIN_ISOLATE_WATCH_CONFIG_H */
