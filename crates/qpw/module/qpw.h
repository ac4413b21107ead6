/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Remote drains of per-CPU caches for PREEMPT_RT: what the parts of the module
 * share.
 *
 * On PREEMPT_RT a local_lock_t is a spinlock_t, one per CPU, and its fast paths
 * pay for it already. A drain can therefore take the lock of another CPU and do
 * the work itself, instead of queueing work that has to preempt whatever runs
 * there. After "QPW", Leonardo Bras, Linux Plumbers Conference 2024.
 */
#ifndef ENTRAIN_QPW_H
#define ENTRAIN_QPW_H

#include <linux/atomic.h>
#include <linux/cpumask.h>
#include <linux/mutex.h>
#include <linux/static_call.h>
#include <linux/types.h>
#include <linux/version.h>
#include <linux/workqueue.h>

#include "entrain_qpw.h"

/*
 * x86_64: inline static calls are direct, so a function without ENDBR may be
 * called. arm64: they are calls through a pointer, which BTI would refuse.
 */
#if !defined(CONFIG_X86_64) && !(defined(CONFIG_ARM64) && !defined(CONFIG_ARM64_BTI_KERNEL))
#error "only x86_64 and arm64 (without BTI in the kernel) are known to work"
#endif
#ifdef CONFIG_SLUB_TINY
#error "the private layouts in layout.h are those without it"
#endif

/* What slub keeps per CPU: sheaves (the drains of 7.3), or a slab and its free objects (6.12). */
#define QPW_SHEAVES (LINUX_VERSION_CODE >= KERNEL_VERSION(7, 3, 0))

struct ctl_table;
struct kmem_cache;

/* qpw_lock(), where this CPU's own lock of that name is taken inside: all CPUs' locks are one class to lockdep. */
#define qpw_lock_outer(lock, cpu) spin_lock_nested(per_cpu_ptr(lock, cpu), SINGLE_DEPTH_NESTING)

/* symbols.c: finds what is not exported; a name must be there exactly once. */
int qpw_symbols_init(void);
unsigned long qpw_symbol(const char *name);
bool qpw_split(const char *name);

/* Points the static call at the kernel's function; false if there is none. */
#define QPW_FIND(call, name)                                                                                           \
	({                                                                                                             \
		unsigned long __addr = qpw_symbol(name);                                                               \
                                                                                                                       \
		if (__addr)                                                                                            \
			static_call_update(call, (typeof(&STATIC_CALL_TRAMP(call)))__addr);                            \
		__addr != 0;                                                                                           \
	})

/*
 * cpus.c: the CPUs whose LRU batches may be touched from elsewhere. Stable while
 * the mutex is held; a CPU leaves before the kernel's own lockless drain of a
 * dead CPU can run.
 */
extern struct mutex qpw_lru_mutex;
bool qpw_cpu_remote_ok(unsigned int cpu);
/* Whether this CPU is one of those that are to be left in peace (parameter `cpus`). Any other gets a work item. */
bool qpw_cpu_chosen(unsigned int cpu);
int qpw_cpus_init(void);
void qpw_cpus_exit(void);

/* One file per part of mm: find the symbols; then the replacements. */
int qpw_lru_init(void);
void qpw_lru_add_drain_all(void);
void qpw_lru_cache_disable(void);
int qpw_slub_init(void);
void qpw_slub_exit(void);
void qpw_flush_all_cpus_locked(struct kmem_cache *s);
#if QPW_SHEAVES
void qpw_flush_rcu_sheaves_on_cache(struct kmem_cache *s);
#endif

/* slub.c: what both kinds of per-CPU slabs share. Runs `flush` for a CPU, on that CPU where it is not a chosen one. */
struct qpw_flush {
	struct work_struct work;
	struct kmem_cache *cache;
	unsigned int cpu;
	bool queued;
};
bool qpw_slab_filled(struct kmem_cache *s, unsigned int cpu);
void qpw_slab_flush(struct kmem_cache *s, unsigned int cpu);
int qpw_slab_find(void);
void qpw_slab_count_remote(unsigned int cpu);
void qpw_on_cpus(struct kmem_cache *s, bool (*wanted)(struct kmem_cache *, unsigned int), work_func_t flush);

/* memcg.c: charges that isolated CPUs hold. */
int qpw_memcg_init(void);
void qpw_memcg_exit(void);

int qpw_policy_init(void);
int qpw_vmstat_refresh(const struct ctl_table *table, int write, void *buffer, size_t *lenp, loff_t *ppos);

/* A function of the kernel, and ours. A list ends with an empty one. */
struct qpw_replacement {
	const char *name;
	void *with;
};

/* hot.c: the replacements at once, without livepatch's transition. */
int qpw_hot_start(const struct qpw_replacement *list);

/* stats.c: read in /sys/module/entrain_qpw/parameters. */
extern atomic_long_t qpw_n_calls;     /* drains and flushes of any kind */
extern atomic_long_t qpw_n_remote;    /* CPUs drained through their lock */
extern atomic_long_t qpw_n_work;      /* CPUs that needed a work item */
extern atomic_long_t qpw_n_lru;	      /* LRU batches of one CPU drained */
extern atomic_long_t qpw_n_sheaf;     /* sheaves of one CPU flushed */
extern atomic_long_t qpw_n_rcu_sheaf; /* looked for an rcu sheaf on one CPU */
extern atomic_long_t qpw_n_stock;     /* memcg stocks of one CPU drained */

#endif
