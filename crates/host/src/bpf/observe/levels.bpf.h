/* SPDX-License-Identifier: GPL-2.0-only */
/* The performance levels of the pCPUs, where the kernel knows them. */
#ifndef ENTRAIN_OBSERVE_LEVELS_BPF_H
#define ENTRAIN_OBSERVE_LEVELS_BPF_H

#include "state.bpf.h"

/* The kernel's own figure of the current performance level where the CPU can count it; 1024 elsewhere. */
extern const unsigned long arch_freq_scale __ksym;

/* The pCPU with its level as the kernel has it now; NULL: it is not known. */
static __always_inline struct entrain_pcpu *pcpu__with_level(__u32 cpu)
{
	const unsigned long *scale = bpf_per_cpu_ptr(&arch_freq_scale, cpu);
	struct entrain_pcpu *pcpu = bpf_map_lookup_elem(&pcpus, &cpu);

	if (!scale || !pcpu)
		return NULL;
	pcpu->perf = *scale < ENTRAIN_CAPACITY_SCALE ? *scale : ENTRAIN_CAPACITY_SCALE;
	return pcpu;
}

static long levels__copy(__u32 cpu, void *ctx)
{
	return !pcpu__with_level(cpu);
}

/* Called before the tick: copies them. A program of its own, as one with an unknown symbol does not load. */
SEC("syscall")
int levels(struct entrain_tick_args *args)
{
	bpf_loop(args->entries, levels__copy, NULL, 0);
	return 0;
}

#endif /* ENTRAIN_OBSERVE_LEVELS_BPF_H */
