/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A vCPU that spins gives its CPU to a sibling, if that is of use: to the one that KVM proposes (ops.yield), to one
 * that has an interrupt to take, or to the one that its guest says it spins for (reference 3 wanted to know that one).
 * KVM would propose the second, too, but knows of it only with APIC virtualization: on arm64 and elsewhere it leaves
 * out whoever was preempted in user mode, and who waits for the answers of its siblings spins in vain. The third it
 * does not know: the owner of a sleeping lock looks as if it held nothing.
 */
#ifndef ENTRAIN_SCHED_YIELD_BPF_H
#define ENTRAIN_SCHED_YIELD_BPF_H

#include "queue.bpf.h"

/* CPUs of the LLC whose queues one spin looks at for a sibling. */
#define SPIN_SCAN 4

/* Tasks looked at in each of them. Bounds the work per spin whatever the number of VMs. */
#define SIBLING_SCAN 6

/* Who spins for a lock may wait for one that spins itself, for another: so many of them are followed. */
#define SPIN_CHAIN 3

/* Who spins, and where. */
struct spinner {
	struct task_struct *task;
	struct task_ctx *ctx;
	__s32 cpu;
	struct cpu_ctx *c;
	__u64 turn;   /* How long a turn lasts here now, in ns; ... */
	__u64 passed; /* ... and how much of this one is over, where others wait. */
	__u64 now;
};

static __always_inline bool spinner__find(struct spinner *s, struct task_struct *p, struct task_ctx *t, __s32 cpu)
{
	s->task = p;
	s->ctx = t;
	s->cpu = cpu;
	s->c = cpu__ctx(cpu);
	if (!s->c)
		return false;
	s->turn = cpu__slice(s->c);
	s->now = sched__now();
	/* One that came for its timer is a guest in another one's turn, and has none to hand on. */
	s->passed = s->c->stay == STAY_FOR_TIMER ? ~0ULL : entrain_sub(s->now, s->c->turn);
	if (s->c->waiting <= 0)
		s->passed = 0;
	return true;
}

/* Whether others wait for this CPU and this turn is over: a vCPU that spins has no claim to more. */
static __always_inline bool spinner__turn_over(const struct spinner *s)
{
	return s->passed >= s->turn;
}

static __always_inline void spinner__leave(const struct spinner *s)
{
	s->ctx->leaving = LEAVING_YIELDED;
	/* The kernel reschedules after a yield that was followed; with no slice left, ops.dispatch comes to decide. */
	scx_bpf_task_set_slice(s->task, 0);
}

/*
 * Whether a CPU is to take this one next: not one whose place there was given to another, or forgotten as the turn
 * ended, nor one that goes on there when those are done who come before it, which may be a whole turn later. Refused as
 * if it were about to run, it would leave whoever spins for it to yield to one another.
 */
static __always_inline bool task__is_next(const struct task_struct *p, const struct task_ctx *t, __u64 now)
{
	const struct cpu_ctx *c = cpu__ctx(t->next_on);

	return c->next == p->scx.tid && cpu__has_next(c, now);
}

/* Whether the vCPU that spins is to give way to a sibling; if so the sibling is next here. */
static __always_inline bool spinner__give_way(const struct spinner *s, struct task_struct *to, struct task_ctx *t,
					      bool owes, bool named)
{
	struct entrain_yield_limits limits = {.turn = s->turn};
	struct entrain_yield_in in = {};
	enum entrain_yield_verdict verdict;
	enum short_stay stay;

	in.sibling = s->task->tgid == to->tgid;
	in.waiting = t->waiting && t->queued;
	in.allowed = !to->migration_disabled && bpf_cpumask_test_cpu(s->cpu, to->cpus_ptr);
	in.level = t->level;
	in.owes = owes;
	in.named = named;
	in.next = task__is_next(to, t, s->now);
	in.turn = s->passed;
	verdict = entrain_yield(&in, &limits);
	task__count_verdict(t, SCHED_YIELDS_HONOURED, verdict, ENTRAIN_YIELD_VERDICTS);
	if (verdict != ENTRAIN_YIELD_HONOURED)
		return false;
	if (entrain_critical_holds(t->level))
		stay = lend_ns ? STAY_FOR_SECTION : STAY_FULL;
	else
		stay = owes ? STAY_FOR_INTERRUPT : STAY_FULL;
	t->next_on = s->cpu;
	/* One whose place that one takes, and whose timer is due, is looked for again. */
	if (s->c->next && s->c->next_stay == STAY_FOR_TIMER)
		cpu__expects(s->c, s->now);
	cpu__put_next(s->c, to->scx.tid, stay, s->now);
	task__boosted(to, t);
	return true;
}

