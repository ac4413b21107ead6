/* SPDX-License-Identifier: GPL-2.0-only */
/* What the program that slows CPUs and user space share; Rust has these types from the skeleton. */
#ifndef ENTRAIN_CPUFREQ_EMULATION_SLOW_H
#define ENTRAIN_CPUFREQ_EMULATION_SLOW_H

#define MAX_CPUS   64
#define MAX_POINTS 40
/* Of speeds: the machine's fastest CPU at its fastest point. */
#define FULL	   1024

/* One CPU's operating points; set before loading. */
struct setup {
	/* Number of points; 0: this CPU is left alone. */
	__u32 points;
	/* The point in force when the emulation begins. */
	__u32 start;
	/* Frequency of each, kHz. */
	__u32 khz[MAX_POINTS];
	/* Speed at each, 1 to FULL. */
	__u32 level[MAX_POINTS];
};

/* Sums since the emulation began, written by their CPU alone. */
struct counters {
	__u64 busy_ns[MAX_POINTS];
	__u64 idle_ns[MAX_POINTS];
	__u64 stalled_ns;
	__u64 transitions;
	/* The point in force. */
	__u32 point;
	__u32 unused;
};

#endif /* ENTRAIN_CPUFREQ_EMULATION_SLOW_H */
