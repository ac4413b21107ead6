/* SPDX-License-Identifier: GPL-2.0-only */
/* Stands in for libbpf's header of that name: sections and annotations mean nothing natively. */
#ifndef ENTRAIN_SIM_BPF_HELPERS_H
#define ENTRAIN_SIM_BPF_HELPERS_H

#include "sim.h"

#define SEC(name)
#define __ksym
#define __kptr
#define __uptr
#define __hidden
#define __arg_trusted
#define __arg_nonnull
/* Not weak: what the simulated kernel lacks must fail the link. */
#define __weak

/* Maps as libbpf declares them: the numbers and types live in the types of pointers that are never followed, but for
 * `type`, whose value is the map's memory (maps.h). */
#define __uint(name, val) int(*name)[val]
#define __type(name, val) typeof(val) *name
#undef __always_inline
#define __always_inline	   inline __attribute__((always_inline))
#define __noinline	   __attribute__((noinline))
#define bpf_ksym_exists(x) 1
/* Keeps the verifier's knowledge of a value from the compiler's hands: there is no verifier. */
#define barrier_var(x)	   ((void)(x))

/* Set by the simulated kernel before it calls the object. */
extern struct sim_context sim;

/* Before each access to what CPUs share: where operations run at once, another CPU's may come in here. */
static inline __attribute__((always_inline)) void sim_gap(void)
{
	if (__builtin_expect(sim.races, 0) && !sim.spins)
		sim.calls->gap(sim.machine);
}

static inline __attribute__((always_inline)) void sim_atomic_op(void)
{
	sim_gap();
	sim.done.atomics++;
}

/* Counted as they are done. */
#define __sync_fetch_and_add(p, v)	      (sim_atomic_op(), __sync_fetch_and_add(p, v))
#define __sync_fetch_and_sub(p, v)	      (sim_atomic_op(), __sync_fetch_and_sub(p, v))
#define __sync_fetch_and_or(p, v)	      (sim_atomic_op(), __sync_fetch_and_or(p, v))
#define __sync_fetch_and_and(p, v)	      (sim_atomic_op(), __sync_fetch_and_and(p, v))
#define __sync_lock_test_and_set(p, v)	      (sim_atomic_op(), __sync_lock_test_and_set(p, v))
#define __sync_val_compare_and_swap(p, o, n)  (sim_atomic_op(), __sync_val_compare_and_swap(p, o, n))
#define __sync_bool_compare_and_swap(p, o, n) (sim_atomic_op(), __sync_bool_compare_and_swap(p, o, n))

static inline __u32 bpf_get_smp_processor_id(void)
{
	return sim.cpu;
}

static inline struct task_struct *bpf_get_current_task_btf(void)
{
	return sim.current;
}

/* bpf_for() of libbpf: `i` follows a counter of its own, so that the body may change it. */
#define bpf_for(i, start, end)                                                                                         \
	for (struct { long at, to; } ___it = {(start), (end)}; ___it.at < ___it.to && ((i) = ___it.at, 1); ___it.at++)

/* Calls it with 0, 1, …, until it returns 1 or `count` calls were made; how many were. */
static inline long bpf_loop(__u32 count, void *callback, void *ctx, __u64 flags)
{
	long (*call)(__u32, void *) = callback;
	__u32 i;

	(void)flags;
	for (i = 0; i < count; i++) {
		if (call(i, ctx))
			return i + 1;
	}
	return i;
}

/* bpf_for_each(scx_dsq, task, id, flags) of libbpf: the iterator is destroyed however the loop is left. */
#define bpf_for_each(type, cur, args...)                                                                               \
	for (struct bpf_iter_##type ___it __attribute__((cleanup(bpf_iter_##type##_destroy))),                         \
	     *___new __attribute__((unused)) = (bpf_iter_##type##_new(&___it, ##args), &___it);                        \
	     ((cur) = bpf_iter_##type##_next(&___it));)

#endif /* ENTRAIN_SIM_BPF_HELPERS_H */
