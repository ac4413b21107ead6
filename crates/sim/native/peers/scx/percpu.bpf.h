/* SPDX-License-Identifier: GPL-2.0-only */
/* Stands in for the header of that name of scx: what the kernel keeps of each CPU, as far as scx_bpfland reads it. */
#ifndef ENTRAIN_SIM_PEERS_PERCPU_H
#define ENTRAIN_SIM_PEERS_PERCPU_H

#include "common.bpf.h"

/* The kernel's sd_llc_id: the first CPU at the same last-level cache. */
static inline s32 cpu_llc_id(s32 cpu)
{
	return cpu - cpu % (sim.nr_cpus / sim.nr_llcs);
}

#endif /* ENTRAIN_SIM_PEERS_PERCPU_H */
