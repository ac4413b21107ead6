/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The queues: where a task waits, in which order, and which one a CPU takes next. Each CPU has one, ordered by the
 * tasks' clocks: a vCPU comes back to the CPU that holds its TLB, caches and timers. What keeps CPUs fair to each other
 * is that one fetches a task from another's queue when it idles, or when that task has fallen far behind.
 */
#ifndef ENTRAIN_SCHED_QUEUE_BPF_H
#define ENTRAIN_SCHED_QUEUE_BPF_H

#include "llc.bpf.h"
#include "class.bpf.h"
#include "guest.bpf.h"
#include "immed.h"

/* CPUs whose queues one dispatch looks at for a task that has fallen behind; the next dispatch goes on from there. */
#define FETCH_SCAN 2

/* Tasks at the end of a queue that are asked how long they have waited, and how often in the longest wait. */
#define AGED_SCAN  64
#define AGED_LOOKS 8

/* A directed yield that nobody has followed for so long is forgotten: the lock has moved on. */
#define YIELD_STALE_NS (2 * ENTRAIN_MSEC)

/* The slice that a queue as long as this one leaves. Everybody's is short while one waits that is to wait briefly. */
static __always_inline __u64 cpu__slice(const struct cpu_ctx *c)
{
	bool hurried = c->hurried > 0;
	struct entrain_slice_in in = {
		.period = hurried ? entrain_min(c->target, period_ns) : period_ns,
		.floor = cpu__costs(c, slice_costs, hurried ? slice_hurry_ns : slice_min_ns),
		.ceiling = slice_max_ns,
		.waiting = c->waiting > 0 ? c->waiting : 0,
	};

	return entrain_slice(&in);
}

/* How long the turn on a CPU lasts. */
static __always_inline __u64 cpu__turn_ns(const struct cpu_ctx *c)
{
	__u64 turn = entrain_sub(cpu__slice(c), c->less);

	return c->most ? entrain_min(turn, c->most) : turn;
}

/* A task that owes extensions begins a stay: what is taken off `slice` for them. */
static __always_inline __u64 task__repays(struct task_ctx *t, __u64 slice, __u64 floor)
{
	__u64 owed = t->extend.debt, repaid;

	if (!owed) {
		t->extend.used = 0;
		return 0;
	}
	/* `used` is what is left of this event's steps after what came back: only now it is known. */
	task__count(t, SCHED_EXTENDED_NS, t->extend.used);
	repaid = slice - entrain_extend_repay(&t->extend, slice, floor);
	if (repaid)
		task__count(t, SCHED_REPAID_NS, repaid);
	return repaid;
}

/* Somebody waits here whose timer is due then, 0 = never. */
static __always_inline void cpu__expects(struct cpu_ctx *c, __u64 due)
{
	if (due && (!c->due || entrain_before(due, c->due)))
		c->due = due;
}

/* A task waits in a CPU's queue from here on: with its run-queue lock held, but for let_go.bpf.h. */
static __always_inline void task__wait_begin(struct task_ctx *t, struct cpu_ctx *c, __u32 cpu)
{
	__u64 target;

	t->cpu = cpu;
	t->queued = QUEUED_BY_ITSELF;
	t->pub.queue = 1 + (c->llc & (SCHED_MAX_LLCS - 1));
	if (!(__s32)__sync_fetch_and_add(&c->arrivals, CPU_ARRIVAL))
		__sync_fetch_and_add(&llc__queue(c->llc)->waiting, 1);
	t->loads = t->share;
	__sync_fetch_and_add(&c->load, t->loads);
	cpu__expects(c, t->due);
	target = t->pub.vcpu ? task__class(t)->latency : SCHED_CLASS_DEFAULT;
	if (target == SCHED_CLASS_DEFAULT)
		return;
	t->hurries = 1;
	if (__sync_fetch_and_add(&c->hurried, 1) <= 0 || target < c->target)
		c->target = target;
}

