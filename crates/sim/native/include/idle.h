/* SPDX-License-Identifier: GPL-2.0-only */
/* Idle CPUs, the nodes that they stand at, and the built-in choice among them: kernel/sched/ext/idle.c of 7.3, and what
 * ext.c has of the kind. */
#ifndef ENTRAIN_SIM_IDLE_H
#define ENTRAIN_SIM_IDLE_H

#include "runtime.h"

__s32 scx_bpf_select_cpu_dfl(struct task_struct *p, __s32 prev_cpu, __u64 wake_flags, bool *is_idle)
{
	return SIM_CALL(select_cpu_dfl, sim_id(p), prev_cpu, wake_flags, is_idle);
}

/* __scx_bpf_select_cpu_and() of idle.c, as the wrapper of scx's compat.bpf.h that packs its arguments for it. */
__s32 scx_bpf_select_cpu_and(struct task_struct *p, __s32 prev_cpu, __u64 wake_flags,
			     const struct cpumask *cpus_allowed, __u64 flags)
{
	return SIM_CALL(select_cpu_and, sim_id(p), prev_cpu, wake_flags, cpus_allowed, flags);
}

bool scx_bpf_test_and_clear_cpu_idle(__s32 cpu)
{
	return SIM_CALL(test_and_clear_cpu_idle, cpu);
}

__s32 scx_bpf_pick_idle_cpu(const struct cpumask *cpus_allowed, __u64 flags)
{
	return SIM_CALL(pick_idle_cpu, cpus_allowed, flags);
}

const struct cpumask *scx_bpf_get_idle_cpumask(void)
{
	return SIM_CALL(idle_cpumask, -1, false);
}

/* scx_bpf_get_idle_smtmask() of idle.c. */
const struct cpumask *scx_bpf_get_idle_smtmask(void)
{
	return SIM_CALL(idle_cpumask, -1, true);
}

/* scx_bpf_get_idle_cpumask_node() of idle.c. */
const struct cpumask *scx_bpf_get_idle_cpumask_node(__s32 node)
{
	return SIM_CALL(idle_cpumask, node, false);
}

/* scx_bpf_get_idle_smtmask_node() of idle.c. */
const struct cpumask *scx_bpf_get_idle_smtmask_node(__s32 node)
{
	return SIM_CALL(idle_cpumask, node, true);
}

void scx_bpf_put_idle_cpumask(const struct cpumask *cpumask)
{
}

/* scx_bpf_cpu_node() of idle.c: nodes are of the same size, one behind the other. */
__s32 scx_bpf_cpu_node(__s32 cpu)
{
	sim.done.helpers++;
	if (cpu < 0 || cpu >= sim.nr_cpus) {
		sim.calls->exit(sim.machine, 0, "scx_bpf_cpu_node() of a CPU that there is not", true);
		return -1;
	}
	return cpu / (sim.nr_cpus / sim.nr_nodes);
}

/* scx_bpf_nr_node_ids() of ext.c. */
__u32 scx_bpf_nr_node_ids(void)
{
	sim.done.helpers++;
	return sim.nr_nodes;
}

/* scx_bpf_nr_cpu_ids() of ext.c. */
__u32 scx_bpf_nr_cpu_ids(void)
{
	sim.done.helpers++;
	return sim.nr_cpus;
}

/* scx_bpf_get_online_cpumask() of ext.c. */
const struct cpumask *scx_bpf_get_online_cpumask(void)
{
	return SIM_CALL(online_cpumask);
}

/* scx_bpf_put_cpumask() of ext.c: nobody holds anything. */
void scx_bpf_put_cpumask(const struct cpumask *cpumask)
{
	sim.done.helpers++;
}

#endif /* ENTRAIN_SIM_IDLE_H */
