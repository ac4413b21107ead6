// SPDX-License-Identifier: GPL-2.0-only
/*
 * Which CPUs are drained from elsewhere, and CPU hotplug.
 *
 * The kernel drains the LRU batches of a dead CPU without any lock, since nobody
 * else touches them (page_alloc_cpu_dead). Now somebody else does. So a CPU
 * leaves a mask, under the mutex of who touches, while it is still alive. The LRU drain cannot take cpus_read_lock():
 * some of its callers (memory hotplug) hold it already. slub's callers do hold it.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/bitops.h>
#include <linux/cpu.h>
#include <linux/cpuhotplug.h>
#include <linux/moduleparam.h>
#include <linux/printk.h>
#include <linux/sched/isolation.h>
#include <linux/string.h>

#include "qpw.h"

DEFINE_MUTEX(qpw_lru_mutex);
static struct cpumask remote_cpus;
static enum cpuhp_state cpuhp_slot;

static char *cpus = "all";
module_param(cpus, charp, 0444);
MODULE_PARM_DESC(cpus, "CPUs that are drained from elsewhere: all, isolated, or a list");

/* Those of a list; unused for `all` and `isolated`. */
static struct cpumask listed;
static enum { CHOSE_ALL, CHOSE_ISOLATED, CHOSE_LISTED } choice;

/* `isolated` is looked at every time: cpusets isolate CPUs, and give them back, while the system runs. */
bool qpw_cpu_chosen(unsigned int cpu)
{
	switch (choice) {
	case CHOSE_ISOLATED:
		return cpu_is_isolated(cpu);
	case CHOSE_LISTED:
		return cpumask_test_cpu(cpu, &listed);
	default:
		return true;
	}
}

static int choose(void)
{
	if (!strcmp(cpus, "all")) {
		choice = CHOSE_ALL;
	} else if (!strcmp(cpus, "isolated")) {
		choice = CHOSE_ISOLATED;
	} else {
		choice = CHOSE_LISTED;
		if (cpulist_parse(cpus, &listed)) {
			pr_err("cpus=%s: neither all, isolated, nor a list of CPUs\n", cpus);
			return -EINVAL;
		}
	}
	return 0;
}

bool qpw_cpu_remote_ok(unsigned int cpu)
{
	return cpumask_test_cpu(cpu, &remote_cpus) && qpw_cpu_chosen(cpu);
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
	int slot, err = choose();

	if (err)
		return err;
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
