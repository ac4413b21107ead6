// SPDX-License-Identifier: GPL-2.0-only
/*
 * The LRU and mlock batches: lru_add_drain_all() and lru_cache_disable() of
 * mm/folio.c. Both call __lru_add_drain_all(), but that is `inline`, hence
 * notrace, and livepatch has no place to patch in it.
 *
 * Lock order: outer mutex, qpw_lru_mutex, then of the remote CPU lock and
 * lock_irq, then this CPU's lock_irq (lru_add_drain_cpu() takes it whatever CPU
 * it drains), then the lruvec lock. Remote before own lock_irq could be an ABBA
 * with another drainer; the mutex lets only one at a time.
 */
#include <linux/buffer_head.h>
#include <linux/percpu.h>
#include <linux/rcupdate.h>
#include <linux/swap.h>
#include <linux/workqueue.h>

#include "layout.h"
#include "qpw.h"

static void drain_unset(void)
{
}

static void drain_cpu_unset(int cpu)
{
}

static void mlock_unset(struct folio_batch *fbatch)
{
}

static bool has_bh_unset(int cpu, void *dummy)
{
	return false;
}

DEFINE_STATIC_CALL(qpw_lru_add_drain, drain_unset);
DEFINE_STATIC_CALL(qpw_lru_add_drain_cpu, drain_cpu_unset);
DEFINE_STATIC_CALL(qpw_mlock_folio_batch, mlock_unset);
DEFINE_STATIC_CALL(qpw_has_bh_in_lru, has_bh_unset);
DEFINE_STATIC_CALL(qpw_invalidate_bh_lrus_cpu, drain_unset);

static struct cpu_fbatches __percpu *fbatches;
static struct mlock_fbatch __percpu *mlock_fbatches;
/* mm_percpu_wq: callers may be in reclaim, so it has to be one with a rescuer. */
static struct workqueue_struct **drain_wq;
static atomic_t *disable_count;
static DEFINE_PER_CPU(struct work_struct, qpw_lru_work);

/* What the kernel's own work item does. */
static void drain_here(struct work_struct *work)
{
	static_call(qpw_lru_add_drain)();
	static_call(qpw_invalidate_bh_lrus_cpu)();
}

static bool has_batched(unsigned int cpu)
{
	struct cpu_fbatches *f = per_cpu_ptr(fbatches, cpu);
	struct mlock_fbatch *m = per_cpu_ptr(mlock_fbatches, cpu);

	return data_race(folio_batch_count(&f->lru_add) || folio_batch_count(&f->lru_move_tail) ||
			 folio_batch_count(&f->lru_deactivate_file) || folio_batch_count(&f->lru_deactivate) ||
			 folio_batch_count(&f->lru_lazyfree) || folio_batch_count(&f->lru_activate) ||
			 folio_batch_count(&m->fbatch));
}

/* Migration is off and cpu is not this CPU. */
static void drain_remote(unsigned int cpu)
{
	struct mlock_fbatch *m = per_cpu_ptr(mlock_fbatches, cpu);

	qpw_lock(&fbatches->lock, cpu);
	/* lru_add_drain_cpu() locks this CPU's lock_irq only, and inside this one. */
	qpw_lock_outer(&fbatches->lock_irq, cpu);
	static_call(qpw_lru_add_drain_cpu)(cpu);
	qpw_unlock(&fbatches->lock_irq, cpu);
	qpw_unlock(&fbatches->lock, cpu);

	/* mlock_drain_remote() is for dead CPUs: no lock, and it warns. */
	qpw_lock(&mlock_fbatches->lock, cpu);
	if (folio_batch_count(&m->fbatch))
		static_call(qpw_mlock_folio_batch)(&m->fbatch);
	qpw_unlock(&mlock_fbatches->lock, cpu);
	atomic_long_inc(&qpw_n_lru);
	atomic_long_inc(&qpw_n_remote);
}