/* Whether the CPU goes to somebody already whom the look of this very trap has found. */
static __always_inline bool spinner__has_found(const struct spinner *s)
{
	return s->ctx->leaving == LEAVING_YIELDED && cpu__has_next(s->c, s->now);
}

/* Called with the run-queue locks of both held, so neither moves meanwhile. */
static __always_inline bool spinner__yield(struct task_struct *from, struct task_ctx *f, struct task_struct *to)
{
	struct task_ctx *t = task__ctx(to);
	struct spinner s;

	if (!t || !spinner__find(&s, from, f, scx_bpf_task_cpu(from)))
		return false;
	f->spun = s.now;
	/*
	 * KVM looks after spinner__look() has, and proposes whoever was preempted in its kernel: siblings that spin,
	 * too. If one of these took the place of the one that owes all of them an answer, they would yield to one
	 * another.
	 */
	if (spinner__has_found(&s)) {
		spinner__leave(&s);
		return true;
	}
	/* Where posted interrupts cannot be seen, KVM's word stands: it proposes nobody in user mode without one. */
	if (!spinner__give_way(&s, to, t, kvm_vcpu__owes(t->kvm_vcpu) != OWES_NOTHING, false) &&
	    !spinner__turn_over(&s))
		return false;
	s.c->spinner = entrain_critical_holds(t->level) ? from->scx.tid : 0;
	spinner__leave(&s);
	return true;
}

/* As if KVM's yield had been followed: the vCPU is not said to have been interrupted. */
static __always_inline void spinner__leave_now(const struct spinner *s)
{
	struct entrain_vcpu *vcpu = task__vcpu(s->task, s->ctx);

	if (vcpu)
		vcpu->gave_way = 1;
	spinner__leave(s);
	scx_bpf_kick_cpu(s->cpu, SCX_KICK_PREEMPT);
}

/*
 * A spinner looks again after this part of the time that an answer takes, and after so many times what the look has
 * taken. Threat model: a guest can trap as fast as it can loop, and each look takes the locks of others' queues; at
 * this rate no more than a sixteenth of its own time goes into looks, which it pays for, and an answer is missed by no
 * more than a sixteenth of what it takes.
 */
#define LOOK_PART 16

static __always_inline bool spinner__may_look(const struct task_ctx *t, __u64 now)
{
	return !entrain_before(now, t->looks_at);
}

static __always_inline void spinner__looked(struct task_ctx *t, __u64 began)
{
	__u64 now = bpf_ktime_get_ns(), took = entrain_sub(now, began);

	t->looks_at = now + entrain_max(took * LOOK_PART, answer_ns / LOOK_PART);
}

/*
 * The vCPU `number` - 1 of the VM `tgid`, if it waits in a queue near `cpu`: its scx tid, and for whom it spins itself.
 * A function of its own for the verifier.
 */
