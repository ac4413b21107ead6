/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Private types of mm/ with PREEMPT_RT: Linux 7.3, and 6.12 (no QPW_SHEAVES). The
 * sizes and offsets below stand in src/known.rs as well; `entrain isolate qpw
 * build` compares them with the kernel's own BTF and does not build for a kernel
 * that differs.
 */
#ifndef ENTRAIN_QPW_LAYOUT_H
#define ENTRAIN_QPW_LAYOUT_H

#include "qpw.h"

#include <linux/build_bug.h>
#include <linux/rcupdate.h>
#include <linux/reciprocal_div.h>
#include <linux/slab.h>

#if QPW_SHEAVES
#include <linux/folio_batch.h>
#else
#include <linux/pagevec.h>
#endif

#ifdef CONFIG_DEBUG_LOCK_ALLOC
/* The lock's name and state for lockdep, and those of the raw lock in it. */
#define LOCK_BYTES 128
#else
#define LOCK_BYTES 32
#endif
static_assert(sizeof(local_lock_t) == LOCK_BYTES);

/* mm/folio.c */
struct cpu_fbatches {
	local_lock_t lock;
	struct folio_batch lru_add;
	struct folio_batch lru_deactivate_file;
	struct folio_batch lru_deactivate;
	struct folio_batch lru_lazyfree;
	struct folio_batch lru_activate;
	local_lock_t lock_irq;
	struct folio_batch lru_move_tail;
};

static_assert(sizeof(struct cpu_fbatches) == 1536 + 2 * LOCK_BYTES);

/* mm/mlock.c */
struct mlock_fbatch {
	local_lock_t lock;
	struct folio_batch fbatch;
};

static_assert(sizeof(struct mlock_fbatch) == 256 + LOCK_BYTES);

#if QPW_SHEAVES

static_assert(sizeof(local_trylock_t) == LOCK_BYTES);

/* mm/slub.c; the union's other members are of no use here */
struct slab_sheaf {
	union {
		struct rcu_head rcu_head;
		struct {
			unsigned int capacity;
			bool pfmemalloc;
		};
	};
	struct kmem_cache *cache;
	unsigned int size;
	int node;
	void *objects[];
};

static_assert(sizeof(struct slab_sheaf) == 32);
static_assert(offsetof(struct slab_sheaf, size) == 24);

struct slub_percpu_sheaves {
	local_trylock_t lock;
	struct slab_sheaf *main;     /* never NULL while unlocked */
	struct slab_sheaf *spare;    /* empty or full, may be NULL */
	struct slab_sheaf *rcu_free; /* filled by kfree_rcu_nolock() */
};

static_assert(sizeof(struct slub_percpu_sheaves) == 24 + LOCK_BYTES);

/* mm/slab.h, as far as it is needed */
struct kmem_cache {
	struct slub_percpu_sheaves __percpu *cpu_sheaves;
	slab_flags_t flags;
	unsigned long min_partial;
	unsigned int size;
	unsigned int object_size;
	struct reciprocal_value reciprocal_size;
	unsigned int offset;
	unsigned int sheaf_capacity;
};

static_assert(offsetof(struct kmem_cache, sheaf_capacity) == 44);

/* mm/memcontrol.c; only the lock is taken here, the rest is handed on. */
struct memcg_stock_pcp {
	local_trylock_t lock;
	uint8_t nr_pages[7];
	struct mem_cgroup *cached[7];
};

struct obj_stock_pcp {
	local_trylock_t lock;
};

#define QPW_STOCK_LOCK lock

#else /* 6.12 */

/* mm/slub.c */
struct kmem_cache_cpu {
	void **freelist;
	unsigned long tid;
	struct slab *slab;
	struct slab *partial;
	local_lock_t lock;
};

static_assert(sizeof(struct kmem_cache_cpu) == 32 + LOCK_BYTES);

/* mm/slab.h, as far as it is needed */
struct kmem_cache {
	struct kmem_cache_cpu __percpu *cpu_slab;
};

/* mm/memcontrol.c, as far as it is needed */
struct memcg_stock_pcp {
	local_lock_t stock_lock;
	struct mem_cgroup *cached;
	unsigned int nr_pages;
	struct obj_cgroup *cached_objcg;
};

#define QPW_STOCK_LOCK stock_lock

#endif /* QPW_SHEAVES */

#endif
