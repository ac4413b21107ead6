/* SPDX-License-Identifier: GPL-2.0-only */
/* A task that is runnable: the CPU that it is given, and whom it takes that from. */
#ifndef ENTRAIN_SCHED_WAKE_BPF_H
#define ENTRAIN_SCHED_WAKE_BPF_H

#include "turn.bpf.h"
#include "kick.bpf.h"
#include "balance.bpf.h"
#include "idle.bpf.h"
#include "immed.h"
#include "perf_place.bpf.h"

/* ops.select_cpu. */
static __always_inline __s32 task__select_cpu(struct task_struct *p, __s32 prev_cpu, __u64 wake_flags)
{
	struct task_ctx *t = task__ctx(p);
	__u64 now = sched__now();
	bool idle = false;
	struct cpu_ctx *c;
	__s32 cpu;

	/* One whose group has no time left takes no idle CPU: ops.enqueue puts it aside. */
	if (t && limit__would_park(&t->limit, prev_cpu, now))
		return prev_cpu;
	cpu = use_capacity ? perf__select(p, prev_cpu, slice_max_ns, now) : -1;
	if (cpu < 0) {
		cpu = cpus__are_busy(prev_cpu) ? prev_cpu : scx_bpf_select_cpu_dfl(p, prev_cpu, wake_flags, &idle);
		if (!idle && (wake_flags & SCX_WAKE(FORK)))
			return task__fork_cpu(p, cpu);
		if (!idle)
			return t && use_follow ? task__kicker_cpu(p, t, cpu) : cpu;
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, slice_max_ns, enq__at_once());
	}
	/* It does not come by ops.enqueue; with the clock of long ago it would keep the CPU for as long as it slept. */
	c = cpu__ctx(cpu);
	if (t) {
		task__wants(p, t, now);
		task__renew_share(p, t, now);
		task__measure_by(t, c, cpu);
		if (t->fresh)
			t->pub.vtime = cpu__clock(c);
		else
			task__woke(t, c, credit_ns);
		t->fresh = 0;
		t->woke = 1;
	}
	return cpu;
}

/* The clock of a task that comes to a queue. Returns whether its guest calls the wake-up latency-critical. */
static __always_inline bool task__arrive(struct task_struct *p, struct task_ctx *t, struct cpu_ctx *c, __s32 cpu,
					 bool wakeup, __u64 now)
{
	__u64 clock = cpu__clock(c);
	bool urgent = false;

	task__measure_by(t, c, cpu);
	if (wakeup) {
		urgent = task__wakes_urgently(p, t, now);
		if (urgent)
			task__count(t, SCHED_URGENT, 1);
		task__woke(t, c, task__credit(t, urgent));
	} else if (t->fresh) {
		t->pub.vtime = clock;
	} else {
		task__waits_on(t, c);
	}
	t->fresh = 0;
	return urgent;
}

/* ops.enqueue. */
static __always_inline void task__enqueue(struct task_struct *p, __u64 enq_flags)
{
	struct task_ctx *t = task__ctx(p);
	__s32 cpu = scx_bpf_task_cpu(p), victim = -1;
	bool wakeup, urgent;
	bool bound = task__is_bound(p);
	struct cpu_ctx *c = cpu__ctx(cpu);
	__u64 now = sched__now_at(cpu), vtime, clock;
	struct wanting w;

	if (!t) {
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, slice_min_ns, enq_flags);
		return;
	}
	/* One that comes back is what it was when it was sent to a CPU, or queued. */
	wakeup = enq_flags & SCX_ENQ(WAKEUP) || (t->woke && task__came_back(p));
	task__wait_end(t);
	task__wants(p, t, now);
	t->woke = wakeup;
	task__renew_share(p, t, now);
	clock = cpu__clock(c);
	urgent = task__arrive(p, t, c, cpu, wakeup, now);
	if (limit__parks(p, &t->limit, cpu, t->pub.vtime - clock, now, enq_flags))
		return;
	if (perf__enqueue(p, t, cpu, slice_max_ns, enq_flags, now))
		return;
	/* It was to leave, and nobody has come meanwhile. */
	if (enq_flags & SCX_ENQ(LAST)) {
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, slice_max_ns, enq_flags);
		return;
	}
	/* What an interrupt woke is let in as if its timer were due. */
	if (wakeup && use_timer && t->pub.vcpu && !context__is_task())
		t->due = now;
	/* What a sleeper is owed is bounded by its credit. */
	vtime = wakeup ? t->pub.vtime : cpu__seen_vtime(c, t->pub.vtime, t->share);
	if (t->front == FRONT_NEXT) {
		vtime = clock - task__vtime(t, 2 * credit_ns);
		t->stay = lend_ns ? STAY_FOR_SECTION : STAY_FULL;
		task__count(t, SCHED_FRONTED, 1);
		task__boosted(p, t);
	}
	wanting__fill(&w, t, vtime, t->pub.vcpu, urgent);
	if (use_wake_preempt && wakeup) {
		victim = wanting__victim(&w, p, cpu, now);
		if (victim >= 0) {
			cpu = victim;
			c = cpu__ctx(cpu);
		}
	}
	task__wait_begin(t, c, cpu);
	scx_insert_vtime(p, DSQ_CPU(cpu), slice_max_ns, vtime, enq_flags);
	/* One that a higher class has interrupted goes on here as soon as it can: most of those are short. */
	if (!wakeup && c->withheld && c->resumes == p->scx.tid) {
		cpu__alarm(c, cpu, now + cpu__peace(c), now);
		return;
	}
	if (task__kick_idle(p, cpu, bound))
		return;
	if (victim >= 0)
		scx_bpf_kick_cpu(victim, SCX_KICK_PREEMPT);
	else
		wanting__waits(&w, cpu, wakeup, t->due, now);
}

#endif /* ENTRAIN_SCHED_WAKE_BPF_H */
