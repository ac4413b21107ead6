// SPDX-License-Identifier: GPL-2.0-only
/*
 * slub's per-CPU caches: flush_all_cpus_locked() of mm/slub.c, for both kinds of
 * them (sheaves.c, cpu_slab.c). Its callers hold cpus_read_lock(), so no CPU
 * comes or goes here.
 *
 * Lock order: flush_mutex, then one CPU's lock.
 */
#include <linux/percpu.h>
#include <linux/slab.h>

#include "layout.h"
#include "qpw.h"

static DEFINE_MUTEX(flush_mutex);
static DEFINE_PER_CPU(struct qpw_flush, flushes);
/* For CPUs that are not chosen; callers may be in reclaim. */
static struct workqueue_struct *flush_wq;

void qpw_slab_count_remote(unsigned int cpu)
{
	if (cpu != raw_smp_processor_id())
		atomic_long_inc(&qpw_n_remote);
}

/*
 * Calls `flush` for each CPU of which something is `wanted`: here for those that
 * are chosen, and as a work item of the CPU's own, as the kernel does, for others.
 */
void qpw_on_cpus(struct kmem_cache *s, bool (*wanted)(struct kmem_cache *, unsigned int), work_func_t flush)
{
	unsigned int cpu;

	mutex_lock(&flush_mutex);
	for_each_online_cpu(cpu)
	{
		struct qpw_flush *f = per_cpu_ptr(&flushes, cpu);

		f->queued = false;
		if (!wanted(s, cpu))
			continue;
		f->cache = s;
		f->cpu = cpu;
		if (qpw_cpu_chosen(cpu)) {
			flush(&f->work);
			qpw_slab_count_remote(cpu);
			continue;
		}
		INIT_WORK(&f->work, flush);
		f->queued = true;
		queue_work_on(cpu, flush_wq, &f->work);
		atomic_long_inc(&qpw_n_work);
	}
	for_each_online_cpu(cpu)
	{
		if (per_cpu_ptr(&flushes, cpu)->queued)
			flush_work(&per_cpu_ptr(&flushes, cpu)->work);
	}
	mutex_unlock(&flush_mutex);
}

static void flush_one(struct work_struct *work)
{
	struct qpw_flush *f = container_of(work, struct qpw_flush, work);

	qpw_slab_flush(f->cache, f->cpu);
	atomic_long_inc(&qpw_n_sheaf);
}

void qpw_flush_all_cpus_locked(struct kmem_cache *s)
{
	atomic_long_inc(&qpw_n_calls);
	qpw_on_cpus(s, qpw_slab_filled, flush_one);
}

int qpw_slub_init(void)
{
	int err = qpw_slab_find();

	if (err)
		return err;
	flush_wq = alloc_workqueue("entrain_qpw", WQ_MEM_RECLAIM | WQ_PERCPU, 0);
	return flush_wq ? 0 : -ENOMEM;
}

void qpw_slub_exit(void)
{
	if (flush_wq)
		destroy_workqueue(flush_wq);
}
