/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Taking a CPU from a task. Whoever wants it (a slice that ended, a wake-up) makes the CPU reschedule; what becomes of
 * the vCPU that runs there is decided in ops.dispatch on that CPU, where its guest has just been left and what KVM
 * saved is of this moment (grant.bpf.h).
 */
#ifndef ENTRAIN_SCHED_PREEMPT_BPF_H
#define ENTRAIN_SCHED_PREEMPT_BPF_H

#include "class.bpf.h"
#include "guest.bpf.h"
#include "queue.bpf.h"

/* CPUs of its LLC that one wake-up looks at for a victim: bounds its work where many share one. */
#define VICTIM_SCAN 8

/* What wants a CPU. */
struct wanting {
	__u64 vtime;
	__u64 granularity;
	__u64 migrate;	    /* what a move costs it, in virtual time */
	__u64 vcpu_min_run; /* a vCPU that runs stays at most so long in peace */
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

/* What place.h is asked of the task that runs on a CPU. */
struct candidate {
	struct entrain_preempt_in in;
	struct entrain_preempt_limits limits;
};

/* `running` is how far the clock of the task has come that runs there. */
static __always_inline void candidate__fill(struct candidate *v, const struct wanting *w, __u64 running,
					    const struct cpu_ctx *c, __u64 now)
{
	v->limits.granularity = w->granularity;
	v->limits.min_run = cpu__costs(c, protect_costs, c->tgid ? w->vcpu_min_run : min_run_ns);
	v->in.vtime = w->vtime;
	v->in.victim_vtime = running;
	v->in.victim_ran = entrain_sub(now, c->came);
}

/* After how many ns one that waits takes the CPU from the task that runs there. */
static __always_inline __u64 wanting__takes_after(const struct wanting *w, const struct cpu_ctx *c, __u64 now)
{
	struct candidate v;

	candidate__fill(&v, w, cpu__shown_vtime(c, now), c, now);
	/* A clock that is shown further than it is stands still until it has come as far. */
	if (!entrain_before(v.in.vtime + v.limits.granularity, v.in.victim_vtime))
		v.in.victim_vtime = cpu__running_vtime(c, now);
	return entrain_preempt_after(&v.in, &v.limits, c->share);
}

/*
 * The CPU that a task that woke takes: the one whose task's clock is furthest ahead of it, if that is far enough;
 * another one of its LLC than its own, `home`, only when the difference is worth the move. -1: none, it waits at home.
 * A function of its own for the verifier, which else walks the loop anew on each path that leads to it.
 */
__noinline __s32 wanting__victim(const struct wanting *w __arg_nonnull, struct task_struct *p __arg_trusted, __s32 home,
				 __u64 now)
{
	const struct cpu_ctx *h = cpu__ctx(home);
	__u64 best = 0;
	__s32 victim = -1;
	__u32 i;

	bpf_for (i, 0, VICTIM_SCAN) {
		__s32 cpu = llc__cpu(h, i);
		struct candidate v;
		struct cpu_ctx *c;
		__u64 score;

		if (cpu < 0)
			break;
		c = cpu__ctx(cpu);
		if (c->llc != h->llc || !c->started || cpu__is_excused(c) || !bpf_cpumask_test_cpu(cpu, p->cpus_ptr))
			continue;
		candidate__fill(&v, w, cpu__shown_vtime(c, now), c, now);
		if (!entrain_preempt(&v.in, &v.limits))
			continue;
		score = entrain_victim_score(w->vtime, v.in.victim_vtime);
		score = i ? entrain_sub(score, w->migrate) : score;
		if (score > best) {
			best = score;
			victim = cpu;
		}
	}
	return victim;
}

#endif /* ENTRAIN_SCHED_PREEMPT_BPF_H */
