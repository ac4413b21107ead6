/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * When a CPU is looked at again. Turns end by a timer and not at the tick: at the end of the slice, or earlier, as soon
 * as whoever waits first may take the CPU. A vCPU inside a critical section gets a step more then, after which the same
 * timer looks at it again. Where timers don't serve, ticks still end turns.
 *
 * Out of an operation, where interrupts are off, the kernel starts a timer by an interrupt of its own; out of the
 * timer's callback it does not. So a timer that comes early looks, and arms itself anew; one that finds nobody waiting
 * does so as long as tasks keep coming to the queue; and an operation arms it only where it would come too late.
 */
#ifndef ENTRAIN_SCHED_ALARM_BPF_H
#define ENTRAIN_SCHED_ALARM_BPF_H

#include "idle.bpf.h"
#include "preempt.bpf.h"
#include "timer.bpf.h"

/* Beyond the step the slice lasts so long: the timer decides, and a tick only if the timer was lost. */
#define EXTEND_GRACE_NS (5 * ENTRAIN_MSEC)

/*
 * Asks for one step more for the running vCPU, whose guest is at `level`; `again` where it had one. Returns the step, 0
 * when the vCPU must go.
 */
static __always_inline __u64 task__extend(struct task_struct *p, struct task_ctx *t, const struct cpu_ctx *c,
					  __u32 level, bool again, __u64 now)
{
	struct entrain_extend_limits limits = task__extend_limits(t);
	enum entrain_extend_verdict verdict;
	__u64 step = 0;

	limits.step = cpu__costs(c, look_costs, limits.step);
	verdict = entrain_extend(&t->extend, &limits, level, now, &step);
	if (verdict == ENTRAIN_EXTEND_GRANTED) {
		task__count(t, SCHED_EXTENSIONS, 1);
		task__boosted(p, t);
	} else if (!again || verdict != ENTRAIN_EXTEND_NOT_CRITICAL) {
		/* A section that ended within its extension was refused nothing. */
		task__count_verdict(t, SCHED_REFUSED_NOT_CRITICAL, verdict - ENTRAIN_EXTEND_NOT_CRITICAL,
				    ENTRAIN_EXTEND_VERDICTS - ENTRAIN_EXTEND_NOT_CRITICAL);
	}
	return step;
}

static __always_inline bool task__may_extend(const struct task_ctx *t)
{
	return use_extend && t->pub.vcpu;
}

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

