/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The scheduler's clock, where this CPU's run queue is not locked.
 *
 * scx_bpf_now() is not to be trusted there: a CPU that takes a task from this one updates this one's clock and leaves
 * it marked as valid (move_remote_task_to_local_dsq() in the kernel's ext.c drops the lock without rq_unpin_lock()), so
 * that it stands still until the lock is taken as usual, at the next tick at the latest.
 */
#ifndef ENTRAIN_SCHED_CLOCK_BPF_H
#define ENTRAIN_SCHED_CLOCK_BPF_H

#include "scx.h"

/*
 * By how much the clock of that CPU is behind CLOCK_MONOTONIC, ns; NULL = not known yet. The scheduler that includes
 * this measures it now and then with the run queue locked, and defines this function.
 */
static __always_inline const __u64 *cpu__clock_behind(__u32 cpu);

/* A function of its own for the verifier. */
__noinline __u64 sched__now(void)
{
	const __u64 *behind = cpu__clock_behind(bpf_get_smp_processor_id());

	return behind ? bpf_ktime_get_ns() - *behind : scx_bpf_now();
}

/* The same with the run queue of that CPU locked: its own clock is right, and costs nothing. */
__noinline __u64 sched__now_at(__s32 locked)
{
	return locked == bpf_get_smp_processor_id() ? scx_bpf_now() : sched__now();
}

/* One of so many choices is measured. */
#define COST_EVERY 8

/*
 * From ops.dispatch, before the choice: when it began by CLOCK_MONOTONIC, ns, and by how much the clock of this CPU is
 * behind that; 0 = this choice is not measured.
 */
static __always_inline __u64 choice__began(__u64 choices, __u64 *behind)
{
	__u64 began;

	if (choices % COST_EVERY)
		return 0;
	began = bpf_ktime_get_ns();
	*behind = began - scx_bpf_now();
	return began;
}

#endif /* ENTRAIN_SCHED_CLOCK_BPF_H */
