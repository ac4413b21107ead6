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

static struct qpw_replacement replacements[] = {
	{"lru_add_drain_all", qpw_lru_add_drain_all},
	{"lru_cache_disable", qpw_lru_cache_disable},
	{"flush_all_cpus_locked", qpw_flush_all_cpus_locked},
#if QPW_SHEAVES
	{"flush_rcu_sheaves_on_cache", qpw_flush_rcu_sheaves_on_cache},
#endif
	/* Left empty without skip_stats. */
	{},
	{},
};

#ifdef CONFIG_LIVEPATCH
static struct klp_func funcs[ARRAY_SIZE(replacements)];

static struct klp_object objs[] = {
	/* No name: vmlinux. */
	{.funcs = funcs},
	{},
};

static struct klp_patch patch = {
	.mod = THIS_MODULE,
	.objs = objs,
};

static int patch_start(void)
{
	int i;

	for (i = 0; replacements[i].name; i++) {
		funcs[i].old_name = replacements[i].name;
		funcs[i].new_func = replacements[i].with;
	}
	return klp_enable_patch(&patch);
}
#else
static int patch_start(void)
{
	pr_err("this kernel has no livepatch (CONFIG_LIVEPATCH): load with hot=1\n");
	return -EOPNOTSUPP;
}
#endif

static int find_all(void)
{
	int err = qpw_symbols_init();
	const struct qpw_replacement *r;

	if (err)
		return err;
	for (r = replacements; r->name; r++) {
		if (!qpw_split(r->name))
			continue;
		pr_err("%s was split by the compiler: replacing it would not reach its callers\n", r->name);
		return -EINVAL;
	}
	err = qpw_lru_init();
	if (!err && skip_stats)
		err = qpw_policy_init();
	/* Last: it is the one that has something to undo. */
	return err ? err : qpw_slub_init();
}

static int __init qpw_init(void)
{
	int err = find_all();

	if (err)
		return err;
	if (skip_stats)
		replacements[ARRAY_SIZE(replacements) - 2] =
			(struct qpw_replacement){"vmstat_refresh", qpw_vmstat_refresh};
	err = qpw_cpus_init();
	if (err)
		goto no_cpus;
	err = qpw_memcg_init();
	if (err)
		goto no_memcg;
	err = hot ? qpw_hot_start(replacements) : patch_start();
	if (!err)
		return 0;
	qpw_memcg_exit();
no_memcg:
	qpw_cpus_exit();
no_cpus:
	qpw_slub_exit();
	return err;
}

/* Only reached when livepatch has seen the last task leave the new functions. */
static void __exit qpw_exit(void)
{
	qpw_memcg_exit();
	qpw_cpus_exit();
	qpw_slub_exit();
}

module_init(qpw_init);
module_exit(qpw_exit);
MODULE_AUTHOR("The Entrain developers");
MODULE_DESCRIPTION("Remote drains of per-CPU caches on PREEMPT_RT (QPW)");
MODULE_LICENSE("GPL");
#ifdef CONFIG_LIVEPATCH
MODULE_INFO(livepatch, "Y");
#endif
