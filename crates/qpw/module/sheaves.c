// SPDX-License-Identifier: GPL-2.0-only
/*
 * slub's per-CPU sheaves (Linux 7.3), and flush_rcu_sheaves_on_cache() of
 * mm/slub.c. Nothing is allocated or freed under a CPU's sheaf lock, but for
 * call_rcu(), as in the kernel's own functions.
 */
#include <linux/gfp.h>
#include <linux/overflow.h>
#include <linux/percpu.h>
#include <linux/slab.h>

#include "layout.h"
#include "qpw.h"

static void return_unset(struct kmem_cache *s, gfp_t gfp, struct slab_sheaf *sheaf)
{
}

DEFINE_STATIC_CALL(qpw_return_sheaf, return_unset);

/* Only given to call_rcu(), as the kernel does it: never called from here. */
static rcu_callback_t rcu_free_sheaf_nobarn;

static bool has_sheaves(struct kmem_cache *s)
{
	return s->sheaf_capacity != 0;
}

/*
 * Frees a sheaf's objects to their slabs, and the sheaf.
 *
 * kmem_cache_return_sheaf() does just that with a sheaf that has not the
 * cache's capacity. It is the only way in that is a whole function: the
 * kernel's own flush uses __kmem_cache_free_bulk(), of which the compiler left
 * only a part under a name of its own. The objects of a prefilled sheaf are, as
 * those here, past the free hooks.
 */
static void flush_sheaf(struct kmem_cache *s, struct slab_sheaf *sheaf)
{
	sheaf->capacity = 0;
	sheaf->pfmemalloc = true;
	static_call(qpw_return_sheaf)(s, GFP_NOWAIT, sheaf);
}

static void flush_rcu_sheaf(struct slab_sheaf *sheaf)
{
	if (sheaf)
		call_rcu(&sheaf->rcu_head, rcu_free_sheaf_nobarn);
}

/*
 * Takes all objects out of a CPU's main sheaf, into one that nobody else knows,
 * and frees them. The main sheaf itself has to stay.
 */
static void flush_main(struct kmem_cache *s, unsigned int cpu)
{
	struct slub_percpu_sheaves *pcs = per_cpu_ptr(s->cpu_sheaves, cpu);
	struct slab_sheaf *copy;

	/* Before the lock: kmalloc() may well want that very lock. */
	copy = kmalloc(struct_size(copy, objects, s->sheaf_capacity), GFP_KERNEL | __GFP_NOFAIL);
	qpw_lock(&s->cpu_sheaves->lock, cpu);
	copy->size = pcs->main->size;
	memcpy(copy->objects, pcs->main->objects, copy->size * sizeof(copy->objects[0]));
	pcs->main->size = 0;
	qpw_unlock(&s->cpu_sheaves->lock, cpu);
	copy->cache = s;
	flush_sheaf(s, copy);
}

bool qpw_slab_filled(struct kmem_cache *s, unsigned int cpu)
{
	struct slub_percpu_sheaves *pcs;

	if (!has_sheaves(s))
		return false;
	pcs = per_cpu_ptr(s->cpu_sheaves, cpu);
	return data_race(pcs->spare || pcs->rcu_free || pcs->main->size);
}

/* As pcs_flush_all(), for any CPU. */
void qpw_slab_flush(struct kmem_cache *s, unsigned int cpu)
{
	struct slub_percpu_sheaves *pcs = per_cpu_ptr(s->cpu_sheaves, cpu);
	struct slab_sheaf *spare, *rcu_free;

	qpw_lock(&s->cpu_sheaves->lock, cpu);
	spare = pcs->spare;
	pcs->spare = NULL;
	rcu_free = pcs->rcu_free;
	pcs->rcu_free = NULL;
	qpw_unlock(&s->cpu_sheaves->lock, cpu);

	if (spare)
		flush_sheaf(s, spare);
	flush_rcu_sheaf(rcu_free);
	flush_main(s, cpu);
}

/*
 * The lock is taken even where there is no rcu sheaf: __kfree_rcu_sheaf() may
 * have taken it out and not yet given it to call_rcu(), but does both under the
 * lock.
 */
static void flush_rcu_of(struct work_struct *work)
{
	struct qpw_flush *f = container_of(work, struct qpw_flush, work);
	struct kmem_cache *s = f->cache;
	struct slub_percpu_sheaves *pcs = per_cpu_ptr(s->cpu_sheaves, f->cpu);
	struct slab_sheaf *rcu_free;

	qpw_lock(&s->cpu_sheaves->lock, f->cpu);
	rcu_free = pcs->rcu_free;
	pcs->rcu_free = NULL;
	qpw_unlock(&s->cpu_sheaves->lock, f->cpu);
	flush_rcu_sheaf(rcu_free);
	atomic_long_inc(&qpw_n_rcu_sheaf);
}

static bool every_cpu(struct kmem_cache *s, unsigned int cpu)
{
	return true;
}

void qpw_flush_rcu_sheaves_on_cache(struct kmem_cache *s)
{
	atomic_long_inc(&qpw_n_calls);
	qpw_on_cpus(s, every_cpu, flush_rcu_of);
}

int qpw_slab_find(void)
{
	rcu_free_sheaf_nobarn = (rcu_callback_t)qpw_symbol("rcu_free_sheaf_nobarn");
	if (!rcu_free_sheaf_nobarn || !QPW_FIND(qpw_return_sheaf, "kmem_cache_return_sheaf"))
		return -ENOENT;
	return 0;
}
