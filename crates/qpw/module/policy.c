// SPDX-License-Identifier: GPL-2.0-only
/*
 * /proc/sys/vm/stat_refresh (vmstat_refresh() of mm/vmstat.c) without isolated
 * CPUs. There is no lock to take: the counters are changed by instructions that
 * are atomic on their own CPU only. The kernel's own vmstat_shepherd leaves
 * isolated CPUs alone too, so skipping them is correct for all but a reader who
 * wants exact figures: hence only with the parameter skip_stats.
 */
#include <linux/cpu.h>
#include <linux/percpu.h>
#include <linux/sched/isolation.h>
#include <linux/workqueue.h>

#include "qpw.h"

static work_func_t refresh_vm_stats;
static DEFINE_PER_CPU(struct work_struct, stats_work);

int qpw_vmstat_refresh(const struct ctl_table *table, int write, void *buffer, size_t *lenp, loff_t *ppos)
{
	static DEFINE_MUTEX(one);
	unsigned int cpu;

	atomic_long_inc(&qpw_n_calls);
	mutex_lock(&one);
	cpus_read_lock();
	for_each_online_cpu(cpu)
	{
		struct work_struct *work = per_cpu_ptr(&stats_work, cpu);

		/* Always a fresh one: flush_work() below takes all of them. */
		INIT_WORK(work, refresh_vm_stats);
		if (cpu_is_isolated(cpu))
			continue;
		schedule_work_on(cpu, work);
		if (cpu != raw_smp_processor_id())
			atomic_long_inc(&qpw_n_work);
	}
	for_each_online_cpu(cpu) flush_work(per_cpu_ptr(&stats_work, cpu));
	cpus_read_unlock();
	mutex_unlock(&one);
	/*
	 * The kernel warns here of counters below zero. With isolated CPUs left
	 * out they may be, and mean nothing.
	 */
	if (write)
		*ppos += *lenp;
	else
		*lenp = 0;
	return 0;
}

int qpw_policy_init(void)
{
	refresh_vm_stats = (work_func_t)qpw_symbol("refresh_vm_stats");
	return refresh_vm_stats ? 0 : -ENOENT;
}
