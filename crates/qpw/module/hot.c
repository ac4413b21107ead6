// SPDX-License-Identifier: GPL-2.0-only
/*
 * The replacements at once, for a machine on which a FIFO task spins already.
 *
 * livepatch switches task by task, and to end it wants work done on each CPU
 * (klp_sync), behind that very task. Each replacement here works beside its
 * original, since both take the same locks, so no such transition is needed:
 * ftrace alone will do. The price is that the module can not be unloaded:
 * nobody would know when the last task has left its functions.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/ftrace.h>
#include <linux/module.h>
#include <linux/printk.h>
#include <linux/slab.h>

#include "qpw.h"

struct hot {
	struct ftrace_ops ops;
	unsigned long new_ip;
};

static void notrace hot_entry(unsigned long ip, unsigned long parent, struct ftrace_ops *ops, struct ftrace_regs *regs)
{
	struct hot *hot = container_of(ops, struct hot, ops);

	ftrace_regs_set_instruction_pointer(regs, hot->new_ip);
}

static int redirect(const struct qpw_replacement *r)
{
	unsigned long ip = qpw_symbol(r->name);
	struct hot *hot;
	int err;

	if (!ip)
		return -ENOENT;
	hot = kzalloc(sizeof(*hot), GFP_KERNEL);
	if (!hot)
		return -ENOMEM;
	hot->new_ip = (unsigned long)r->with;
	hot->ops.func = hot_entry;
	hot->ops.flags = FTRACE_OPS_FL_IPMODIFY | FTRACE_OPS_FL_PERMANENT;
	err = ftrace_set_filter_ip(&hot->ops, ip, 0, 0);
	if (!err)
		err = register_ftrace_function(&hot->ops);
	if (err) {
		pr_err("%s can not be replaced by ftrace: error %d\n", r->name, err);
		kfree(hot);
	}
	return err;
}

/* Returns an error only if nothing was replaced. */
int qpw_hot_start(const struct qpw_replacement *list)
{
	const struct qpw_replacement *r;
	int done = 0, err = 0;

	for (r = list; r->name; r++) {
		err = redirect(r);
		if (err)
			break;
		done++;
	}
	if (!done)
		return err;
	__module_get(THIS_MODULE);
	if (err)
		pr_warn("only the first %d functions are replaced\n", done);
	return 0;
}
