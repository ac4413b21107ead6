// SPDX-License-Identifier: GPL-2.0-only
/*
 * A cache per CPU in a module of one's own, drained by the pattern of
 * entrain_qpw.h. Read and written in /sys/module/entrain_qpw_example/parameters:
 *
 *	put      adds so many items to the cache of the CPU that writes
 *	drain    1: takes all CPUs' items by queue_percpu_work_on(); 0: by
 *	         queue_work_on(), as without QPW
 *	drained  items taken so far
 *	remote   caches that were drained by another CPU than their own, so far
 */
#include <linux/atomic.h>
#include <linux/cpu.h>
#include <linux/kstrtox.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/sysfs.h>

#include "entrain_qpw.h"

struct cache {
	local_lock_t lock;
	unsigned long items;
};

static DEFINE_PER_CPU(struct cache, caches) = {.lock = INIT_LOCAL_LOCK(lock)};
static DEFINE_PER_CPU(struct qpw_struct, works);
static struct workqueue_struct *wq;
static atomic_long_t drained, remote;

static void drain_one(struct work_struct *work)
{
	int cpu = qpw_get_cpu(work);
	struct cache *cache = per_cpu_ptr(&caches, cpu);

	qpw_lock(&caches.lock, cpu);
	atomic_long_add(cache->items, &drained);
	cache->items = 0;
	if (cpu != raw_smp_processor_id())
		atomic_long_inc(&remote);
	qpw_unlock(&caches.lock, cpu);
}

static int put(const char *text, const struct kernel_param *kp)
{
	unsigned long items;
	int err = kstrtoul(text, 0, &items);

	if (err)
		return err;
	/* The owner's own way: as before QPW. */
	local_lock(&caches.lock);
	this_cpu_add(caches.items, items);
	local_unlock(&caches.lock);
	return 0;
}

static int drain(const char *text, const struct kernel_param *kp)
{
	bool here;
	int cpu, err = kstrtobool(text, &here);

	if (err)
		return err;
	cpus_read_lock();
	for_each_online_cpu(cpu)
	{
		struct qpw_struct *qpw = per_cpu_ptr(&works, cpu);

		INIT_QPW(qpw, drain_one, cpu);
		if (here)
			queue_percpu_work_on(cpu, wq, qpw);
		else
			queue_work_on(cpu, wq, &qpw->work);
	}
	for_each_online_cpu(cpu) flush_percpu_work(per_cpu_ptr(&works, cpu));
	cpus_read_unlock();
	return 0;
}

static int show(char *buffer, const struct kernel_param *kp)
{
	return sysfs_emit(buffer, "%ld\n", atomic_long_read(kp->arg));
}

static const struct kernel_param_ops put_ops = {.set = put};
static const struct kernel_param_ops drain_ops = {.set = drain};
static const struct kernel_param_ops show_ops = {.get = show};
module_param_cb(put, &put_ops, NULL, 0200);
module_param_cb(drain, &drain_ops, NULL, 0200);
module_param_cb(drained, &show_ops, &drained, 0444);
module_param_cb(remote, &show_ops, &remote, 0444);

static int __init example_init(void)
{
	wq = alloc_workqueue("entrain_qpw_example", WQ_PERCPU, 0);
	return wq ? 0 : -ENOMEM;
}

static void __exit example_exit(void)
{
	destroy_workqueue(wq);
}

module_init(example_init);
module_exit(example_exit);
MODULE_AUTHOR("The Entrain developers");
MODULE_DESCRIPTION("A cache per CPU that is drained by the pattern of entrain_qpw.h");
MODULE_LICENSE("GPL");