__noinline __u64 sibling__queued(__u32 cpu, __s32 tgid, __u64 number, __u64 *spins_for)
{
	const struct cpu_ctx *c = cpu__ctx(cpu);
	struct task_struct *p;
	__u32 i;

	bpf_for (i, 0, SPIN_SCAN) {
		__s32 other = llc__cpu(c, i);
		__u32 seen = 0;

		if (other < 0)
			break;
		bpf_for_each (scx_dsq, p, DSQ_CPU(other), 0) {
			struct task_ctx *t = task__ctx(p);

			if (seen++ >= SIBLING_SCAN)
				break;
			if (!t || p->tgid != tgid || task__number(p, t) != number)
				continue;
			if (spins_for)
				*spins_for = task__spins_for(p, t);
			return p->scx.tid;
		}
	}
	return 0;
}

/*
 * The same of the last one that waits in a chain of those who spin for one another: whoever runs is waited for. A
 * function of its own for the verifier.
 */
__noinline __u64 sibling__chained(__u32 cpu, __s32 tgid, __u64 number)
{
	__u64 spins_for = 0, tid = 0, found;
	__u32 i;

	bpf_for (i, 0, SPIN_CHAIN) {
		found = number ? sibling__queued(cpu, tgid, number, &spins_for) : 0;
		if (!found)
			break;
		tid = found;
		number = spins_for == number ? 0 : spins_for;
	}
	return tid;
}

/* Whether the sibling for which its guest says that it spins (0: for none) waits for a CPU: that one is next here. */
static __always_inline bool spinner__hands_on(const struct spinner *s, __u64 spins_for)
{
	__u64 tid = spins_for ? sibling__chained(s->cpu, s->task->tgid, spins_for) : 0;
	struct task_struct *to = tid ? scx_bpf_tid_to_task(tid) : NULL;
	struct task_ctx *t = to ? task__ctx(to) : NULL;

	return t && spinner__give_way(s, to, t, false, true);
}

/*
 * The vCPU that runs here may spin for a sleeping lock, and at the head of its queue it does so without a trap (arm64):
 * the timer looks. Returns whether its CPU changes hands.
 */
static __always_inline bool spinner__polled(struct task_struct *p, struct task_ctx *t, __u32 cpu)
{
	struct spinner s;
	__u64 spins_for;

	if (!task__may_poll(t))
		return false;
	spins_for = task__spins_for(p, t);
	if (!spins_for) {
		t->polled++;
		return false;
	}
	t->polled = 0;
	if (!spinner__find(&s, p, t, cpu) || cpu__has_next(s.c, s.now) || !spinner__hands_on(&s, spins_for))
		return false;
	spinner__leave_now(&s);
	return true;
}

/*
 * The vCPU of the current thread spins: a sibling that owes an answer takes its CPU, for a moment, or the one that it
 * spins for. No lock is held: what is seen of the siblings may be out of date, and task__take() looks again.
 */
static __always_inline void spinner__look(struct task_struct *p, struct task_ctx *t)
{
	struct task_struct *to;
	struct spinner s;
	__u32 i;

	if (!spinner__find(&s, p, t, bpf_get_smp_processor_id()) || cpu__has_next(s.c, s.now))
		return;
	t->spun = s.now;
	if (spinner__turn_over(&s) || spinner__hands_on(&s, task__spins_for(p, t))) {
		spinner__leave_now(&s);
		return;
	}
	bpf_for (i, 0, SPIN_SCAN) {
		__s32 other = llc__cpu(s.c, i);
		__u32 seen = 0;

		if (other < 0)
			break;
		bpf_for_each (scx_dsq, to, DSQ_CPU(other), 0) {
			struct task_ctx *u = task__ctx(to);

			if (seen++ >= SIBLING_SCAN)
				break;
			/* Whoever was preempted inside a section is KVM's to propose. */
			if (!u || to->tgid != p->tgid || entrain_critical_holds(u->level) ||
			    kvm_vcpu__owes(u->kvm_vcpu) != OWES_ANSWER)
				continue;
			if (spinner__give_way(&s, to, u, true, false)) {
				spinner__leave_now(&s);
				return;
			}
		}
	}
}

#endif /* ENTRAIN_SCHED_YIELD_BPF_H */