/* For how long the task that runs is left in peace by plain tasks. */
static __always_inline __u64 cpu__peace(const struct cpu_ctx *c)
{
	return cpu__costs(c, protect_costs, min_run_ns);
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
 * The same for one that waits for its turn, and may wait for as long as a look is put off in a section: to start the
 * timer anew for less costs more than it saves.
 */
static __always_inline void cpu__alarm_turn(struct cpu_ctx *c, __u32 cpu, __u64 at, __u64 now)
{
	at += cpu__look_later(c);
	if (!cpu__looks_by(c, at + cpu__costs(c, look_costs, lend_ns), now))
		cpu__alarm(c, cpu, at, now);
}

/* When the turn on a CPU is over. */
static __always_inline __u64 cpu__turn_end(const struct cpu_ctx *c)
{
	return c->turn + entrain_sub(cpu__slice(c), c->less);
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

/* When somebody who waits may interrupt the task that runs, since a guest's timer is due; else `at`. */
static __always_inline __u64 cpu__due_before(const struct cpu_ctx *c, __u64 at)
{
	__u64 peace = c->came + cpu__peace(c), due = c->due;

	if (!due)
		return at;
	if (entrain_before(due, peace))
		due = peace;
	return entrain_before(due, at) ? due : at;
}

/* One that wants a CPU has come to its queue: the task that runs is looked at when the CPU is to change hands. */
static __always_inline void wanting__waits(const struct wanting *w, struct cpu_ctx *c, __u32 cpu, bool woke, __u64 now)
{
	__u64 end, after;

	if (!c->started || c->granted)
		return;
	end = cpu__turn_end(c);
	after = woke && use_wake_preempt ? now + wanting__takes_after(w, c, now) : end;
	cpu__alarm_turn(c, cpu, entrain_before(after, end) ? after : end, now);
}

/* Arms the timer for the end of the turn, where somebody waits for it. */
static __always_inline void cpu__turn_ends(struct cpu_ctx *c, __u32 cpu, __u64 now)
{
	__u64 at;

	if (c->waiting <= 0 || !c->started || c->granted)
		return;
	at = cpu__due_before(c, cpu__next_look(c, cpu, now));
	/* A timer that is due later is served in time; for one that is late already, whoever runs ends his protection.
	 */
	if (at == c->due)
		cpu__alarm(c, cpu, at, now);
	else
		cpu__alarm_turn(c, cpu, at, now);
}

/* In ops.dispatch: whether the vCPU that was to be taken off stays for a step, since its guest is inside a section. */
static __always_inline bool task__may_stay(struct task_struct *prev, struct task_ctx *t, struct cpu_ctx *c, __u32 cpu,
					   __u64 now)
{
	__u64 step;

	if (c->refused || !task__may_extend(t) || task__spins(t, c, now))
		return false;
	step = task__extend(prev, t, c, task__sample(prev, t, kvm_vcpu__of(prev)), false, now);
	if (!step)
		return false;
	c->granted = now + step;
	c->stay = STAY_FULL;
	task__sample_again(prev, t);
	task__tell_extended(prev, t, true);
	scx_bpf_task_set_slice(prev, step + EXTEND_GRACE_NS);
	cpu__alarm(c, cpu, c->granted, now);
	return true;
}

/*
 * A vCPU that was let in for a short stay begins to run: the timer looks whether it is done, as after an extension.
 *
 * Where vCPUs wait for a lock in turn, each is there but for its section and until it spins for the next one: shorter
 * than a look takes to come. A timer started for each is wasted, and makes each stay longer. One that was armed before
 * serves as well: it finds some of them, and whoever has left his section makes way (cpu__section_left()).
 */
static __always_inline void cpu__short_stay(struct cpu_ctx *c, enum short_stay why, __u32 cpu, __u64 now)
{
	bool section = why == STAY_FOR_SECTION;

	c->stay = why;
	c->granted = now + cpu__costs(c, why == STAY_FOR_TIMER ? timer_stay_costs : look_costs,
				      section ? lend_ns : answer_ns);
	if (!section || !cpu__looks_by(c, c->granted + cpu__peace(c), now))
		cpu__alarm(c, cpu, c->granted, now);
}

/*
 * The section of one that was let in for it is over, and it leaves: the sibling that gave way to it goes on. That one
 * stands in a lock's queue, and is to leave it as well: a lock whose queue has emptied is not handed from one vCPU to
 * another any more, at a switch each. All of it is within the turn of the one who pays for it.
 */
static __always_inline void cpu__spinner_goes_on(const struct task_ctx *t, struct cpu_ctx *c, __u32 cpu, __u64 now)
{
	struct task_struct *p = c->spinner ? scx_bpf_tid_to_task(c->spinner) : NULL;
	struct task_ctx *s = p ? task__ctx(p) : NULL;

	c->spinner = 0;
	if (!entrain_before(now, cpu__turn_end(c)))
		return;
	if (!s || !s->queued || s->pub.tgid != t->pub.tgid || (c->next && !entrain_before(c->next_until, now)))
		return;
	cpu__put_next(c, p, STAY_FOR_SECTION, now);
	/* It is looked at by this timer, which costs nothing to start here. */
	cpu__alarm(c, cpu, now + cpu__costs(c, look_costs, lend_ns), now);
}

/*
 * Whether one that was put to the front since it holds something still does; if not, it gives the CPU back. Left alone
 * it would queue for the same lock again and spin there, behind siblings that are not on a CPU: from then on each
 * handover of the lock is a switch of vCPUs (100 times fewer than otherwise), and nothing ends that but chance.
 */
static __always_inline void cpu__section_left(struct task_struct *p, struct task_ctx *t, struct cpu_ctx *c, __u32 cpu,
					      __u64 now)
{
	switch (entrain_lend(task__spins(t, c, now) ? ENTRAIN_CRITICAL_FREE : task__critical(p, t), c->waiting > 0)) {
	case ENTRAIN_LEND_GOES_ON:
		/* Each look is an exit, in its own time: as of an extension. */
		c->granted = now + cpu__costs(c, look_costs, lend_ns);
		cpu__alarm(c, cpu, c->granted, now);
		break;
	case ENTRAIN_LEND_LEAVES:
		t->leaving = LEAVING_LENT;
		cpu__spinner_goes_on(t, c, cpu, now);
		scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);
		/* fallthrough */
	default:
		c->granted = 0;
	}
}

/* What was granted to the vCPU that runs is over: another step, or it goes. */
static __always_inline void cpu__grant_ends(struct task_struct *p, struct task_ctx *t, struct cpu_ctx *c, __u32 cpu,
					    __u64 now)
{
	__u32 level;
	__u64 step;

	if (c->stay == STAY_FOR_SECTION) {
		cpu__section_left(p, t, c, cpu, now);
		return;
	}
	level = task__critical(p, t);
	/* One that came to take an interrupt and is inside a section has the rest of its VM's turn, at no charge. */
	if (c->stay == STAY_FOR_INTERRUPT && entrain_critical_holds(level) && !task__spins(t, c, now)) {
		c->granted = 0;
		cpu__turn_ends(c, cpu, now);
		return;
	}
	step = task__may_extend(t) && !task__spins(t, c, now) ? task__extend(p, t, c, level, true, now) : 0;
	if (step) {
		c->granted = now + step;
		cpu__alarm(c, cpu, c->granted, now);
		return;
	}
	c->granted = 0;
	c->refused = 1;
	cpu__due_goes_next(cpu, now);
	scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);
}

