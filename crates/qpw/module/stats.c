// SPDX-License-Identifier: GPL-2.0-only
/*
 * Counters for tests and for `entrain isolate qpw status`. They only grow.
 */
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/sysfs.h>

#include "qpw.h"

static int qpw_count_get(char *buffer, const struct kernel_param *kp)
{
	return sysfs_emit(buffer, "%ld\n", atomic_long_read(kp->arg));
}

static const struct kernel_param_ops qpw_count_ops = {
	.get = qpw_count_get,
};

#define QPW_COUNT(name, text)                                                                                          \
	atomic_long_t qpw_##name;                                                                                      \
	module_param_cb(name, &qpw_count_ops, &qpw_##name, 0444);                                                      \
	MODULE_PARM_DESC(name, text)

QPW_COUNT(n_calls, "calls of a replaced function");
QPW_COUNT(n_remote, "caches of another CPU that were drained through its lock");
QPW_COUNT(n_work, "work items queued on another CPU all the same");
QPW_COUNT(n_lru, "LRU and mlock batches of a CPU that were drained");
QPW_COUNT(n_sheaf, "slab sheaves of a CPU that were flushed");
QPW_COUNT(n_rcu_sheaf, "CPUs whose rcu sheaf was looked for");
QPW_COUNT(n_stock, "memcg stocks of an isolated CPU that were drained");
