/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * QPW for other modules: work on another CPU's data, without disturbing that CPU.
 *
 * The pattern of "QPW" (Leonardo Bras, Linux Plumbers Conference 2024), with its
 * names. Data per CPU lie under a local_lock_t. The owner takes qpw_lock() of its
 * own CPU; whoever works on all CPUs' data queues one struct qpw_struct each:
 *
 *	static void drain(struct work_struct *work)
 *	{
 *		int cpu = qpw_get_cpu(work);
 *
 *		qpw_lock(&cache.lock, cpu);
 *		... per_cpu_ptr(&cache, cpu) ...
 *		qpw_unlock(&cache.lock, cpu);
 *	}
 *
 *	cpus_read_lock();
 *	for_each_online_cpu(cpu) {
 *		INIT_QPW(per_cpu_ptr(&works, cpu), drain, cpu);
 *		queue_percpu_work_on(cpu, system_percpu_wq, per_cpu_ptr(&works, cpu));
 *	}
 *	for_each_online_cpu(cpu)
 *		flush_percpu_work(per_cpu_ptr(&works, cpu));
 *	cpus_read_unlock();
 *
 * For a CPU that the module's parameter `cpus` names the function runs at once,
 * in the caller; for any other it is an ordinary work item of that CPU. The
 * function must not use this_cpu_*() nor what belongs to the hardware of its CPU,
 * and must not sleep under the lock. It is not called with the lock held.
 *
 * Needs PREEMPT_RT, where a local_lock_t is a spinlock_t: elsewhere there is
 * nothing that another CPU could take.
 */
#ifndef ENTRAIN_QPW_API_H
#define ENTRAIN_QPW_API_H

/* First: local_lock.h of 6.12 does not include what it needs. */
#include <linux/spinlock.h>

#include <linux/local_lock.h>
#include <linux/percpu.h>
#include <linux/workqueue.h>

#ifndef CONFIG_PREEMPT_RT
#error "without PREEMPT_RT a local_lock is no lock that another CPU could take"
#endif

struct qpw_struct {
	struct work_struct work;
	int cpu;
};

/* lock: a local_lock_t or local_trylock_t, per CPU. As any spinlock on RT it keeps the task from migrating. */
#define qpw_lock(lock, cpu)   spin_lock(per_cpu_ptr(lock, cpu))
#define qpw_unlock(lock, cpu) spin_unlock(per_cpu_ptr(lock, cpu))

#define INIT_QPW(qpw, func, number)                                                                                    \
	do {                                                                                                           \
		INIT_WORK(&(qpw)->work, (func));                                                                       \
		(qpw)->cpu = (number);                                                                                 \
	} while (0)

static inline int qpw_get_cpu(struct work_struct *work)
{
	return container_of(work, struct qpw_struct, work)->cpu;
}

/* Returns whether it was queued or has run; false while it is queued already. The caller keeps CPUs from going away. */
bool entrain_qpw_queue_on(int cpu, struct workqueue_struct *wq, struct qpw_struct *qpw);
/* Waits until it has run. */
bool entrain_qpw_flush(struct qpw_struct *qpw);

/* The names under which a kernel may have these itself one day: then they are its own. */
#ifndef queue_percpu_work_on
#define queue_percpu_work_on entrain_qpw_queue_on
#define flush_percpu_work    entrain_qpw_flush
#endif

#endif
