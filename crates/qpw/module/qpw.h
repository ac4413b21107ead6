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
#include <linux/local_lock.h>
#include <linux/mutex.h>
#include <linux/static_call.h>
#include <linux/types.h>

#ifndef CONFIG_PREEMPT_RT
#error "without PREEMPT_RT a local_lock is no lock that another CPU could take"
#endif
#ifndef CONFIG_X86_64
/* The calls into the kernel are direct only with inline static calls. */
#error "only x86_64 is known to work"
#endif
#ifdef CONFIG_SLUB_TINY
#error "the private layouts in layout.h are those without it"
#endif

struct ctl_table;
struct kmem_cache;

/* lock: a local_lock_t or local_trylock_t, per CPU. As any spinlock on RT it keeps the task from migrating. */
#define qpw_lock(lock, cpu)	  spin_lock(per_cpu_ptr(lock, cpu))
#define qpw_unlock(lock, cpu)	  spin_unlock(per_cpu_ptr(lock, cpu))
/* The same, where this CPU's own lock of that name is taken inside: all CPUs' locks are one class to lockdep. */
#define qpw_lock_outer(lock, cpu) spin_lock_nested(per_cpu_ptr(lock, cpu), SINGLE_DEPTH_NESTING)

/* symbols.c: finds what is not exported; a name must be there exactly once. */
int qpw_symbols_init(void);
unsigned long qpw_symbol(const char *name);
bool qpw_whole(const char *name);

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
int qpw_cpus_init(void);
void qpw_cpus_exit(void);

/* One file per part of mm: find the symbols; then the replacements. */
int qpw_lru_init(void);
void qpw_lru_add_drain_all(void);
void qpw_lru_cache_disable(void);
int qpw_slub_init(void);
void qpw_flush_all_cpus_locked(struct kmem_cache *s);
void qpw_flush_rcu_sheaves_on_cache(struct kmem_cache *s);
int qpw_policy_init(void);
int qpw_vmstat_refresh(const struct ctl_table *table, int write, void *buffer, size_t *lenp, loff_t *ppos);

/* hot.c: the same replacements at once, without livepatch's transition. */
struct klp_func;
int qpw_hot_start(const struct klp_func *funcs);

/* stats.c: read in /sys/module/entrain_qpw/parameters. */
extern atomic_long_t qpw_n_calls;     /* drains and flushes of any kind */
extern atomic_long_t qpw_n_remote;    /* CPUs drained through their lock */
extern atomic_long_t qpw_n_work;      /* CPUs that needed a work item */
extern atomic_long_t qpw_n_lru;	      /* LRU batches of one CPU drained */
extern atomic_long_t qpw_n_sheaf;     /* sheaves of one CPU flushed */
extern atomic_long_t qpw_n_rcu_sheaf; /* looked for an rcu sheaf on one CPU */

#endif
