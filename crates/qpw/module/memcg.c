// SPDX-License-Identifier: GPL-2.0-only
/*
 * Charges of memory cgroups that lie in the stocks of isolated CPUs.
 *
 * drain_all_stock() of mm/memcontrol.c leaves isolated CPUs out: their charges
 * stay there, and a cgroup at its limit can't have them. It cannot be replaced:
 * the compiler splits it, and its callers hold the first part themselves. But
 * all of them come by the second part, so a kprobe there sees every drain. And
 * since drain_all_stock() waits for nothing, what it leaves out can be done a
 * moment later, by a work item on a CPU that is not isolated.
 *
 * What is not found here leaves charges where they are, as without this module:
 * no reason to refuse the rest.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/cpu.h>
#include <linux/jiffies.h>
#include <linux/kprobes.h>
#include <linux/memcontrol.h>
#include <linux/percpu.h>
#include <linux/printk.h>
#include <linux/sched/isolation.h>

#include "layout.h"
#include "qpw.h"

/*
 * A cgroup that hammers at its limit drains again and again; an isolated CPU's
 * lock is taken no more than once in this time.
 */
#define PAUSE_MS 10

static struct memcg_stock_pcp __percpu *stocks;

#if QPW_SHEAVES
#define UNBOUND	    system_dfl_wq
/* NR_MEMCG_STOCK and NR_OBJ_STOCK. */
#define STOCK_SLOTS 7
#define OBJ_SLOTS   5

static struct obj_stock_pcp __percpu *obj_stocks;

static void drain_unset(struct memcg_stock_pcp *stock, int slot)
{
}

static void drain_obj_unset(struct obj_stock_pcp *stock, int slot)
{
}

DEFINE_STATIC_CALL(qpw_drain_stock, drain_unset);
DEFINE_STATIC_CALL(qpw_drain_obj, drain_obj_unset);

/* As memcg_hotplug_cpu_dead(), for a CPU that lives: under its locks. */
static void drain_cpu(unsigned int cpu)
{
	int i;

	qpw_lock(&obj_stocks->lock, cpu);
	for (i = 0; i < OBJ_SLOTS; i++)
		static_call(qpw_drain_obj)(per_cpu_ptr(obj_stocks, cpu), i);
	qpw_unlock(&obj_stocks->lock, cpu);
	qpw_lock(&stocks->lock, cpu);
	for (i = 0; i < STOCK_SLOTS; i++)
		static_call(qpw_drain_stock)(per_cpu_ptr(stocks, cpu), i);
	qpw_unlock(&stocks->lock, cpu);
}

static bool find_functions(void)
{
	obj_stocks = (void __percpu *)qpw_symbol("obj_stock");
	return obj_stocks && QPW_FIND(qpw_drain_stock, "drain_stock") &&
	       QPW_FIND(qpw_drain_obj, "drain_obj_stock_slot");
}
#else
#define UNBOUND system_unbound_wq

static void drain_unset(struct memcg_stock_pcp *stock)
{
}

static struct obj_cgroup *drain_obj_unset(struct memcg_stock_pcp *stock)
{
	return NULL;
}

DEFINE_STATIC_CALL(qpw_drain_stock, drain_unset);
DEFINE_STATIC_CALL(qpw_drain_obj, drain_obj_unset);

/*
 * drain_obj_stock() puts whole pages into the stock of the CPU that it runs on,
 * so that one's lock is held as well: inside the remote one, and qpw_lru_mutex
 * lets only one task hold two.
 */
static void drain_cpu(unsigned int cpu)
{
	struct memcg_stock_pcp *stock = per_cpu_ptr(stocks, cpu);
	unsigned int own = raw_smp_processor_id();
	struct obj_cgroup *old;

	qpw_lock_outer(&stocks->stock_lock, cpu);
	qpw_lock(&stocks->stock_lock, own);
	old = static_call(qpw_drain_obj)(stock);
	qpw_unlock(&stocks->stock_lock, own);
	static_call(qpw_drain_stock)(stock);
	qpw_unlock(&stocks->stock_lock, cpu);
	if (old)
		obj_cgroup_put(old);
}

static bool find_functions(void)
{
	return QPW_FIND(qpw_drain_stock, "drain_stock") && QPW_FIND(qpw_drain_obj, "drain_obj_stock");
}
#endif

static void drain_isolated(struct work_struct *work)
{
	unsigned int cpu;

	mutex_lock(&qpw_lru_mutex);
	migrate_disable();
	for_each_online_cpu(cpu)
	{
		if (!cpu_is_isolated(cpu) || !qpw_cpu_remote_ok(cpu) || cpu == raw_smp_processor_id())
			continue;
		drain_cpu(cpu);
		atomic_long_inc(&qpw_n_stock);
	}
	migrate_enable();
	mutex_unlock(&qpw_lru_mutex);
}

static DECLARE_DELAYED_WORK(drain_work, drain_isolated);

/* Unbound work keeps away from isolated CPUs. While it is queued it is not queued again. */
static int drain_seen(struct kprobe *probe, struct pt_regs *regs)
{
	queue_delayed_work(UNBOUND, &drain_work, msecs_to_jiffies(PAUSE_MS));
	return 0;
}

static struct kprobe probe = {.pre_handler = drain_seen};
static bool probed;

int qpw_memcg_init(void)
{
	int err;

	stocks = (void __percpu *)qpw_symbol("memcg_stock");
	if (!stocks || !find_functions()) {
		pr_info("charges of memory cgroups stay in the stocks of isolated CPUs\n");
		return 0;
	}
	probe.symbol_name = qpw_split("drain_all_stock") ? "drain_all_stock.part.0" : "drain_all_stock";
	err = register_kprobe(&probe);
	probed = !err;
	if (err)
		pr_info("no kprobe on %s (error %d): charges stay in the stocks of isolated CPUs\n", probe.symbol_name,
			err);
	return 0;
}

void qpw_memcg_exit(void)
{
	if (probed)
		unregister_kprobe(&probe);
	cancel_delayed_work_sync(&drain_work);
}