/* Takes back what was counted of a task in a CPU's queue. */
static __always_inline void task__wait_uncount(struct task_ctx *t, __u32 cpu)
{
	struct cpu_ctx *c = cpu__ctx(cpu);

	if (__sync_fetch_and_add(&c->waiting, -1) == 1)
		__sync_fetch_and_add(&llc__queue(c->llc)->waiting, -1);
	__sync_fetch_and_add(&c->load, -(__u64)t->loads);
	if (t->hurries)
		__sync_fetch_and_add(&c->hurried, -1);
	t->hurries = 0;
}

static __always_inline void task__wait_end(struct task_ctx *t)
{
	/* A timer counts without the lock (let_go.bpf.h): only one of the two may take it back. */
	if (t->queued && __sync_lock_test_and_set(&t->queued, QUEUED_NOT))
		task__wait_uncount(t, t->cpu);
}

/* Moves a certain waiting task to this CPU, if it still waits and may run here. Only from ops.dispatch. */
static __always_inline bool task__take(struct task_struct *p, struct task_ctx *t, __s32 cpu)
{
	struct bpf_iter_scx_dsq it;
	bool moved = false;

	if (!t->queued)
		return false;
	/*
	 * The iterator comes first: whoever changes the affinity afterwards must take the task off the queue and put it
	 * back, and the kernel moves only what was queued before the iterator began.
	 */
	if (!bpf_iter_scx_dsq_new(&it, DSQ_CPU(t->cpu), 0) && !p->migration_disabled &&
	    bpf_cpumask_test_cpu(cpu, p->cpus_ptr))
		moved = scx_bpf_dsq_move(&it, p, SCX_DSQ_LOCAL, 0);
	bpf_iter_scx_dsq_destroy(&it);
	return moved;
}

/* Whether somebody is to go next here, whoever is first in the queue. */
static __always_inline bool cpu__has_next(const struct cpu_ctx *c, __u64 now)
{
	return c->next && !entrain_before(c->next_until, now);
}

/* This CPU takes the task of that scx tid next. */
static __always_inline void cpu__put_next(struct cpu_ctx *c, __u64 tid, enum short_stay stay, __u64 now)
{
	c->next = tid;
	c->next_stay = stay;
	c->next_until = now + YIELD_STALE_NS;
}

/* The task that was put to the front. Returns whether it was put on this CPU. */
static __always_inline bool cpu__take_next(struct cpu_ctx *c, __s32 cpu, __u64 now)
{
	struct task_struct *p;
	struct task_ctx *t;
	__u64 tid = c->next;

	if (!tid)
		return false;
	c->next = 0;
	if (entrain_before(c->next_until, now))
		return false;
	p = scx_bpf_tid_to_task(tid);
	t = p ? task__ctx(p) : NULL;
	if (!t)
		return false;
	if (task__take(p, t, cpu)) {
		t->stay = c->next_stay;
		t->heir = t->stay != STAY_FOR_TIMER;
		return true;
	}
	if (c->next_stay != STAY_FOR_TIMER)
		task__count(t, SCHED_YIELDS_LOST, 1);
	return false;
}

/* That one goes on with the turn here when whoever comes between is done. */
static __always_inline void cpu__will_resume(struct cpu_ctx *c, __u64 tid, enum short_stay stay)
{
	c->resumes = tid;
	c->resumes_stay = stay == STAY_FOR_SECTION ? stay : STAY_FULL;
}

/*
 * The one that was interrupted amid a turn goes on with it, if the turn is not over: one that made way for another
 * one's timer, or for a task of a higher class. Returns whether it was put on this CPU.
 */
static __always_inline bool cpu__resume(struct cpu_ctx *c, __s32 cpu, __u64 now)
{
	struct task_struct *p;
	struct task_ctx *t;
	__u64 tid = c->resumes;

	if (!tid)
		return false;
	c->resumes = 0;
	if (entrain_sub(now, c->turn) >= cpu__turn_ns(c))
		return false;
	p = scx_bpf_tid_to_task(tid);
	t = p ? task__ctx(p) : NULL;
	if (!t || !task__take(p, t, cpu))
		return false;
	t->heir = 1;
	t->stay = c->resumes_stay;
	return true;
}

