/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * How long vCPUs of one VM are on CPUs at the same time. CPUs count without a lock: where two of them begin or end at
 * once, one of the two may miss its interval or count it twice.
 */
#ifndef ENTRAIN_SCHED_TOGETHER_BPF_H
#define ENTRAIN_SCHED_TOGETHER_BPF_H

#include "guest.bpf.h"

/*
 * 1: somebody has read figures lately. Only then is it counted: all CPUs that run a VM's vCPUs write to one line at
 * each switch for it.
 */
__u32 count_together;

static __always_inline __u64 vm__together(const struct vm_ctx *vm, __u64 now)
{
	return vm->together + (vm->running > 1 ? entrain_sub(now, vm->together_at) : 0);
}

/* A vCPU begins to run. */
static __always_inline void together__begin(struct task_ctx *t, __u64 now)
{
	struct vm_ctx *vm = READ_ONCE(count_together) ? task__vm(t) : NULL;

	if (!vm)
		return;
	if (vm->running <= 1)
		vm->together_at = now;
	__sync_fetch_and_add(&vm->running, 1);
	t->counts = 1;
	t->together = vm__together(vm, now);
}

/* What it had since it began or since this was asked last. */
static __always_inline void vm__count_together(const struct vm_ctx *vm, struct task_ctx *t, __u64 now)
{
	__u64 sum = vm__together(vm, now);

	if (sum != t->together)
		task__count(t, SCHED_CORUN_NS, entrain_sub(sum, t->together));
	t->together = sum;
}

static __always_inline void together__again(struct task_ctx *t, __u64 now)
{
	struct vm_ctx *vm = t->counts ? task__vm(t) : NULL;

	if (vm)
		vm__count_together(vm, t, now);
}

/* It ends. */
static __always_inline void together__end(struct task_ctx *t, __u64 now)
{
	struct vm_ctx *vm = t->counts ? task__vm(t) : NULL;

	t->counts = 0;
	if (!vm)
		return;
	vm__count_together(vm, t, now);
	if (__sync_fetch_and_add(&vm->running, -1) == 2) {
		__sync_fetch_and_add(&vm->together, entrain_sub(now, vm->together_at));
		vm->together_at = now;
	}
}

#endif /* ENTRAIN_SCHED_TOGETHER_BPF_H */
