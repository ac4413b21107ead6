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

/*
 * So many wake-ups of so many go the other way than the best: what the other way takes would be old by now, or unknown.
 * In a row, since tasks that share a vCPU run faster than such as answer one another from two: the first half of them
 * brings that about, the second is measured.
 */
#define STAY_TRIES 16
#define STAY_EVERY 1024

static __always_inline bool vcpu__tries(const struct vcpu_ctx *here)
{
	return here->sends % STAY_EVERY >= STAY_EVERY - STAY_TRIES;
}

/*
 * This vCPU has chosen one for a task that wakes, which is kicked, or not. One of COST_EVERY is measured, and those
 * that go the other way: from here ...
 */
static __always_inline void vcpu__sends(struct vcpu_ctx *here, bool kick)
{
	__u64 nth = here->sends++ % STAY_EVERY;

	here->kicks += kick;
	if (!here->run_at || (nth < STAY_EVERY - STAY_TRIES / 2 && nth % COST_EVERY != COST_EVERY - 1))
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

/* The running task goes to sleep. One that has waited for it runs next: how long such tasks stay is measured. */
static __always_inline void vcpu__measure_stay(struct vcpu_ctx *v, __u64 now)
{
	__u64 stay = vcpu__stay(v, now);

	if (v->handed)
		v->hands = entrain_least(v->hands, stay + 2 * v->handed);
	v->burst = guest_mean(v->burst, stay);
	v->hands_from = v->hands_next ? now : 0;
}

/* What it costs to have an idle vCPU kicked, ns; 0: not known. */
static __always_inline __u64 mode__kick(void)
{
	return mode.wake + mode.send;
}

/*
 * When somebody looks after those that wait, ns from the moment when they came. A look costs about what a wake-up of an
 * idle vCPU does, of whose time there are so many between two: 1.5 %. Where that takes long, at the next calm step.
 */
#define WATCH_WAKES 64

static __always_inline __u64 mode__watch(void)
{
	return entrain_min(WATCH_WAKES * mode.wake, STEP_CALM_NS);
}

/*
 * Whether a task sleeps again, on average, before somebody would look after those that wait for it. Lifetime's mean, by
 * the kernel's own accounts: no storage is looked up for it. It has in it what the task's kicks took, and its stays
 * from before it shared a vCPU: no closer bound would do.
 */
static __always_inline bool task__is_brief(struct task_struct *p)
{
	return guest_wake_stays(p->se.sum_exec_runtime / (1 + p->nvcsw), 0, mode__watch());
}

/*
 * Whether a vCPU loses less by running the task itself, with a switch there and one back, than by the kick that has
 * another vCPU do it. Each is measured where it is done, since a task that answers from another vCPU slows down both.
 */
static __always_inline bool vcpu__is_cheaper(const struct vcpu_ctx *v)
{
	return v->after_stay + v->hands < v->after_kick;
}

/* Whether a task may wait for this vCPU while others idle: in a calm guest, where nobody waits who stays for long. */
static __always_inline bool vcpu__is_open(const struct vcpu_ctx *v)
{
	return use_stays && !mode.contended && !v->parked && !v->crowded && READ_ONCE(v->waiting_long) <= 0 &&
	       READ_ONCE(v->run_at);
}

/*
 * Whether a task that waits for this vCPU, behind so many others, starts sooner there than elsewhere. Where those that
 * run there stay for long on average nobody need look at a clock.
 */
static __always_inline bool vcpu__frees_soon(const struct vcpu_ctx *v, __s64 ahead)
{
	__u64 kick = mode__kick();

	ahead = ahead > 0 ? ahead : 0;
	return vcpu__is_open(v) && guest_wake_stays(v->cost + v->burst, ahead, kick) &&
	       guest_wake_stays(v->cost + entrain_max(v->burst, vcpu__stay(v, sched__now())), ahead, kick);
}

#endif /* ENTRAIN_GUEST_SCHED_STAY_H */