/* The first who waits in a CPU's queue, if anybody does. */
static __always_inline struct task_struct *cpu__first_task(const struct cpu_ctx *c, __u32 cpu)
{
	return c->waiting > 0 ? scx_bpf_dsq_peek(DSQ_CPU(cpu)) : NULL;
}

/*
 * One that has waited too long, since weights or tasks have come that its clock did not reckon with, goes next; of
 * several the one that has waited longest. Only from ops.dispatch. Returns whether it was put on this CPU.
 */
static __always_inline bool cpu__take_aged(struct cpu_ctx *c, __s32 cpu, __u64 now)
{
	__u64 since = now - wait_max_ns, longest = 0;
	struct task_struct *p;
	struct task_ctx *t;
	__u32 seen = 0;

	if (c->waiting <= 0 || now < c->aged)
		return false;
	c->aged = now + wait_max_ns / AGED_LOOKS;
	/* From the end, where those are that are far ahead. */
	bpf_for_each (scx_dsq, p, DSQ_CPU(cpu), SCX_DSQ_ITER_REV) {
		if (seen++ >= AGED_SCAN)
			break;
		t = task__ctx(p);
		if (t && t->waiting && entrain_before(t->waiting, since)) {
			since = t->waiting;
			longest = p->scx.tid;
		}
	}
	p = longest ? scx_bpf_tid_to_task(longest) : NULL;
	t = p ? task__ctx(p) : NULL;
	if (!t || !task__take(p, t, cpu))
		return false;
	t->forgiven = 1;
	/* Where one has waited too long, others have, too; about every third turn is theirs. */
	c->aged = now + 2 * cpu__slice(c);
	return true;
}

/* The clock of the first who waits in a CPU's queue. Returns whether anybody does. */
static __always_inline bool cpu__first_vtime(const struct cpu_ctx *c, __u32 cpu, __u64 *vtime)
{
	struct task_struct *p = cpu__first_task(c, cpu);

	if (!p)
		return false;
	*vtime = p->scx.dsq_vtime;
	return true;
}

/* Whether somebody waits for another CPU of the LLC. */
static __always_inline bool cpu__others_wait(const struct cpu_ctx *c)
{
	return llc__queue(c->llc)->waiting > (c->waiting > 0);
}

/* Whether a CPU has so many more to run than one where nobody waits that one of them should go there. */
static __always_inline bool cpu__is_crowded(const struct cpu_ctx *c)
{
	return c->waiting > 1;
}

/*
 * Another CPU of the LLC whose first task has fallen behind all that this CPU could run: `ours` is the clock of the
 * best of them; or, where nobody waits here (`lone`), one that is crowded. -1: none. Looks at `scan` queues, in turn.
 */
static __always_inline __s32 cpu__behind(struct cpu_ctx *c, __s32 cpu, __u64 ours, bool lone, __u32 scan)
{
	__u32 i;

	bpf_for (i, 0, scan) {
		struct task_struct *p;
		struct task_ctx *t;
		struct cpu_ctx *o;
		__s32 other;
		bool gives;

		other = llc__cpu(c, ++c->probe);
		if (other < 0) {
			c->probe = 0;
			continue;
		}
		o = cpu__ctx(other);
		if (o->waiting <= 0 || o->llc != c->llc)
			continue;
		gives = lone && cpu__is_crowded(o);
		/* Nobody there is behind by more than a sleeper's credit where the clock of all of them is not. */
		if (!gives && !entrain_before(o->clock, ours))
			continue;
		p = cpu__first_task(o, other);
		/* One that may not come here is not for this CPU to make way for. */
		if (!p || p->migration_disabled || !bpf_cpumask_test_cpu(cpu, p->cpus_ptr))
			continue;
		if (gives)
			return other;
		if (!entrain_before(p->scx.dsq_vtime, ours))
			continue;
		t = task__ctx(p);
		if (t && entrain_fetch(p->scx.dsq_vtime, ours, task__vtime(t, migrate_ns)))
			return other;
	}
	return -1;
}

#endif /* ENTRAIN_SCHED_QUEUE_BPF_H */
