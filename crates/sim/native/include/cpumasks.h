/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Sets of CPUs: kernel/bpf/cpumask.c of 7.3, each function under its own name. A set is what the simulated kernel has
 * for one (src/kernel/mask.rs), so that a program may hand its own to kernel functions.
 */
#ifndef ENTRAIN_SIM_CPUMASKS_H
#define ENTRAIN_SIM_CPUMASKS_H

#include "runtime.h"

#define SIM_MASK_WORDS 64

/* A set of the program's own; struct cpumask comes first, as in the kernel. */
struct bpf_cpumask {
	__u64 bits[SIM_MASK_WORDS];
	__u64 used; /* which of the words are not 0 */
};

struct bpf_cpumask *bpf_cpumask_create(void)
{
	sim.done.helpers++;
	return sim_alloc(sizeof(struct bpf_cpumask));
}

/* What an object has allocated lives as long as the object. */
void bpf_cpumask_release(struct bpf_cpumask *cpumask)
{
	sim.done.helpers++;
}

void bpf_cpumask_set_cpu(__u32 cpu, struct bpf_cpumask *cpumask)
{
	sim.done.helpers++;
	/* cpu_valid(): others are left out, without a word. */
	if (cpu >= sim.nr_cpus)
		return;
	cpumask->bits[cpu / 64] |= 1ULL << (cpu % 64);
	cpumask->used |= 1ULL << (cpu / 64);
}

void bpf_cpumask_clear(struct bpf_cpumask *cpumask)
{
	sim.done.helpers++;
	memset(cpumask, 0, sizeof(*cpumask));
}

bool bpf_cpumask_test_cpu(__u32 cpu, const struct cpumask *cpumask)
{
	sim.done.helpers++;
	return cpu < sim.nr_cpus && (cpumask->bits[cpu / 64] >> (cpu % 64) & 1);
}

bool bpf_cpumask_subset(const struct cpumask *src1, const struct cpumask *src2)
{
	__u32 i;

	sim.done.helpers++;
	for (i = 0; i * 64 < sim.nr_cpus; i++) {
		if (src1->bits[i] & ~src2->bits[i])
			return false;
	}
	return true;
}

/* The first CPU of the set; of an empty one a number that no CPU has. */
__u32 bpf_cpumask_first(const struct cpumask *cpumask)
{
	__u32 i;

	sim.done.helpers++;
	for (i = 0; i * 64 < sim.nr_cpus; i++) {
		if (cpumask->bits[i])
			return i * 64 + __builtin_ctzl(cpumask->bits[i]);
	}
	return sim.nr_cpus;
}

bool bpf_cpumask_empty(const struct cpumask *cpumask)
{
	return bpf_cpumask_first(cpumask) >= sim.nr_cpus;
}

__u32 bpf_cpumask_weight(const struct cpumask *cpumask)
{
	__u32 i, weight = 0;

	sim.done.helpers++;
	for (i = 0; i * 64 < sim.nr_cpus; i++) {
		/* Without a C library there is no __builtin_popcountl(). */
		for (unsigned long bits = cpumask->bits[i]; bits; bits &= bits - 1)
			weight++;
	}
	return weight;
}

#endif /* ENTRAIN_SIM_CPUMASKS_H */
