/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * How long tasks stay on a vCPU at a time, and so whether one that wakes had better wait for them than have an idle
 * vCPU kicked (guest_wake_stays).
 */
#ifndef ENTRAIN_GUEST_SCHED_STAY_H
#define ENTRAIN_GUEST_SCHED_STAY_H

#include "state.bpf.h"

/* This vCPU interrupts another one, or itself: a part of the running task's stay that is not the task's work. */
static __always_inline void vcpu__kick(__s32 cpu, __u64 flags)
{
	struct vcpu_ctx *here = vcpu__of(bpf_get_smp_processor_id());

	here->kicks++;
	here->sent = 0;
	scx_bpf_kick_cpu(cpu, flags);
}

/* One wake-up of so many goes the other way than the best: what the other way takes would be old by now, or unknown. */
#define STAY_TRIES 64

static __always_inline bool vcpu__tries(const struct vcpu_ctx *here)
{
	return here->sends % STAY_TRIES == STAY_TRIES - 1;
}

/*
 * This vCPU has chosen one for a task that wakes, which is kicked, or not. One of COST_EVERY is measured, those among
 * them that go the other way: from here ...
 */
static __always_inline void vcpu__sends(struct vcpu_ctx *here, bool kick)
{
	here->kicks += kick;
	if (here->sends++ % COST_EVERY != COST_EVERY - 1 || !here->run_at)
		return;
	here->sent = sched__now();
	here->sent_kick = kick;
}

/*
 * ... to the next wake-up that it sends, or when its task stops: at least. With a kick that is longer than without, by
 * what the kick takes its sender, which cannot be measured by itself since it is sent after BPF has returned.
 */
static __always_inline void vcpu__measure_send(struct vcpu_ctx *here, __u64 now)
{
	__u64 took;

	if (!here->sent)
		return;
	took = entrain_min(entrain_sub(now, here->sent), WAKE_MOST_NS);
	here->sent = 0;
	if (here->sent_kick)
		here->after_kick = entrain_least(here->after_kick, took);
	else
		here->after_stay = entrain_least(here->after_stay, took);
}

/*
 * How long the running task has stayed, ns, without what its kicks took. Were that left in, tasks that kick would stay
 * for long by that alone, and so go on to kick.
 */
static __always_inline __u64 vcpu__stay(const struct vcpu_ctx *v, __u64 now)
{
	return entrain_sub(now, READ_ONCE(v->stay_at) + READ_ONCE(v->kicks) * mode.send);
}

/* What it costs to have an idle vCPU kicked, ns; 0: not known. */
static __always_inline __u64 mode__kick(void)
{
	return mode.wake + mode.send;
}

/*
 * Whether a task sleeps again so soon, on average, that it keeps others waiting for less than a kick takes. Lifetime's
 * mean, by the kernel's own accounts: no storage is looked up for it.
 */
static __always_inline bool task__is_brief(struct task_struct *p)
{
	return 1 + p->se.sum_exec_runtime / (1 + p->nvcsw) < mode__kick();
}

/*
 * Whether a vCPU loses less by running such tasks as run on `previous` itself, with a switch there and one back, than
 * by the kick that has another vCPU do it.
 */
static __always_inline bool vcpu__is_cheaper(const struct vcpu_ctx *v, const struct vcpu_ctx *previous)
{
	return previous->burst + 2 * v->cost < mode.send;
}

/*
 * Whether in a calm guest a task that waits for this vCPU, behind so many others, starts sooner there than elsewhere.
 * Where those that run there stay for long on average nobody need look at a clock.
 */
static __always_inline bool vcpu__frees_soon(const struct vcpu_ctx *v, __s64 ahead)
{
	__u64 kick = mode__kick();

	ahead = ahead > 0 ? ahead : 0;
	return use_stays && !mode.contended && !v->parked && !v->crowded && READ_ONCE(v->waiting_long) <= 0 &&
	       READ_ONCE(v->run_at) && guest_wake_stays(v->cost + v->burst, ahead, kick) &&
	       guest_wake_stays(v->cost + entrain_max(v->burst, vcpu__stay(v, sched__now())), ahead, kick);
}

#endif /* ENTRAIN_GUEST_SCHED_STAY_H */
