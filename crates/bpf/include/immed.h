/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A task that is put into a CPU's own queue to run at once: it was sent to an idle CPU that was claimed for it, or an
 * idle CPU has taken it out of a queue. Both may happen to one CPU at the same time, and what lies in a CPU's own queue
 * nobody else can take: whoever comes second would wait for the other one's slice beside other idle CPUs. With
 * SCX_ENQ_IMMED (Linux 7.1) the kernel hands that one to ops.enqueue once more.
 */
#ifndef ENTRAIN_IMMED_H
#define ENTRAIN_IMMED_H

#include "scx.h"

/* Whether that is asked for, where the kernel knows it. */
const volatile bool use_immed = true;

/* The flags of an insertion into the own queue of a CPU that runs it next. */
static __always_inline __u64 enq__at_once(void)
{
	return use_immed ? SCX_ENQ_IF_KNOWN(IMMED) : 0;
}

/* From ops.dispatch: moves the first task of a queue that may run here into this CPU's own queue. */
static __always_inline bool queue__take_first(__u64 dsq_id)
{
	if (bpf_ksym_exists(scx_bpf_dsq_move_to_local___v2___compat))
		return scx_bpf_dsq_move_to_local___v2___compat(dsq_id, enq__at_once());
	return scx_bpf_dsq_move_to_local(dsq_id);
}

/* In ops.enqueue: whether the task is one that has come back: it was to run at once, and another one came first. */
static __always_inline bool task__came_back(const struct task_struct *p)
{
	if (!bpf_core_enum_value_exists(enum scx_ent_flags, SCX_TASK_REENQ_IMMED))
		return false;
	return (p->scx.flags & bpf_core_enum_value(enum scx_ent_flags, SCX_TASK_REENQ_REASON_MASK)) ==
	       bpf_core_enum_value(enum scx_ent_flags, SCX_TASK_REENQ_IMMED);
}

#endif /* ENTRAIN_IMMED_H */
