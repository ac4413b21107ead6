/* SPDX-License-Identifier: GPL-2.0-only */
/* What the recorder's BPF program tells user space; Rust has these types from the skeleton. */
#ifndef ENTRAIN_CPUFREQ_EMULATION_RECORD_H
#define ENTRAIN_CPUFREQ_EMULATION_RECORD_H

#define MAX_THREADS 16

enum record_kind {
	RECORD_RUNS = 0,
	RECORD_PREEMPTED = 1,
	RECORD_SLEEPS = 2,
	RECORD_WAKES = 3,
};

struct record_event {
	__u64 at_ns;
	/* Index of the thread. */
	__u32 slot;
	__u32 cpu;
	enum record_kind kind;
	__u32 unused;
};

#endif /* ENTRAIN_CPUFREQ_EMULATION_RECORD_H */
