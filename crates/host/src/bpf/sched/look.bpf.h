/* SPDX-License-Identifier: GPL-2.0-only */
/* The timer of a CPU has come: what runs there is looked at. */
#ifndef ENTRAIN_SCHED_LOOK_BPF_H
#define ENTRAIN_SCHED_LOOK_BPF_H

#include "idle.bpf.h"
#include "grant.bpf.h"
#include "yield.bpf.h"

/*
 * Whether the task that runs is to be interrupted: since a guest's timer is due, since somebody may take the CPU, or
 * since the turn is over.
 */
static __always_inline bool cpu__interrupts(const struct cpu_ctx *c, __u32 cpu, __u64 next_look, __u64 now)
{
	return (cpu__timer_is_due(cpu, now) && cpu__due_goes_next(cpu, now)) ||
	       !entrain_before(now + ALARM_EARLY_NS, next_look);
}

/* Tasks that still wait for a CPU that went offline are looked for so often, until there are none. */
#define STRAY_NS (10 * ENTRAIN_MSEC)

/* What waits for a CPU is put back: it comes to another's queue where this one is not there any more. */
static __always_inline void cpu__send_away(__u32 cpu)
{
	if (bpf_ksym_exists(scx_bpf_dsq_reenq))
		scx_bpf_dsq_reenq(DSQ_CPU(cpu), 0);
}

/*
 * Nothing of ours runs here: where a task of a higher class has interrupted somebody and still runs, that one goes to
 * an idle CPU.
 */
static __always_inline void cpu__is_withheld(const struct cpu_ctx *c, __u32 cpu)
{
	struct task_struct *p = c->withheld && c->resumes ? scx_bpf_tid_to_task(c->resumes) : NULL;
	struct task_ctx *t = p ? task__ctx(p) : NULL;

	if (t && t->queued && t->cpu == cpu && !task__is_bound(p))
		task__kick_idle(p, cpu, false);
}

static __always_inline void cpu__look_at_grant(struct task_struct *p, struct task_ctx *t, struct cpu_ctx *c, __u32 cpu,
					       __u64 now)
{
	/* One that was let in for its section runs in a turn as anybody else: only the section itself may hold others
	 * up. */
	if (c->stay == STAY_FOR_SECTION && c->waiting > 0 && cpu__interrupts(c, cpu, cpu__next_look(c, cpu, now), now))
		scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);
	else if (c->stay == STAY_FOR_SECTION || !entrain_before(now + ALARM_EARLY_NS, c->granted))
		cpu__grant_ends(p, t, c, cpu, now);
	else
		cpu__alarm(c, cpu, c->granted, now);
}

/* CPUs of its LLC whose queues one look of the timer asks for somebody to take. */
#define CROWD_SCAN 8

/*
 * One that runs alone here goes on for as long as its slice, while others queue for another CPU. Were it a vCPU that
 * spins, nobody would learn of it: KVM traps that only where others wait. A function of its own for the verifier.
 */
__noinline int cpu__should_fetch(__u32 cpu, __u64 now)
{
	struct cpu_ctx *c = cpu__ctx(cpu);

	if (!cpu__others_wait(c) || cpu__behind(c, cpu, cpu__running_vtime(c, now), true, CROWD_SCAN) < 0)
		return 0;
	/* The choice that follows begins with that one. */
	c->probe--;
	return 1;
}

static __always_inline void cpu__look_in_vain(struct cpu_ctx *c)
{
	if (c->vain < VAIN_LOOKS)
		c->vain++;
}

/* The look has found that the CPU is to change hands. */
static __always_inline void cpu__interrupt(struct cpu_ctx *c, __u32 cpu)
{
	c->vain -= c->vain > 0;
	scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);
}

/*
 * Where tasks have come to the queue since the timer came last, more will: it comes again when the next of them may
 * want to be let in. And where whoever runs spins now and then without a trap, to see that.
 */
static __always_inline void cpu__looks_on(struct cpu_ctx *c, const struct task_ctx *t, __u32 cpu, __u64 now)
{
	__u32 joined = READ_ONCE(c->joined);

	if (joined != c->looked || (t && t->started && cpu__polls(c, t)))
		cpu__alarm_turn(c, cpu, now + cpu__peace(c) + cpu__look_later(c), now);
	c->looked = joined;
}

/* Somebody waits for the turn of the one who runs to end. */
static __always_inline void cpu__look_at_turn(struct task_struct *p, struct task_ctx *t, struct cpu_ctx *c, __u32 cpu,
					      __u64 now)
{
	__u64 at = cpu__next_look(c, cpu, now);

	if (cpu__interrupts(c, cpu, at, now) || spinner__polled(p, t, cpu)) {
		cpu__interrupt(c, cpu);
	} else {
		cpu__look_in_vain(c);
		cpu__looks_on(c, t, cpu, now);
		cpu__turn_ends(c, cpu, now);
	}
}

/* The timer: looks at what runs on its CPU. The vCPU for which it was armed may have left, and another have come. */
static int cpu__look(void *map, __u32 *key, struct entry_timer *r)
{
	__u32 cpu = *key;
	struct cpu_ctx *c = cpu__ctx(cpu);
	struct task_struct *p;
	struct task_ctx *t;
	__u64 now;

	c->alarm = 0;
	if (c->moved) {
		c->moved = 0;
		cpu__send_away(cpu);
		scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);
	}
	if (c->offline) {
		if (c->waiting > 0) {
			cpu__send_away(cpu);
			bpf_timer_start(&r->timer, STRAY_NS, 0);
		}
		return 0;
	}
	now = sched__now();
	bpf_rcu_read_lock();
	if (!c->started)
		cpu__is_withheld(c, cpu);
	p = scx_bpf_cpu_curr(cpu);
	t = p ? task__ctx(p) : NULL;
	if (t && t->started && c->granted)
		cpu__look_at_grant(p, t, c, cpu, now);
	else if (t && t->started && c->waiting > 0)
		cpu__look_at_turn(p, t, c, cpu, now);
	else if (t && t->started && cpu__should_fetch(cpu, now))
		cpu__interrupt(c, cpu);
	else
		cpu__look_in_vain(c);
	if (!c->alarm)
		cpu__looks_on(c, t, cpu, now);
	bpf_rcu_read_unlock();
	return 0;
}

static __always_inline __s32 cpu__init_timer(__u32 cpu)
{
	struct entry_timer *r = bpf_map_lookup_elem(&sched_alarms, &cpu);

	if (!r)
		return -ENOMEM;
	bpf_timer_init(&r->timer, &sched_alarms, CLOCK_MONOTONIC);
	bpf_timer_set_callback(&r->timer, cpu__look);
	return 0;
}

#endif /* ENTRAIN_SCHED_LOOK_BPF_H */
