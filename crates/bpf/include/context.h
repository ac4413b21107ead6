/* SPDX-License-Identifier: GPL-2.0-only */
/* In what context of the kernel a program runs, by the preempt count as the kernel keeps it. */
#ifndef ENTRAIN_CONTEXT_H
#define ENTRAIN_CONTEXT_H

#include "kernel.h"

/*
 * Bits of the preempt count (linux/preempt.h) that say that an interrupt is served: a soft one, a hard one, an NMI. The
 * counts of hard interrupts and of NMIs have moved up by eight bits when a count of disabled interrupts came between;
 * here are both places. Where a task holds locks by that new count, it looks like an interrupt: callers must be able to
 * bear that, as they bear an unknown count.
 */
#define PREEMPT_COUNT_SERVES 0x1fff0100U

/* x86 since 6.15; of this CPU. */
extern const int __preempt_count __ksym __weak;

/* Whether the current task itself runs: no interrupt has come between. False where that cannot be told. */
static inline bool context__is_task(void)
{
	const int *count;

	if (bpf_core_field_exists(struct task_struct, thread_info.preempt_count))
		return !((__u32)bpf_get_current_task_btf()->thread_info.preempt_count & PREEMPT_COUNT_SERVES);
	if (!bpf_ksym_exists(&__preempt_count))
		return false;
	count = bpf_this_cpu_ptr(&__preempt_count);
	return !((__u32)*count & PREEMPT_COUNT_SERVES);
}

#endif /* ENTRAIN_CONTEXT_H */
