/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Taking a CPU from a task. Whoever wants it (a slice that ended, a wake-up) makes the CPU reschedule; what becomes of
 * the vCPU that runs there is decided in ops.dispatch on that CPU, where its guest has just been left and what KVM
 * saved is of this moment. A vCPU inside a critical section then gets a step more, and a timer looks at it again.
 */
#ifndef ENTRAIN_SCHED_PREEMPT_BPF_H
#define ENTRAIN_SCHED_PREEMPT_BPF_H

#include "class.bpf.h"
#include "guest.bpf.h"
#include "queue.bpf.h"

/* CPUs that one wake-up looks at for a victim: bounds its work on large hosts. */
#define VICTIM_SCAN 8

/* Beyond the step the slice lasts so long: the timer decides, and a tick only if the timer was lost. */
#define EXTEND_GRACE_NS (5 * ENTRAIN_MSEC)

/*
 * Asks for one step more for the running vCPU, whose guest is at `level`; `again` where it had one. Returns the step, 0
 * when the vCPU must go.
 */
static __always_inline __u64 task__extend(struct task_struct *p, struct task_ctx *t, __u32 level, bool again, __u64 now)
{
	struct entrain_extend_limits limits = task__extend_limits(t);
	enum entrain_extend_verdict verdict;
	__u64 step = 0;

	verdict = entrain_extend(&t->extend, &limits, level, now, &step);
	if (verdict == ENTRAIN_EXTEND_GRANTED) {
		task__count(t, SCHED_EXTENSIONS, 1);
		task__boosted(p);
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

/*
 * Whether one that was put to the front since it holds something still does; if not, it gives the CPU back. Left alone
 * it would queue for the same lock again and spin there, behind siblings that are not on a CPU: from then on each
 * handover of the lock is a switch of vCPUs (100 times fewer than otherwise), and nothing ends that but chance.
 */
static __always_inline void cpu__section_left(struct task_struct *p, struct task_ctx *t, struct cpu_ctx *c, __u32 cpu,
					      struct entry_timer *r)
{
	switch (entrain_lend(task__critical(p), c->waiting > 0)) {
	case ENTRAIN_LEND_GOES_ON:
		/* Each look is an exit, in its own time: as of an extension. */
		bpf_timer_start(&r->timer, lend_ns, BPF_F_TIMER_CPU_PIN);
		break;
	case ENTRAIN_LEND_LEAVES:
		t->leaving = LEAVING_LENT;
		scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);
		/* fallthrough */
	default:
		c->granted = 0;
	}
}

static int cpu__recheck(void *map, __u32 *key, struct entry_timer *r)
{
	__u32 cpu = *key;
	struct cpu_ctx *c = cpu__ctx(cpu);
	struct task_struct *p;
	struct task_ctx *t;
	__u64 now, step;
	__u32 level;

	if (!c)
		return 0;
	if (!c->granted) {
		if (c->started && c->hurried > 0)
			scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);
		return 0;
	}
	bpf_rcu_read_lock();
	p = scx_bpf_cpu_curr(cpu);
	t = p ? task__ctx(p) : NULL;
	/*
	 * The section may have ended with the vCPU's stay, and another task's extension begun since: then it is not
	 * ours.
	 */
	if (!t || !t->started) {
		bpf_rcu_read_unlock();
		return 0;
	}
	if (c->stay == STAY_FOR_SECTION) {
		cpu__section_left(p, t, c, cpu, r);
		bpf_rcu_read_unlock();
		return 0;
	}
	level = task__critical(p);
	/* One that came to take an interrupt and is inside a section has the rest of its VM's turn, at no charge. */
	if (c->stay && entrain_critical_holds(level)) {
		c->granted = 0;
		bpf_rcu_read_unlock();
		return 0;
	}
	now = scx_bpf_now();
	step = task__may_extend(t) ? task__extend(p, t, level, true, now) : 0;
	if (step) {
		c->granted = now + step;
		bpf_timer_start(&r->timer, step, BPF_F_TIMER_CPU_PIN);
	} else {
		c->granted = 0;
		c->refused = 1;
		scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);
	}
	bpf_rcu_read_unlock();
	return 0;
}

static __always_inline __s32 cpu__init_timer(__u32 cpu)
{
	struct entry_timer *r = bpf_map_lookup_elem(&sched_rechecks, &cpu);

	if (!r)
		return -ENOMEM;
	bpf_timer_init(&r->timer, &sched_rechecks, CLOCK_MONOTONIC);
	bpf_timer_set_callback(&r->timer, cpu__recheck);
	return 0;
}