/* Drains what locks allow; notes in has_work the CPUs where they do not. */
static void drain_all_remote(struct cpumask *has_work)
{
	unsigned int cpu, this_cpu;

	mutex_lock(&qpw_lru_mutex);
	migrate_disable();
	this_cpu = smp_processor_id();
	for_each_online_cpu(cpu)
	{
		bool batched = has_batched(cpu);

		/*
		 * Buffer heads have no lock but disabled interrupts. Isolated
		 * CPUs do not cache any (bh_lru_install), so this is for the
		 * others, and for what a CPU had before it was isolated.
		 */
		if (static_call(qpw_has_bh_in_lru)(cpu, NULL) || (batched && !qpw_cpu_remote_ok(cpu)))
			__cpumask_set_cpu(cpu, has_work);
		if (!batched || !qpw_cpu_remote_ok(cpu))
			continue;
		/* Its own lock_irq would be taken twice on this CPU. */
		if (cpu == this_cpu)
			static_call(qpw_lru_add_drain)();
		else
			drain_remote(cpu);
	}
	migrate_enable();
	mutex_unlock(&qpw_lru_mutex);
}

/* As __lru_add_drain_all(); its generations are described there. */
static void drain_all(bool force_all_cpus)
{
	static unsigned int drain_gen;
	static struct cpumask has_work;
	static DEFINE_MUTEX(outer);
	unsigned int cpu, this_gen;

	atomic_long_inc(&qpw_n_calls);
	/* Counts of batches written here before, generation read after. */
	smp_mb();
	this_gen = smp_load_acquire(&drain_gen);
	static_call(qpw_lru_add_drain)();

	mutex_lock(&outer);
	/* Somebody began a whole drain after this call did. */
	if (unlikely(this_gen != drain_gen && !force_all_cpus))
		goto done;
	WRITE_ONCE(drain_gen, drain_gen + 1);
	/* New generation before counts of batches; pairs with the acquire. */
	smp_mb();

	cpumask_clear(&has_work);
	drain_all_remote(&has_work);
	/*
	 * qpw_lru_mutex is not held while waiting, or CPU hotplug would wait
	 * behind these work items too. A CPU that dies meanwhile takes its
	 * work with it, as with the kernel's own function.
	 */
	for_each_cpu(cpu, &has_work)
	{
		struct work_struct *work = per_cpu_ptr(&qpw_lru_work, cpu);

		INIT_WORK(work, drain_here);
		queue_work_on(cpu, *drain_wq, work);
		atomic_long_inc(&qpw_n_work);
	}
	for_each_cpu(cpu, &has_work) flush_work(per_cpu_ptr(&qpw_lru_work, cpu));
done:
	mutex_unlock(&outer);
}

void qpw_lru_add_drain_all(void)
{
	drain_all(false);
}

void qpw_lru_cache_disable(void)
{
	atomic_inc(disable_count);
	/* Whoever has not seen the count is past its locked section after this. */
	synchronize_rcu_expedited();
	drain_all(true);
}

int qpw_lru_init(void)
{
	disable_count = (atomic_t *)qpw_symbol("lru_disable_count");
	fbatches = (void __percpu *)qpw_symbol("cpu_fbatches");
	mlock_fbatches = (void __percpu *)qpw_symbol("mlock_fbatch");
	drain_wq = (void *)qpw_symbol("mm_percpu_wq");
	if (!fbatches || !mlock_fbatches || !drain_wq || !disable_count ||
	    !QPW_FIND(qpw_lru_add_drain, "lru_add_drain") || !QPW_FIND(qpw_lru_add_drain_cpu, "lru_add_drain_cpu") ||
	    !QPW_FIND(qpw_mlock_folio_batch, "mlock_folio_batch") || !QPW_FIND(qpw_has_bh_in_lru, "has_bh_in_lru") ||
	    !QPW_FIND(qpw_invalidate_bh_lrus_cpu, "invalidate_bh_lrus_cpu"))
		return -ENOENT;
	return 0;
}
