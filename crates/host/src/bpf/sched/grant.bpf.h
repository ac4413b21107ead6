/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What a vCPU is granted beyond its turn, or out of it: a step more inside a critical section, a short stay for an
 * interrupt, a timer or a section that siblings wait for. The timer looks at it when that is over.
 */
#ifndef ENTRAIN_SCHED_GRANT_BPF_H
#define ENTRAIN_SCHED_GRANT_BPF_H

#include "alarm.bpf.h"

/* Beyond the step the slice lasts so long: the timer decides, and a tick only if the timer was lost. */
#define EXTEND_GRACE_NS (5 * ENTRAIN_MSEC)

/*
 * Decides on one step more; the verdict is kept with the task. Somebody who waits may interrupt an extension since a
 * guest's timer is due. A function of its own for the verifier.
 */
__noinline __u64 task__extends(struct task_ctx *t __arg_nonnull, __u32 cpu, __u32 level, __u64 now)
{
	struct entrain_extend_limits limits = task__extend_limits(t);
	const struct cpu_ctx *c = cpu__ctx(cpu);
	__u64 due = 0, step = 0;

	limits.step = cpu__costs(c, look_costs, limits.step);
	if (!c->next || c->next_stay != STAY_FOR_TIMER)
		due = entrain_sub(cpu__due_before(cpu, now + limits.event), now);
	limits.event = entrain_extend_event(limits.event, cpu__peace(c), t->extend.used, due);
	t->verdict = entrain_extend(&t->extend, &limits, level, now, &step);
	return step;
}

/*
 * Asks for one step more for the running vCPU, whose guest is at `level`; `again` where it had one. Returns the step, 0
 * when the vCPU must go.
 */
static __always_inline __u64 task__extend(struct task_struct *p, struct task_ctx *t, __u32 cpu, __u32 level, bool again,
					  __u64 now)
{
	__u64 step = task__extends(t, cpu, level, now);

	if (step) {
		task__count(t, SCHED_EXTENSIONS, 1);
		task__boosted(p, t);
	} else if (!again || t->verdict != ENTRAIN_EXTEND_NOT_CRITICAL) {
		/* A section that ended within its extension was refused nothing. */
		task__count_verdict(t, SCHED_REFUSED_NOT_CRITICAL, t->verdict - ENTRAIN_EXTEND_NOT_CRITICAL,
				    ENTRAIN_EXTEND_VERDICTS - ENTRAIN_EXTEND_NOT_CRITICAL);
	}
	return step;
}

static __always_inline bool task__may_extend(const struct task_ctx *t)
{
	return use_extend && t->pub.vcpu;
}

/* In ops.dispatch: whether the vCPU that was to be taken off stays for a step, since its guest is inside a section. */
static __always_inline bool task__may_stay(struct task_struct *prev, struct task_ctx *t, struct cpu_ctx *c, __u32 cpu,
					   __u64 now)
{
	__u64 step;

	if (c->refused || !task__may_extend(t) || task__spins(t, c, now))
		return false;
	step = task__extend(prev, t, cpu, task__sample(prev, t, kvm_vcpu__of(prev)), false, now);
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
	if (!entrain_before(now, cpu__turn_end(c)) || cpu__has_next(c, now) || !s || !s->queued ||
	    s->pub.tgid != t->pub.tgid)
		return;
	cpu__put_next(c, p->scx.tid, STAY_FOR_SECTION, now);
	/* It is looked at by this timer, which costs nothing to start here. */
	cpu__alarm(c, cpu, now + cpu__look_ns(c), now);
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
		c->granted = now + cpu__look_ns(c);
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
	step = task__may_extend(t) && !task__spins(t, c, now) ? task__extend(p, t, cpu, level, true, now) : 0;
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

#endif /* ENTRAIN_SCHED_GRANT_BPF_H */
