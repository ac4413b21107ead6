// SPDX-License-Identifier: GPL-2.0-only
/*
 * slub's slab per CPU with its free objects and its list of partial slabs (Linux
 * 6.12). On PREEMPT_RT slub has no lockless fast path: whoever touches these
 * fields holds the CPU's local lock (USE_LOCKLESS_FAST_PATH() of mm/slub.c), and
 * the kernel's own flush may come between any two such sections, since a
 * preempted allocation stands aside for the work item. So a remote flush comes
 * between the same sections.
 */
#include <linux/log2.h>
#include <linux/percpu.h>
#include <linux/slab.h>

#include "layout.h"
#include "qpw.h"

/* As TID_STEP of mm/slub.c: the id of a transaction keeps naming its CPU. */
#define TID_STEP roundup_pow_of_two(CONFIG_NR_CPUS)

static void deactivate_unset(struct kmem_cache *s, struct slab *slab, void *freelist)
{
}

static void put_unset(struct kmem_cache *s, struct slab *partial)
{
}

DEFINE_STATIC_CALL(qpw_deactivate_slab, deactivate_unset);
DEFINE_STATIC_CALL(qpw_put_partials, put_unset);

bool qpw_slab_filled(struct kmem_cache *s, unsigned int cpu)
{
	struct kmem_cache_cpu *c = per_cpu_ptr(s->cpu_slab, cpu);

	return data_race(c->slab || c->partial);
}

/* As flush_slab() and put_partials(), for any CPU. What is taken out belongs to nobody else. */
void qpw_slab_flush(struct kmem_cache *s, unsigned int cpu)
{
	struct kmem_cache_cpu *c = per_cpu_ptr(s->cpu_slab, cpu);
	struct slab *slab, *partial;
	void *freelist;

	qpw_lock(&s->cpu_slab->lock, cpu);
	slab = c->slab;
	freelist = c->freelist;
	partial = c->partial;
	c->slab = NULL;
	c->freelist = NULL;
	c->tid += TID_STEP;
	c->partial = NULL;
	qpw_unlock(&s->cpu_slab->lock, cpu);

	if (slab)
		static_call(qpw_deactivate_slab)(s, slab, freelist);
	if (partial)
		static_call(qpw_put_partials)(s, partial);
}

int qpw_slab_find(void)
{
	if (!QPW_FIND(qpw_deactivate_slab, "deactivate_slab") || !QPW_FIND(qpw_put_partials, "__put_partials"))
		return -ENOENT;
	return 0;
}
