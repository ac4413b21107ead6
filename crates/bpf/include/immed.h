/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A task that is put into the own queue of an idle CPU, which was claimed for it. That CPU may have taken another task
 * meanwhile, and what lies in a CPU's own queue nobody else can take: it would wait for that one's slice beside other
 * idle CPUs. With SCX_ENQ_IMMED (Linux 7.1) the kernel hands such a task to ops.enqueue once more.
 */
#ifndef ENTRAIN_IMMED_H
#define ENTRAIN_IMMED_H

#include "scx.h"

/* Whether that is asked for, where the kernel knows it. */
const volatile bool use_immed = true;

/* The flags of an insertion into the queue of an idle CPU. */
static __always_inline __u64 enq__at_once(void)
{
	return use_immed ? SCX_ENQ_IF_KNOWN(IMMED) : 0;
}

/* In ops.enqueue: whether the task is one that has come back, as it has never run since it woke up. */
static __always_inline bool task__came_back(const struct task_struct *p)
{
	if (!bpf_core_enum_value_exists(enum scx_ent_flags, SCX_TASK_REENQ_IMMED))
		return false;
	return (p->scx.flags & bpf_core_enum_value(enum scx_ent_flags, SCX_TASK_REENQ_REASON_MASK)) ==
	       bpf_core_enum_value(enum scx_ent_flags, SCX_TASK_REENQ_IMMED);
}

#endif /* ENTRAIN_IMMED_H */
