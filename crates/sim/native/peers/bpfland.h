/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * scx_bpfland in its own words, beside other schedulers in one program: names that they have, too, are told apart. Its
 * options are `const` for BPF's loader, which sets them; the simulator's are variables like any other.
 */
#include "scx/common.bpf.h"
#include "scx/percpu.bpf.h"

#define _license  bpfland_license
#define uei	  bpfland_uei
#define vtime_now bpfland_vtime_now
#define cpu_ctx	  bpfland_cpu_ctx
#define task_ctx  bpfland_task_ctx
#define const
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdiscarded-qualifiers"
#include "bpfland/main.bpf.c"
#pragma GCC diagnostic pop
#undef const
#undef task_ctx
#undef cpu_ctx
#undef vtime_now
#undef uei
#undef _license

/* init_smt_domains() and init_energy_domain() of its loader: each CPU's sibling; all CPUs are its primary domain. */
static void bpfland_domains(void)
{
	struct cpu_arg primary = {.cpu_id = -1};
	__s32 cpu;

	enable_primary_cpu(&primary);
	for (cpu = 0; cpu < sim.nr_cpus; cpu++) {
		primary.cpu_id = cpu;
		enable_primary_cpu(&primary);
		if (smt_enabled) {
			/* Topology::sibling_cpus() of scx_utils: the first two threads of a core have each other. */
			struct domain_arg pair = {
				.cpu_id = cpu,
				.sibling_cpu_id = cpu % sim.threads ? cpu - 1 : cpu + 1,
			};

			enable_sibling_cpu(&pair);
		}
	}
}

/*
 * What its loader (main.rs of the same package) does before it attaches, with the options that it has when none is
 * given, on CPUs that are all as fast as each other.
 */
static void bpfland_load(void)
{
	__u32 cpu;

	smt_enabled = sim.threads > 1;
	numa_enabled = sim.nr_nodes > 1;
	local_pcpu = local_kthreads = sticky_tasks = false;
	cpufreq_perf_lvl = SCX_CPUPERF_ONE;
	for (cpu = 0; cpu < sim.nr_cpus && cpu < MAX_CPUS; cpu++) {
		cpu_capacity[cpu] = SCX_CPUPERF_ONE;
		preferred_cpus[cpu] = cpu;
	}
	bpfland_ops.flags = SCX_OPS_ENQ_EXITING | SCX_OPS_ENQ_LAST | SCX_OPS_ENQ_MIGRATION_DISABLED |
			    SCX_OPS_ALLOW_QUEUED_WAKEUP | (numa_enabled ? SCX_OPS_BUILTIN_IDLE_PER_NODE : 0);
	bpfland_domains();
}

/* It is unloaded, and will be loaded anew with the same options: maps and globals are as at first. */
static void bpfland_forget(void)
{
	if (sim_chosen != &bpfland_ops)
		return;
	SIM_FORGET(&cpu_ctx_stor);
	SIM_FORGET(&throttle_timer);
	primary_cpumask = NULL;
	bpfland_vtime_now = 0;
	cpus_throttled = false;
	bpfland_domains();
}

static void bpfland_forget_task(struct task_struct *p)
{
	if (sim_chosen == &bpfland_ops)
		bpf_task_storage_delete(&task_ctx_stor, p);
}
