/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * When a CPU is looked at again. Turns end by a timer and not at the tick: at the end of the slice, or earlier, as soon
 * as whoever waits first may take the CPU. Where timers don't serve, ticks still end turns. What the timer does when it
 * comes stands in look.bpf.h.
 *
 * Out of an operation, where interrupts are off, the kernel starts a timer by an interrupt of its own; out of the
 * timer's callback it does not. So a timer that comes early looks, and arms itself anew; one that finds nobody waiting
 * does so as long as tasks keep coming to the queue; and an operation arms it only where it would come too late.
 */
#ifndef ENTRAIN_SCHED_ALARM_BPF_H
#define ENTRAIN_SCHED_ALARM_BPF_H

#include "preempt.bpf.h"
#include "timer.bpf.h"

/* Whether the CPU is looked at by then. */
static __always_inline bool cpu__looks_by(const struct cpu_ctx *c, __u64 at, __u64 now)
{
	return entrain_before(now, c->alarm) && !entrain_before(at, c->alarm);
}

/* Has the CPU looked at by then. */
static __always_inline void cpu__alarm(struct cpu_ctx *c, __u32 cpu, __u64 at, __u64 now)
{
	struct entry_timer *r;

	if (cpu__looks_by(c, at, now))
		return;
	r = bpf_map_lookup_elem(&sched_alarms, &cpu);
	if (!r)
		return;
	c->alarm = at;
	bpf_timer_start(&r->timer, entrain_before(now, at) ? at - now : 0, BPF_F_TIMER_CPU_PIN);
}

/*
 * Looks for the sake of turns come the later, the more of them have changed nothing, and in time where most change
 * something: where whoever runs leaves by himself before his protection ends, each is an interrupt for nothing.
 *
 * Threat model: vCPUs that halt soon put such looks off, and one that goes on then stays so much longer: up to seven
 * times its protection, which is some tens of us on hardware and below a slice of the kernel's own; it is charged.
 */
#define VAIN_LOOKS 3

static __always_inline __u64 cpu__look_later(const struct cpu_ctx *c)
{
	return (cpu__peace(c) << (c->vain & 7)) - cpu__peace(c);
}

/*
 * Has the CPU looked at for the sake of one that waits for its turn. That one may wait longer by as much as a look is
 * put off in a section: to start the timer anew for less costs more than it saves.
 */
static __always_inline void cpu__alarm_turn(struct cpu_ctx *c, __u32 cpu, __u64 at, __u64 now)
{
	if (!cpu__looks_by(c, at + cpu__look_ns(c), now))
		cpu__alarm(c, cpu, at, now);
}

/* When the turn on a CPU is over. */
static __always_inline __u64 cpu__turn_end(const struct cpu_ctx *c)
{
	return c->turn + cpu__turn_ns(c);
}

/*
 * Whether the CPU is looked at as soon as anybody who waits may want it: whoever runs is left in peace until then, or
 * until the turn is over. When that is exactly, for whoever is first by then, the timer works out. A function of its
 * own for the verifier: its branches would double each path that leads here.
 */
__noinline int cpu__looks_soon(__u32 cpu, __u64 now)
{
	const struct cpu_ctx *c = cpu__ctx(cpu);
	__u64 at = c->came + cpu__peace(c), end = cpu__turn_end(c);

	if (entrain_before(end, at))
		at = end;
	return cpu__looks_by(c, at + cpu__look_later(c) + cpu__look_ns(c), now);
}

/* When the task that runs is to be looked at: somebody waits. */
static __always_inline __u64 cpu__next_look(const struct cpu_ctx *c, __u32 cpu, __u64 now)
{
	struct task_struct *p = cpu__first_task(c, cpu);
	struct task_ctx *t = p ? task__ctx(p) : NULL;
	__u64 end = cpu__turn_end(c), after;
	struct wanting w;

	if (!t || !t->woke || !use_wake_preempt)
		return end;
	wanting__fill(&w, t, p->scx.dsq_vtime, t->pub.vcpu, false);
	after = now + wanting__takes_after(&w, c, now);
	return entrain_before(after, end) ? after : end;
}

