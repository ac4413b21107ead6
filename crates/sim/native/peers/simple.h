/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * scx_simple in its own words, beside a scheduler of ours in one program: names that both have are told apart. Its
 * option is `const` for BPF's loader, which sets it; the simulator's is a variable like any other.
 */
#include "scx/common.bpf.h"

/* Its map is declared by the sizes of key and value instead of their types; a per-CPU array. */
#pragma push_macro("bpf_map_lookup_elem")
#undef bpf_map_lookup_elem
#define bpf_map_lookup_elem(m, k)                                                                                      \
	sim_array_lookup((void **)(m), (k), SIM_ENTRIES(m), sizeof(*(m)->value_size) / sizeof(int), 1)

#define _license  simple_license
#define stats	  simple_stats
#define uei	  simple_uei
#define vtime_now simple_vtime_now
#define const
#include "scx_simple.c"
#undef const
#undef vtime_now
#undef uei
#undef stats
#undef _license
#pragma pop_macro("bpf_map_lookup_elem")
