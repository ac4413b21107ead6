/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Stands in for the header of that name in the kernel's tools/sched_ext and in scx: what the peers take from it, by the
 * simulator's own helpers and Entrain's declarations of the kernel's structures.
 */
#ifndef ENTRAIN_SIM_PEERS_COMMON_H
#define ENTRAIN_SIM_PEERS_COMMON_H

#include <linux/errno.h>
#include "helpers.h"

/* The types of vmlinux.h. */
#define __VMLINUX_H__
typedef __u64 u64;
typedef __u32 u32;
typedef __s64 s64;
typedef __s32 s32;

#define BPF_STRUCT_OPS(name, args...)		name(args)
#define BPF_STRUCT_OPS_SLEEPABLE(name, args...) name(args)
#define SCX_OPS_DEFINE(ops, ...)		struct sched_ext_ops ops = {__VA_ARGS__}
#define UEI_DEFINE(uei)				struct scx_exit_info uei
#define UEI_RECORD(uei, info)			((uei) = *(info))
#define private(name)

#define PF_KTHREAD	0x00200000
#define SCX_SLICE_DFL	(20 * 1000 * 1000ULL)
#define SCX_CPUPERF_ONE 1024

/* Operations' flags that Entrain's own schedulers do not set. */
#define SCX_OPS_ENQ_MIGRATION_DISABLED (1ULL << 4)
#define SCX_OPS_ALLOW_QUEUED_WAKEUP    (1ULL << 5)
#define SCX_OPS_BUILTIN_IDLE_PER_NODE  (1ULL << 6)

#define scx_bpf_error(text, args...)	      scx_bpf_error_bstr((char *)(text), NULL, 0)
#define scx_bpf_dsq_move_to_local(dsq, flags) scx_bpf_dsq_move_to_local___v2___compat(dsq, flags)

/* As libbpf has it: an address without a type. */
#undef bpf_map_lookup_elem
#define bpf_map_lookup_elem(m, k) SIM_LOOKUP(m, k)

/* The kernel has all that scx asks old ones for. */
#define __COMPAT_HAS_scx_bpf_select_cpu_and	     1
#define __COMPAT_scx_bpf_dsq_peek(dsq)		     scx_bpf_dsq_peek(dsq)
#define __COMPAT_scx_bpf_cpu_node(cpu)		     scx_bpf_cpu_node(cpu)
#define __COMPAT_scx_bpf_nr_node_ids()		     scx_bpf_nr_node_ids()
#define __COMPAT_scx_bpf_get_idle_cpumask_node(node) scx_bpf_get_idle_cpumask_node(node)
#define __COMPAT_scx_bpf_get_idle_smtmask_node(node) scx_bpf_get_idle_smtmask_node(node)
#define __COMPAT_is_enq_cpu_selected(enq_flags)	     (((enq_flags) & SCX_ENQ_CPU_SELECTED) != 0)

#define cast_mask(mask)		 ((const struct cpumask *)(mask))
#define is_migration_disabled(p) scx_migration_disabled((struct task_struct *)(p))

static inline bool time_before(u64 a, u64 b)
{
	return (s64)(a - b) < 0;
}

static inline bool time_after(u64 a, u64 b)
{
	return time_before(b, a);
}

static inline u64 scale_by_task_weight(const struct task_struct *p, u64 value)
{
	return value * p->scx.weight / 100;
}

static inline u64 scale_by_task_weight_inverse(const struct task_struct *p, u64 value)
{
	return value * 100 / p->scx.weight;
}

#endif /* ENTRAIN_SIM_PEERS_COMMON_H */