/* In ops.dispatch: whether the vCPU that was to be taken off stays for a step, since its guest is inside a section. */
static __always_inline bool task__may_stay(struct task_struct *prev, struct task_ctx *t, struct cpu_ctx *c, __u32 cpu,
					   __u64 now)
{
	struct entry_timer *r;
	__u64 step;

	if (c->refused) {
		c->refused = 0;
		return false;
	}
	if (!task__may_extend(t))
		return false;
	step = task__extend(prev, t, task__sample(prev, kvm_vcpu__of(prev)), false, now);
	if (!step)
		return false;
	c->granted = now + step;
	c->stay = STAY_FULL;
	task__sample_again(prev);
	task__tell_extended(prev, t, true);
	scx_bpf_task_set_slice(prev, step + EXTEND_GRACE_NS);
	r = bpf_map_lookup_elem(&sched_rechecks, &cpu);
	if (r)
		bpf_timer_start(&r->timer, step, BPF_F_TIMER_CPU_PIN);
	return true;
}

/* A vCPU that was let in for a short stay begins to run: the timer looks whether it is done, as after an extension. */
static __always_inline void cpu__short_stay(struct cpu_ctx *c, enum short_stay why, __u32 cpu, __u64 now)
{
	struct entry_timer *r = bpf_map_lookup_elem(&sched_rechecks, &cpu);
	__u64 after = why == STAY_FOR_SECTION ? lend_ns : answer_ns;

	if (!r)
		return;
	c->stay = why;
	c->granted = now + after;
	bpf_timer_start(&r->timer, after, BPF_F_TIMER_CPU_PIN);
}

/* Slices end at the timer tick; where somebody waits that is to wait briefly, the timer ends them. */
static __always_inline void cpu__slice_begins(const struct cpu_ctx *c, __u32 cpu)
{
	struct entry_timer *r;

	if (c->hurried <= 0 || c->granted)
		return;
	r = bpf_map_lookup_elem(&sched_rechecks, &cpu);
	if (r)
		bpf_timer_start(&r->timer, cpu__slice(c), BPF_F_TIMER_CPU_PIN);
}

/* What wants a CPU. */
struct wanting {
	__u64 vtime;
	__u64 granularity;
	__u64 migrate;	    /* what a move costs it, in virtual time */
	__u64 vcpu_min_run; /* a vCPU that runs stays at least so long */
};

/*
 * A vCPU leaves another vCPU a while, a task of the host does not. Worked out once: in the loop over the victims each
 * branch would double what the verifier has to look at.
 */
static __always_inline void wanting__fill(struct wanting *w, const struct task_ctx *t, __u64 vtime, bool vcpu,
					  bool urgent)
{
	w->vtime = vtime;
	w->granularity = task__vtime(t, entrain_granularity(granularity_ns, urgent));
	w->migrate = task__vtime(t, migrate_ns);
	w->vcpu_min_run = vcpu && !urgent ? min_run_vcpu_ns : min_run_ns;
}

/* Whether one that waits takes the CPU from the task that runs there, whose clock is at `running`. */
static __always_inline bool wanting__takes(const struct wanting *w, __u64 running, const struct cpu_ctx *c, __u64 now)
{
	struct entrain_preempt_limits limits = {
		.granularity = w->granularity,
		.min_run = c->tgid ? w->vcpu_min_run : min_run_ns,
	};
	struct entrain_preempt_in in = {
		.vtime = w->vtime,
		.victim_vtime = running,
		.victim_ran = entrain_sub(now, c->came),
	};

	return entrain_preempt(&in, &limits);
}

/*
 * The CPU that a task that woke takes: the one whose task's clock is furthest ahead of it, if that is far enough;
 * another one than its own only when the difference is worth the move. -1: none, it waits at home.
 */
static __always_inline __s32 wanting__victim(const struct wanting *w, struct task_struct *p, __s32 home, __u64 now)
{
	__u64 best = 0;
	__s32 victim = -1;
	__u32 i;

	bpf_for (i, 0, VICTIM_SCAN) {
		__u32 cpu = home + i;
		struct cpu_ctx *c;
		__u64 running, score;

		if (i >= nr_cpus)
			break;
		if (cpu >= nr_cpus)
			cpu -= nr_cpus;
		c = cpu__ctx(cpu);
		if (!c || !c->started || cpu__is_excused(c) || !bpf_cpumask_test_cpu(cpu, p->cpus_ptr))
			continue;
		running = cpu__running_vtime(c, now);
		if (!wanting__takes(w, running, c, now))
			continue;
		score = entrain_victim_score(w->vtime, running);
		score = i ? entrain_sub(score, w->migrate) : score;
		if (score > best) {
			best = score;
			victim = cpu;
		}
	}
	return victim;
}

#endif /* ENTRAIN_SCHED_PREEMPT_BPF_H */
