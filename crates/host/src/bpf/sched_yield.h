/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A vCPU that spins gives its CPU to a sibling, if that is of use: to the one that KVM proposes (ops.yield), or to one
 * that has an interrupt to take. KVM would propose that one, too, but knows of it only with APIC virtualization: on
 * arm64 and elsewhere it leaves out whoever was preempted in user mode, and who waits for the answers of its siblings
 * spins in vain.
 */
#ifndef ENTRAIN_SCHED_YIELD_H
#define ENTRAIN_SCHED_YIELD_H

#include "sched_queue.h"

/* CPUs whose queues one spin looks at for a sibling. */
#define SPIN_SCAN 4

/* Who spins, and where. */
struct spinner {
	struct task_struct *task;
	struct task_ctx *ctx;
	__s32 cpu;
	struct cpu_ctx *c;
	__u64 turn; /* How long a turn lasts here now, in ns. */
	__u64 now;
};

static __always_inline bool find_spinner(struct spinner *s, struct task_struct *p, struct task_ctx *t, __s32 cpu)
{
	s->task = p;
	s->ctx = t;
	s->cpu = cpu;
	s->c = cpu_ctx(cpu);
	if (!s->c)
		return false;
	s->turn = slice_for(s->c);
	s->now = scx_bpf_now();
	return true;
}

/* Whether others wait for this CPU and this turn is over: a vCPU that spins has no claim to more. */
static __always_inline bool turn_over(const struct spinner *s)
{
	return s->c->waiting > 0 && entrain_sub(s->now, s->c->turn) >= s->turn;
}

static __always_inline void leave(const struct spinner *s)
{
	s->ctx->leaves = LEAVES_YIELDED;
	/* The kernel reschedules after a yield that was followed; with no slice left, ops.dispatch comes to decide. */
	scx_bpf_task_set_slice(s->task, 0);
}

/* Whether the vCPU that spins is to give way to a sibling; if so the sibling is next here. */
static __always_inline bool give_way(const struct spinner *s, struct task_struct *to, struct task_ctx *t, bool owes)
{
	struct entrain_yield_limits limits = {.turn = s->turn, .again = yield_again_ns, .ahead = yield_ahead_ns};
	struct cpu_ctx *home = cpu_ctx(t->cpu);
	struct entrain_yield_in in = {};
	enum entrain_yield_verdict verdict;

	if (!home)
		return false;
	in.sibling = s->task->tgid == to->tgid;
	in.waiting = t->waiting && t->queued;
	in.allowed = !to->migration_disabled && bpf_cpumask_test_cpu(s->cpu, to->cpus_ptr);
	in.level = t->level;
	in.owes = owes;
	in.boosted = t->boosted ? entrain_sub(s->now, t->boosted) : ~0ULL;
	in.vtime = t->pub.vtime;
	in.queue = queue_of(home->llc)->vtime;
	in.turn = s->c->waiting > 0 ? entrain_sub(s->now, s->c->turn) : 0;
	verdict = entrain_yield(&in, &limits);
	COUNT(t, yields[verdict & 7], 1);
	if (verdict != ENTRAIN_YIELD_HONOURED)
		return false;
	t->boosted = s->now;
	put_next(s->c, to,
		 entrain_critical_holds(t->level) ? (lend_ns ? CAME_FOR_SECTION : 0) : (owes ? CAME_FOR_INTERRUPT : 0),
		 s->now);
	COUNT(s->ctx, spins, 1);
	boosted(to);
	return true;
}

/* Called with the run-queue locks of both held, so neither moves meanwhile. */
static __always_inline bool yield_directed(struct task_struct *from, struct task_ctx *f, struct task_struct *to)
{
	struct task_ctx *t = task_ctx(to);
	struct spinner s;
	struct vm_ctx *vm;

	if (!t || !find_spinner(&s, from, f, scx_bpf_task_cpu(from)))
		return false;
	vm = vm_of(f);
	if (vm)
		vm->depends = s.now;
	if (!give_way(&s, to, t, owes_answer(t->kvm_vcpu)) && !turn_over(&s))
		return false;
	leave(&s);
	return true;
}

/* As if KVM's yield had been followed: the vCPU is not said to have been interrupted. */
static __always_inline void leave_now(const struct spinner *s)
{
	struct entrain_vcpu *vcpu = entrain_vcpu_of(s->task);

	if (vcpu)
		vcpu->gave_way = 1;
	leave(s);
	scx_bpf_kick_cpu(s->cpu, SCX_KICK_PREEMPT);
}

/*
 * The vCPU of the current thread spins: a sibling that owes an answer takes its CPU, for a moment. No lock is held:
 * what is seen of the siblings may be out of date, and take_task() looks again.
 */
static __always_inline void spins(struct task_struct *p, struct task_ctx *t)
{
	struct task_struct *to;
	struct spinner s;
	__u32 i;

	if (!find_spinner(&s, p, t, bpf_get_smp_processor_id()) ||
	    (s.c->next && !entrain_before(s.c->next_until, s.now)))
		return;
	if (turn_over(&s)) {
		leave_now(&s);
		return;
	}
	bpf_for (i, 0, SPIN_SCAN) {
		__u32 other = s.cpu + i, seen = 0;

		if (i >= nr_cpus)
			break;
		if (other >= nr_cpus)
			other -= nr_cpus;
		bpf_for_each (scx_dsq, to, DSQ_CPU(other), 0) {
			struct task_ctx *u = task_ctx(to);

			if (seen++ >= CORUN_SCAN)
				break;
			/* Whoever was preempted inside a section is KVM's to propose. */
			if (!u || to->tgid != p->tgid || entrain_critical_holds(u->level) || !owes_answer(u->kvm_vcpu))
				continue;
			if (give_way(&s, to, u, true)) {
				leave_now(&s);
				return;
			}
		}
	}
}

#endif /* ENTRAIN_SCHED_YIELD_H */