/*
 * When somebody who waits may interrupt the task that runs, since a guest's timer is due; else `at`. A function of its
 * own for the verifier.
 */
__noinline __u64 cpu__due_before(__u32 cpu, __u64 at)
{
	const struct cpu_ctx *c = cpu__ctx(cpu);
	__u64 peace = c->came + cpu__peace(c), due = c->due;

	if (!due)
		return at;
	if (entrain_before(due, peace))
		due = peace;
	return entrain_before(due, at) ? due : at;
}

/* Whether the timer of somebody who waits is due, and whoever runs has had his peace. */
static __always_inline bool cpu__timer_is_due(__u32 cpu, __u64 now)
{
	__u64 never = now + ENTRAIN_SEC;

	return !entrain_before(now + ALARM_EARLY_NS, cpu__due_before(cpu, never));
}

/*
 * Has the CPU looked at by then, or in time for one whose guest's timer is due, as soon as whoever runs has had his
 * peace: a look for the sake of a turn may be put off, one for a timer may not.
 */
static __always_inline void cpu__alarm_next(__u32 cpu, __u64 at, __u64 now)
{
	struct cpu_ctx *c = cpu__ctx(cpu);
	__u64 later = at + cpu__look_later(c), due = cpu__due_before(cpu, later);

	if (due != later)
		cpu__alarm(c, cpu, due, now);
	else
		cpu__alarm_turn(c, cpu, later, now);
}

/*
 * One that wants a CPU has come to its queue: the task that runs is looked at when the CPU is to change hands. Where an
 * interrupt woke it (`due`), in time: it is let in as one whose guest's timer is due. A function of its own for the
 * verifier.
 */
__noinline int wanting__waits(const struct wanting *w __arg_nonnull, __u32 cpu, bool woke, bool due, __u64 now)
{
	struct cpu_ctx *c = cpu__ctx(cpu);
	__u64 end, at;

	if (!c->started || c->granted || (!due && cpu__looks_soon(cpu, now)))
		return 0;
	end = cpu__turn_end(c);
	at = woke && use_wake_preempt ? now + wanting__takes_after(w, c, now) : end;
	if (entrain_before(end, at))
		at = end;
	cpu__alarm_next(cpu, at, now);
	return 0;
}

/* Arms the timer for the end of the turn, where somebody waits for it. */
static __always_inline void cpu__turn_ends(struct cpu_ctx *c, __u32 cpu, __u64 now)
{
	if (c->waiting <= 0 || !c->started || c->granted || (!c->due && cpu__looks_soon(cpu, now)))
		return;
	cpu__alarm_next(cpu, cpu__next_look(c, cpu, now), now);
}

/*
 * A vCPU whose guest says when it spins for a sleeping lock (yield.bpf.h) is looked at for that until so many looks
 * have not found it spinning, and again when it was taken off as it did: most guests seldom spin, and one that spins to
 * the end of its turn is seen then at the latest. A look costs about as much as a switch, an exit and an entry. One
 * that finds a spin saves half a turn in the mean, and a turn is mostly at least 64 switches long: below one in 32 they
 * do not pay.
 */
#define POLLS_IN_VAIN 32

static __always_inline bool task__may_poll(const struct task_ctx *t)
{
	return use_yield && use_spins && t->pub.vcpu && t->polled < POLLS_IN_VAIN;
}

static __always_inline bool cpu__polls(const struct cpu_ctx *c, const struct task_ctx *t)
{
	return c->waiting > 0 && task__may_poll(t);
}

/*
 * A turn or a stay has begun. Where nobody waits for its end, but others wait elsewhere, the CPU is looked at when the
 * one that runs is ahead of them by as much as whoever wakes must be behind.
 */
static __always_inline void cpu__turn_began(struct cpu_ctx *c, __u32 cpu, __u64 now)
{
	if (c->waiting > 0)
		cpu__turn_ends(c, cpu, now);
	else if (c->started && !c->granted && cpu__others_wait(c))
		cpu__alarm_turn(c, cpu, now + granularity_ns + cpu__look_later(c), now);
}

#endif /* ENTRAIN_SCHED_ALARM_BPF_H */
