/* SPDX-License-Identifier: GPL-2.0-only */
/* A task's way over running and stopping to sleep, as the accounts see it. */
#ifndef ENTRAIN_GUEST_SCHED_TASK_H
#define ENTRAIN_GUEST_SCHED_TASK_H

#include "account.bpf.h"
#include "helper.bpf.h"
#include "limit.bpf.h"

/* The task begins to run. One that has waited has its vCPU's bit set until here, so that it is looked up. */
static __always_inline void task__running(struct task_struct *p)
{
	__s32 cpu = scx_bpf_task_cpu(p);
	struct vcpu_ctx *v = vcpu__of(cpu);

	account__start(cpu, p, accounts__matter() ? task__of(p) : NULL, scx_bpf_now());
	page__publish_running(cpu, p);
	if (v->claimed || v->served)
		vcpu__pass_claim(v, p);
	task__limit_begins(p, cpu);
}

/* The task goes to sleep: what is remembered of its stay until it wakes up. */
static __always_inline void task__slept(struct task_struct *p, struct task_ctx *t, __u64 now)
{
	t->est = guest_task_est(t->est, t->load.mean, t->ran, entrain_sub(now, t->est_at));
	t->boost = guest_io_boost(t->boost, task__waits_for_io(p), entrain_sub(now, t->est_at));
	t->est_at = now;
	t->ran = 0;
}

/* The task stops running; it goes to sleep unless it is still `runnable`. */
static __always_inline void task__stopping(struct task_struct *p, bool runnable)
{
	__s32 cpu = scx_bpf_task_cpu(p);
	struct vcpu_ctx *v = vcpu__of(cpu);
	struct task_ctx *t = NULL;
	__u64 now = scx_bpf_now();

	task__limit_stops(p, cpu);
	if (!v->run_at)
		return;
	/* One that makes way for another takes what it ran to its queue. */
	if (v->counted || v->waiting > 0 || runnable)
		t = task__of(p);
	if (t && !v->counted)
		task__count_in(p, t, now);
	if (t)
		account__settle(cpu, p, t, now);
	else
		account__settle_alone(v, p, now);
	v->run_at = 0;
	vcpu__measure_send(v, now);
	if (runnable)
		return;
	vcpu__measure_stay(v, now);
	if (t)
		task__slept(p, t, now);
}

/* The task does not want to run any more: it sleeps, or is taken out of its queue to be put into another one. */
static __always_inline void task__quiescent(struct task_struct *p)
{
	struct task_ctx *t;

	/* Without members nobody has to leave a group, and where nobody waits nobody has to leave a queue. */
	if (READ_ONCE(members) <= 0 && !waiting__any())
		return;
	t = task__of(p);
	if (!t)
		return;
	task__wait_end(t);
	task__count_out(t);
}

#endif /* ENTRAIN_GUEST_SCHED_TASK_H */
