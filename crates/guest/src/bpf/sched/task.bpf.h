/* SPDX-License-Identifier: GPL-2.0-only */
/* A task's way from becoming runnable over running and stopping to sleep, as the accounts see it. */
#ifndef ENTRAIN_GUEST_SCHED_TASK_H
#define ENTRAIN_GUEST_SCHED_TASK_H

#include "account.bpf.h"

/* The task wants to run: it counts among all that do. */
static __always_inline void task__runnable(struct task_struct *p)
{
	struct task_ctx *t = task__of(p);
	__u64 share;

	if (!t)
		return;
	__sync_fetch_and_add(&nr_runnable, 1);
	cgroup__join(p, &t->member);
	share = task__share(p, scx_bpf_now());
	t->share = share;
	__sync_fetch_and_add(&total_share, share);
}

/* Others of its group came and went: what a running task is charged by follows. */
static __always_inline void task__refresh_share(struct task_struct *p, struct task_ctx *t, __u64 now)
{
	__u64 share = task__share(p, now);

	__sync_fetch_and_add(&total_share, (__s64)(share - t->share));
	t->share = share;
}

/* The task begins to run. */
static __always_inline void task__running(struct task_struct *p)
{
	__s32 cpu = scx_bpf_task_cpu(p);
	struct task_ctx *t = task__of(p);
	__u64 now = scx_bpf_now();

	if (!t)
		return;
	account__start(cpu, t, now);
	page__publish_running(cpu, p);
}

/* The task stops running; it goes to sleep unless it is still `runnable`. */
static __always_inline void task__stopping(struct task_struct *p, bool runnable)
{
	__s32 cpu = scx_bpf_task_cpu(p);
	struct task_ctx *t = task__of(p);
	struct vcpu_ctx *v = vcpu__of(cpu);
	__u64 now = scx_bpf_now();

	if (t)
		account__settle(cpu, p, t, now);
	v->run_at = 0;
	if (t && !runnable) {
		v->burst = guest_mean(v->burst, t->ran);
		t->est = guest_task_est(t->est, t->load.mean, t->ran, entrain_sub(now, t->est_at));
		t->boost = guest_io_boost(t->boost, task__waits_for_io(p), entrain_sub(now, t->est_at));
		t->est_at = now;
		t->ran = 0;
	}
}

/* The task does not want to run any more. */
static __always_inline void task__quiescent(struct task_struct *p)
{
	struct task_ctx *t = task__of(p);

	if (!t)
		return;
	__sync_fetch_and_add(&nr_runnable, -1);
	__sync_fetch_and_add(&total_share, -(__s64)t->share);
	task__wait_end(t);
	cgroup__leave(&t->member);
}

#endif /* ENTRAIN_GUEST_SCHED_TASK_H */
