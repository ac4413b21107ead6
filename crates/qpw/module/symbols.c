// SPDX-License-Identifier: GPL-2.0-only
/*
 * Addresses of what the kernel does not export.
 *
 * kallsyms_lookup_name() is not exported either; a kprobe tells where it is.
 * The functions found are only called through static calls: those are direct
 * calls, so a function without an ENDBR at its entry is no fault with IBT.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/kallsyms.h>
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/printk.h>

#include "qpw.h"

static unsigned long lookup_unset(const char *name)
{
	return 0;
}

static int each_unset(int (*fn)(void *, unsigned long), const char *name, void *data)
{
	return 0;
}

DEFINE_STATIC_CALL(qpw_lookup_name, lookup_unset);
DEFINE_STATIC_CALL(qpw_each_match, each_unset);

static int count_match(void *data, unsigned long addr)
{
	unsigned int *found = data;

	(*found)++;
	return 0;
}

/* The address of @name in vmlinux, or 0 with a message. */
unsigned long qpw_symbol(const char *name)
{
	unsigned int found = 0;

	static_call(qpw_each_match)(count_match, name, &found);
	if (found != 1) {
		pr_err("%s is in this kernel %u times, not once\n", name, found);
		return 0;
	}
	return static_call(qpw_lookup_name)(name);
}

/*
 * Whether the compiler split @name (drain_all_stock() is such a one): then
 * callers hold its first part themselves and call the rest under a name with a
 * suffix, and replacing it would not reach them.
 */
bool qpw_split(const char *name)
{
	static const char *const suffixes[] = {"part.0", "isra.0", "constprop.0"};
	char clone[KSYM_NAME_LEN];
	unsigned int found = 0;
	int i;

	for (i = 0; i < ARRAY_SIZE(suffixes); i++) {
		snprintf(clone, sizeof(clone), "%s.%s", name, suffixes[i]);
		static_call(qpw_each_match)(count_match, clone, &found);
	}
	return found;
}

int qpw_symbols_init(void)
{
	struct kprobe probe = {.symbol_name = "kallsyms_lookup_name"};
	unsigned long addr;
	int err;

	err = register_kprobe(&probe);
	if (err) {
		pr_err("no kprobe on kallsyms_lookup_name: error %d\n", err);
		return err;
	}
	/* With IBT this is the instruction after ENDBR: as good for a call. */
	addr = (unsigned long)probe.addr;
	unregister_kprobe(&probe);
	static_call_update(qpw_lookup_name, (typeof(&lookup_unset))addr);

	addr = static_call(qpw_lookup_name)("kallsyms_on_each_match_symbol");
	if (!addr) {
		pr_err("kallsyms_on_each_match_symbol is not in this kernel\n");
		return -ENOENT;
	}
	static_call_update(qpw_each_match, (typeof(&each_unset))addr);
	return 0;
}
