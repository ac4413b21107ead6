// SPDX-License-Identifier: GPL-2.0-only
/*
 * The memory cgroups' per-CPU stocks of charges: drain_all_stock() of
 * mm/memcontrol.c.
 *
 * The kernel queues work for the other CPUs and leaves the stocks of isolated
 * CPUs alone, so that a limit may be hit while charges lie unused there. Here
 * all are drained through their locks.
 *
 * Lock order: qpw_memcg_mutex, then one CPU's stock lock. All others only try
 * these locks (local_trylock) and charge the slow way if they fail, so whatever
 * they hold cannot make a cycle.
 */
#include <linux/memcontrol.h>
#include <linux/percpu.h>

#include "layout.h"
#include "qpw.h"

static void drain_stock_unset(struct memcg_stock_pcp *stock, int i)
{
}

static void drain_obj_unset(struct obj_stock_pcp *stock, int i)
{
}

DEFINE_STATIC_CALL(qpw_drain_stock, drain_stock_unset);
DEFINE_STATIC_CALL(qpw_drain_obj_stock_slot, drain_obj_unset);

static struct memcg_stock_pcp __percpu *memcg_stocks;
static struct obj_stock_pcp __percpu *obj_stocks;

/* Whether a page stock holds charges of root or of a group below it. */
static bool stock_of(struct memcg_stock_pcp *stock, struct mem_cgroup *root)
{
	bool found = false;
	int i;

	/* A cached group may go away meanwhile; its memory does not, in RCU. */
	rcu_read_lock();
	for (i = 0; i < NR_MEMCG_STOCK && !found; i++) {
		struct mem_cgroup *memcg = READ_ONCE(stock->cached[i]);

		found = memcg && READ_ONCE(stock->nr_pages[i]) && mem_cgroup_is_descendant(memcg, root);
	}
	rcu_read_unlock();
	return found;
}

static bool obj_stock_of(struct obj_stock_pcp *stock, struct mem_cgroup *root)
{
	bool found = false;
	int i;

	rcu_read_lock();
	for (i = 0; i < NR_OBJ_STOCK && !found; i++) {
		struct obj_cgroup *objcg = READ_ONCE(stock->cached[i]);
		struct mem_cgroup *memcg = objcg ? obj_cgroup_memcg(objcg) : NULL;

		found = memcg && mem_cgroup_is_descendant(memcg, root);
	}
	rcu_read_unlock();
	return found;
}

/* The current CPU's own locks are taken just as well: this task does not hold them. */
static bool drain_cpu(unsigned int cpu, struct mem_cgroup *root)
{
	struct memcg_stock_pcp *stock = per_cpu_ptr(memcg_stocks, cpu);
	struct obj_stock_pcp *obj_stock = per_cpu_ptr(obj_stocks, cpu);
	bool drained = false;
	int i;

	/* First the objects: what they leave as whole pages is uncharged. */
	if (obj_stock_of(obj_stock, root)) {
		qpw_lock(&obj_stocks->lock, cpu);
		for (i = 0; i < NR_OBJ_STOCK; i++)
			static_call(qpw_drain_obj_stock_slot)(obj_stock, i);
		qpw_unlock(&obj_stocks->lock, cpu);
		drained = true;
	}
	if (stock_of(stock, root)) {
		qpw_lock(&memcg_stocks->lock, cpu);
		for (i = 0; i < NR_MEMCG_STOCK; i++)
			static_call(qpw_drain_stock)(stock, i);
		qpw_unlock(&memcg_stocks->lock, cpu);
		drained = true;
	}
	return drained;
}

void qpw_drain_all_stock(struct mem_cgroup *root)
{
	unsigned int cpu;

	atomic_long_inc(&qpw_n_calls);
	/* Somebody drains already, or a CPU comes or goes: as the kernel's. */
	if (!mutex_trylock(&qpw_memcg_mutex))
		return;
	migrate_disable();
	for_each_online_cpu(cpu)
	{
		/* The kernel drains a dying CPU's stock itself. */
		if (!qpw_cpu_remote_ok(cpu) || !drain_cpu(cpu, root))
			continue;
		atomic_long_inc(&qpw_n_stock);
		if (cpu != smp_processor_id())
			atomic_long_inc(&qpw_n_remote);
	}
	migrate_enable();
	mutex_unlock(&qpw_memcg_mutex);
}

int qpw_memcg_init(void)
{
	memcg_stocks = (void __percpu *)qpw_symbol("memcg_stock");
	obj_stocks = (void __percpu *)qpw_symbol("obj_stock");
	if (!memcg_stocks || !obj_stocks || !QPW_FIND(qpw_drain_stock, "drain_stock") ||
	    !QPW_FIND(qpw_drain_obj_stock_slot, "drain_obj_stock_slot"))
		return -ENOENT;
	return 0;
}
