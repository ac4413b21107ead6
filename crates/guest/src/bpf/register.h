/* SPDX-License-Identifier: GPL-2.0-only */
/* Contexts of the programs of register.bpf.c, which the agent alone runs, once for each question. */
#ifndef ENTRAIN_REGISTER_H
#define ENTRAIN_REGISTER_H

/* Where the kernel keeps what it keeps per CPU. Virtual addresses of the kernel; 0: there is no such thing. */
struct entrain_survey {
	__u32 cpu;		/* in */
	__u32 preempt_offset;	/* of thread_info.preempt_count in task_struct; ~0: none (x86) */
	__u64 preempt_count;	/* x86: of this CPU */
	__u64 util;		/* run queue: cfs.avg.util_avg */
	__u64 nr_running;	/* run queue: nr_running */
	__u64 apicid;		/* x86: x86_cpu_to_apicid of this CPU */
	__u64 page_offset_base; /* x86: address of the variable */
	__u64 memstart_addr;	/* arm64: address of the variable */
	__u64 cpu_logical_map;	/* arm64: address of the array */
};

/* Reads kernel memory. */
struct entrain_peek {
	__u64 address; /* in */
	__u64 value;
	__s64 error;
};

/* Reads this CPU's preempt count, outside and inside some levels of preempt_disable. */
struct entrain_depth {
	__u64 address; /* in; 0: in the current task, at `offset` */
	__u32 offset;  /* in */
	__u32 levels;  /* that were entered; 0: this kernel's BPF can't disable preemption, nothing was read */
	__u32 outside;
	__u32 inside;
	__s64 error;
};

#endif /* ENTRAIN_REGISTER_H */
