/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Of the idle CPUs that suit a task the one where its work costs least, where the host has an energy model: else the
 * smallest of them (perf_place.bpf.h).
 */
#ifndef ENTRAIN_SCHED_PERF_ENERGY_BPF_H
#define ENTRAIN_SCHED_PERF_ENERGY_BPF_H

#include "perf_level.bpf.h"
#include "energy.h"

/* Frequency domains that are told apart; the daemon tells of none where there are more. */
#define ENERGY_DOMAINS 8

/* Set by the loader: what the kernel's energy model says. */
const volatile struct entrain_energy_model energy_models[ENERGY_DOMAINS];
/* 1 + the domain of each CPU; 0 = not known. */
const volatile __u8 energy_domain_of[SCHED_MAX_CPUS];

static __always_inline __u32 energy__domain(__u32 cpu)
{
	return energy_domain_of[cpu & (SCHED_MAX_CPUS - 1)];
}

/* What a domain (1 + its number) costs more with the task than without. Its own loop for the verifier. */
__noinline __u64 energy__more(__u32 domain, __u32 demand)
{
	struct entrain_energy_in in = {.demand = demand};
	__u32 i;

	bpf_for (i, 0, PERF_SCAN) {
		struct sched_perf_cpu *c = perf__cpu(i);

		if (i >= nr_cpus || !c)
			break;
		if (energy__domain(i) != domain || !READ_ONCE(c->busy))
			continue;
		in.others += c->demand;
		in.level = entrain_max(in.level, c->wanted);
	}
	/* SAFETY: within the array, which nobody writes once the programs are loaded. */
	return entrain_energy_more((const void *)&energy_models[(domain - 1) & (ENERGY_DOMAINS - 1)], &in);
}

/*
 * The idle CPU on which the task costs least. Only a hint: the state may change at once. -1 = none that suits it, or no
 * model.
 */
static __noinline __s32 energy__cheapest(struct task_struct *p, __u32 demand, __u32 prev, __u32 capacity)
{
	__u64 least = ~0ULL;
	__u32 tried = 0, i;
	__s32 found = -1;

	bpf_for (i, 0, PERF_SCAN) {
		__s32 cpu = cpu__in_ring(prev, i);
		struct sched_perf_cpu *c;
		__u32 domain;
		__u64 more;

		if (cpu < 0)
			break;
		domain = energy__domain(cpu);
		c = perf__cpu(cpu);
		/* CPUs of one domain cost the same. */
		if (!domain || tried & 1U << (domain & 31) || !c || !c->capacity || READ_ONCE(c->busy) ||
		    !bpf_cpumask_test_cpu(cpu, p->cpus_ptr) || !entrain_perf_suits(demand, c->capacity, capacity))
			continue;
		tried |= 1U << (domain & 31);
		more = energy__more(domain, demand);
		if (cpu != prev)
			more += more / ENTRAIN_ENERGY_STAY;
		if (more < least) {
			least = more;
			found = cpu;
		}
	}
	return found;
}

#endif /* ENTRAIN_SCHED_PERF_ENERGY_BPF_H */
