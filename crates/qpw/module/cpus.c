// SPDX-License-Identifier: GPL-2.0-only
/*
 * CPU hotplug.
 *
 * The kernel drains the LRU batches of a dead CPU without any lock, since nobody
 * else touches them (page_alloc_cpu_dead). Now somebody else does. So a CPU
 * leaves a mask, under the mutex of who touches, while it is still alive. The LRU drain cannot take cpus_read_lock():
 * some of its callers (memory hotplug) hold it already. slub's callers do hold it.
 */
#include <linux/bitops.h>
#include <linux/cpu.h>
#include <linux/cpuhotplug.h>

#include "qpw.h"

DEFINE_MUTEX(qpw_lru_mutex);
static struct cpumask remote_cpus;
static enum cpuhp_state cpuhp_slot;

bool qpw_cpu_remote_ok(unsigned int cpu)
{
	return cpumask_test_cpu(cpu, &remote_cpus);
}

static void set_remote(unsigned int cpu, bool ok)
{
	mutex_lock(&qpw_lru_mutex);
	assign_bit(cpu, cpumask_bits(&remote_cpus), ok);
	mutex_unlock(&qpw_lru_mutex);
}

static int cpu_starts(unsigned int cpu)
{
	set_remote(cpu, true);
	return 0;
}

static int cpu_stops(unsigned int cpu)
{
	set_remote(cpu, false);
	return 0;
}

int qpw_cpus_init(void)
{
	int slot;

	cpus_read_lock();
	/*
	 * No callbacks on CPUs that are up: they would run in each CPU's own
	 * cpuhp thread, behind a FIFO task for as long as that runs.
	 */
	slot = cpuhp_setup_state_nocalls_cpuslocked(CPUHP_AP_ONLINE_DYN, "entrain/qpw:online", cpu_starts, cpu_stops);
	if (slot >= 0)
		cpumask_copy(&remote_cpus, cpu_online_mask);
	cpus_read_unlock();
	if (slot < 0)
		return slot;
	cpuhp_slot = slot;
	return 0;
}

void qpw_cpus_exit(void)
{
	cpuhp_remove_state_nocalls(cpuhp_slot);
}
