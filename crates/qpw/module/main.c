// SPDX-License-Identifier: GPL-2.0-only
/*
 * Entrain QPW: drains of per-CPU caches that do not disturb the other CPUs, as
 * a livepatch for stock PREEMPT_RT kernels. Which functions are replaced, and
 * why that is correct, stands in each part's file and in docs/qpw.md.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/livepatch.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/printk.h>

#include "qpw.h"

static bool hot;
module_param(hot, bool, 0444);
MODULE_PARM_DESC(hot, "replace at once by ftrace; can not be unloaded");

static bool skip_stats;
module_param(skip_stats, bool, 0444);
MODULE_PARM_DESC(skip_stats, "vm.stat_refresh leaves isolated CPUs out");

static struct klp_func funcs[] = {
	{
		.old_name = "lru_add_drain_all",
		.new_func = qpw_lru_add_drain_all,
	},
	{
		.old_name = "lru_cache_disable",
		.new_func = qpw_lru_cache_disable,
	},
	{
		.old_name = "flush_all_cpus_locked",
		.new_func = qpw_flush_all_cpus_locked,
	},
	{
		.old_name = "flush_rcu_sheaves_on_cache",
		.new_func = qpw_flush_rcu_sheaves_on_cache,
	},
	/* Left empty without skip_stats. */
	{},
	{},
};

static struct klp_object objs[] = {
	/* No name: vmlinux. */
	{.funcs = funcs},
	{},
};

static struct klp_patch patch = {
	.mod = THIS_MODULE,
	.objs = objs,
};

static int find_all(void)
{
	int err = qpw_symbols_init();
	const struct klp_func *func;

	if (err)
		return err;
	for (func = funcs; func->old_name; func++)
		if (!qpw_whole(func->old_name))
			return -EINVAL;
	err = qpw_lru_init();
	if (!err)
		err = qpw_slub_init();
	if (!err && skip_stats)
		err = qpw_policy_init();
	return err;
}

static int __init qpw_init(void)
{
	int err = find_all();

	if (err)
		return err;
	if (skip_stats) {
		struct klp_func *last = &funcs[ARRAY_SIZE(funcs) - 2];

		last->old_name = "vmstat_refresh";
		last->new_func = qpw_vmstat_refresh;
	}
	err = qpw_cpus_init();
	if (err)
		return err;
	err = hot ? qpw_hot_start(funcs) : klp_enable_patch(&patch);
	if (err)
		qpw_cpus_exit();
	return err;
}

/* Only reached when livepatch has seen the last task leave the new functions. */
static void __exit qpw_exit(void)
{
	qpw_cpus_exit();
}

module_init(qpw_init);
module_exit(qpw_exit);
MODULE_AUTHOR("The Entrain developers");
MODULE_DESCRIPTION("Remote drains of per-CPU caches on PREEMPT_RT (QPW)");
MODULE_LICENSE("GPL");
MODULE_INFO(livepatch, "Y");
