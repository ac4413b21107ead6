/* SPDX-License-Identifier: GPL-2.0-only */
/* Begin and end: of the scheduler, which may be attached more than once, and of what it remembers of a task. */
#ifndef ENTRAIN_GUEST_SCHED_LIFECYCLE_H
#define ENTRAIN_GUEST_SCHED_LIFECYCLE_H

#include <asm-generic/errno-base.h>
#include "park.bpf.h"
#include "watch.bpf.h"

/* Why the scheduler was left; read by the loader. */
__s64 exit_kind;
__s64 exit_code;
__u8 exit_reason[128];
__u8 exit_message[256];

/* Makes room for what is remembered of a task. */
static __always_inline __s32 task__init(struct task_struct *p)
{
	struct task_ctx *t = bpf_task_storage_get(&sched_tasks, p, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (!t)
		return -ENOMEM;
	/* It may hold what an earlier attachment left. */
	__builtin_memset(t, 0, sizeof(*t));
	return 0;
}

/* The scheduler may be attached more than once (standby): tasks and vCPUs are counted from the beginning each time. */
static void sched__start_anew(void)
{
	int i;

	exit_kind = 0;
	members = 0;
	pacing = 0;
	__builtin_memset(&mode, 0, sizeof(mode));
	__builtin_memset(&vcpud, 0, sizeof(vcpud));
	__builtin_memset(&guest_mode, 0, sizeof(guest_mode));
	bpf_for (i, 0, nr_words) {
		mask_waiting.word[i & (MASK_WORDS - 1)].bits = 0;
		*waiting__counted(i) = 0;
		mask_kept.word[i & (MASK_WORDS - 1)].bits = 0;
	}
	bpf_for (i, 0, nr_vcpus) {
		struct vcpu_ctx *v = vcpu__of(i);
		__u64 offline = v->offline, llc = v->llc;
		struct sched_stats counted = v->stats;

		__builtin_memset(v, 0, sizeof(*v));
		v->offline = v->parked = offline;
		v->llc = llc;
		v->stats = counted;
		if (!offline)
			mask__set(&mask_kept, i);
	}
}

/* The scheduler is attached: two queues for each vCPU. */
static __always_inline __s32 sched__start(void)
{
	__s32 error;
	int i;

	sched__start_anew();
	step__prepare();
	error = limit__start_anew();
	if (error)
		return error;
	bpf_for (i, 0, nr_vcpus) {
		watch__prepare(i);
		error = scx_bpf_create_dsq(QUEUE_OPEN(i), -1);
		if (!error)
			error = scx_bpf_create_dsq(QUEUE_PINNED(i), -1);
		if (error)
			return error;
	}
	return 0;
}

/* The kernel takes the scheduler down. */
static __always_inline void exit__note(struct scx_exit_info *info)
{
	exit_code = info->exit_code;
	bpf_probe_read_kernel_str(exit_reason, sizeof(exit_reason), info->reason);
	bpf_probe_read_kernel_str(exit_message, sizeof(exit_message), info->msg);
	exit_kind = info->kind;
}

#endif /* ENTRAIN_GUEST_SCHED_LIFECYCLE_H */
