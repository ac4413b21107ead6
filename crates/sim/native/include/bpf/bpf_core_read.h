/* SPDX-License-Identifier: GPL-2.0-only */
/* Stands in for libbpf's header of that name: the simulated kernel's structures are those that the program declares. */
#ifndef ENTRAIN_SIM_BPF_CORE_READ_H
#define ENTRAIN_SIM_BPF_CORE_READ_H

#include "bpf_helpers.h"

/* Whether the kernel has a field: each architecture's own where it is that, uclamp nowhere, all else everywhere. */
static inline __attribute__((always_inline)) int sim_field_exists(int of_arm64, int of_x86, int of_uclamp)
{
	return of_arm64 ? sim.arm64 : of_x86 ? !sim.arm64 : !of_uclamp;
}

#define bpf_core_field_exists(field...)                                                                                \
	sim_field_exists(__builtin_strstr(#field, "cpu_context") || __builtin_strstr(#field, "ctxt"),                  \
			 __builtin_strstr(#field, "apic") || __builtin_strstr(#field, "guest_tsc"),                    \
			 __builtin_strstr(#field, "uclamp") != 0)
#define bpf_core_field_offset(type, field)	__builtin_offsetof(type, field)
#define bpf_core_type_exists(type)		(__builtin_strstr(#type, "svm") ? !sim.arm64 : 1)
#define bpf_core_enum_value(type, value)	(value)
#define bpf_core_enum_value_exists(type, value) 1

/* A probe of address 0 fails in the kernel and leaves 0. Each step from a pointer to the next is a call. */
#define SIM_READ1(src, a)                                                                                              \
	({                                                                                                             \
		typeof(src) ___src = (src);                                                                            \
		sim.done.helpers++;                                                                                    \
		___src ? ___src->a : (typeof(___src->a))0;                                                             \
	})
#define SIM_READ2(src, a, b)		      SIM_READ1(SIM_READ1(src, a), b)
#define SIM_READ3(src, a, b, c)		      SIM_READ1(SIM_READ2(src, a, b), c)
#define SIM_READ_N(src, a, b, c, name, ...)   name
#define BPF_CORE_READ(src, a...)	      SIM_READ_N(src, ##a, SIM_READ3, SIM_READ2, SIM_READ1)(src, ##a)
#define bpf_core_read(to, size, from)	      bpf_probe_read_kernel(to, size, from)
#define BPF_CORE_READ_BITFIELD(src, a)	      ((src)->a)
#define BPF_CORE_READ_BITFIELD_PROBED(src, a) ((src)->a)

#define BPF_CORE_READ_STR_INTO(to, src, a) bpf_probe_read_kernel_str((to), sizeof(*(to)), (src)->a)

#endif /* ENTRAIN_SIM_BPF_CORE_READ_H */
