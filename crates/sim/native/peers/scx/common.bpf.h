/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Stands in for the header of that name in the kernel's tools/sched_ext: what scx_simple takes from it, by the
 * simulator's own helpers and Entrain's declarations of the kernel's structures.
 */
#ifndef ENTRAIN_SIM_PEERS_COMMON_H
#define ENTRAIN_SIM_PEERS_COMMON_H

#include "helpers.h"

typedef __u64 u64;
typedef __u32 u32;
typedef __s64 s64;
typedef __s32 s32;

#define BPF_STRUCT_OPS(name, args...)		name(args)
#define BPF_STRUCT_OPS_SLEEPABLE(name, args...) name(args)
#define SCX_OPS_DEFINE(ops, ...)		struct sched_ext_ops ops = {__VA_ARGS__}
#define UEI_DEFINE(uei)				struct scx_exit_info uei
#define UEI_RECORD(uei, info)			((uei) = *(info))

#define SCX_SLICE_DFL (20 * 1000 * 1000ULL)

#define scx_bpf_error(text, args...)	      scx_bpf_error_bstr((char *)(text), NULL, 0)
#define scx_bpf_dsq_move_to_local(dsq, flags) scx_bpf_dsq_move_to_local(dsq)

/* A map that is declared by the sizes of key and value instead of their types; a per-CPU array. */
#undef bpf_map_lookup_elem
#define bpf_map_lookup_elem(m, k)                                                                                      \
	sim_array_lookup((void **)(m), (k), SIM_ENTRIES(m), sizeof(*(m)->value_size) / sizeof(int), 1)

static inline bool time_before(u64 a, u64 b)
{
	return (s64)(a - b) < 0;
}

static inline u64 scale_by_task_weight_inverse(const struct task_struct *p, u64 value)
{
	return value * 100 / p->scx.weight;
}

#endif /* ENTRAIN_SIM_PEERS_COMMON_H */