/* Whether somebody who waits interrupts the task that runs, since a guest's timer is due. */
static __always_inline bool cpu__due_interrupts(const struct cpu_ctx *c, __u32 cpu, __u64 now)
{
	__u64 never = now + ENTRAIN_SEC;

	return !entrain_before(now + ALARM_EARLY_NS, cpu__due_before(c, never)) && cpu__due_goes_next(cpu, now);
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
	if (c->stay == STAY_FOR_SECTION || !entrain_before(now + ALARM_EARLY_NS, c->granted))
		cpu__grant_ends(p, t, c, cpu, now);
	else
		cpu__alarm(c, cpu, c->granted, now);
}

static __always_inline void cpu__look_in_vain(struct cpu_ctx *c)
{
	if (c->vain < VAIN_LOOKS)
		c->vain++;
}

/*
 * Where tasks have come to the queue since the timer came last, more will: it comes again when the next of them may
 * want to be let in.
 */
static __always_inline void cpu__looks_on(struct cpu_ctx *c, __u32 cpu, __u64 now)
{
	__u32 joined = READ_ONCE(c->joined);

	if (joined != c->looked)
		cpu__alarm_turn(c, cpu, now + cpu__peace(c), now);
	c->looked = joined;
}

/* Somebody waits for the turn of the one who runs to end. */
static __always_inline void cpu__look_at_turn(struct cpu_ctx *c, __u32 cpu, __u64 now)
{
	__u64 at = cpu__next_look(c, cpu, now);

	if (cpu__due_interrupts(c, cpu, now) || !entrain_before(now + ALARM_EARLY_NS, at)) {
		c->vain -= c->vain > 0;
		scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);
	} else {
		cpu__look_in_vain(c);
		cpu__looks_on(c, cpu, now);
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
	now = scx_bpf_now();
	bpf_rcu_read_lock();
	if (!c->started)
		cpu__is_withheld(c, cpu);
	p = scx_bpf_cpu_curr(cpu);
	t = p ? task__ctx(p) : NULL;
	if (t && t->started && c->granted)
		cpu__look_at_grant(p, t, c, cpu, now);
	else if (t && t->started && c->waiting > 0)
		cpu__look_at_turn(c, cpu, now);
	else
		cpu__look_in_vain(c);
	if (!c->alarm)
		cpu__looks_on(c, cpu, now);
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

#endif /* ENTRAIN_SCHED_ALARM_BPF_H */
