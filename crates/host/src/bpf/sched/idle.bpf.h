/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * CPUs that idle: how one looks for a task before it idles, how a task that waits finds one that idles, and how neither
 * misses the other where both look at the same time.
 */
#ifndef ENTRAIN_SCHED_IDLE_BPF_H
#define ENTRAIN_SCHED_IDLE_BPF_H

#include "queue.bpf.h"

/* So often an idle CPU looks again for a task that is on its way to a queue: a look takes as long as queueing does. */
#define LOOK_AGAIN 8

/* So many CPUs are tried for a task that waits, of those that are marked idle and may be idle no more. */
#define CLAIM_TRIES 4

/*
 * Whether no CPU idles, and this one runs somebody: nobody need look for one. A CPU says that it idles and then looks
 * whether somebody waits; whoever waits is counted and then asks this: one of the two sees the other. While the kernel
 * runs tasks without its scheduler (suspend) CPUs come to idle without a word: so a task is never left to one that runs
 * nobody of ours. A function of its own for the verifier, which else walks it anew on each path.
 */
__noinline int cpus__are_busy(__s32 cpu)
{
	const struct cpu_ctx *c = cpu__ctx(cpu);
	__u32 l;

	if (!c->started || READ_ONCE(llc__queue(c->llc)->idle) > 0)
		return 0;
	if (nr_llcs <= 1)
		return 1;
	bpf_for (l, 0, llcs_end) {
		if (READ_ONCE(llc__queue(l)->idle) > 0)
			return 0;
	}
	return 1;
}

/*
 * What tells whether a task has come to a queue of an LLC since a look: the sum over its queues of those that ever
 * came, and which LLC it is. A number of those that wait would not tell: one may have gone as another one came.
 */
static __always_inline __u64 llc__came(__u32 llc, __u64 sum)
{
	return sum + ((__u64)(llc + 1) << 48);
}

/*
 * Takes a task out of the queue of another CPU, and adds to `came` those that ever came there. What is in the queue and
 * cannot be taken may not run here, or somebody else has taken it. One that is counted and on its way comes when its
 * ops.enqueue returns, and may run here.
 */
static __always_inline bool cpu__fetch_from(struct cpu_ctx *c, __s32 other, __u64 *came)
{
	__u64 arrivals = READ_ONCE(cpu__ctx(other)->arrivals);
	__s32 waiting = arrivals;

	*came += arrivals >> 32;
	if (waiting <= 0)
		return false;
	if (waiting > scx_bpf_dsq_nr_queued(DSQ_CPU(other)))
		c->coming = 1;
	return queue__take_first(DSQ_CPU(other));
}

/* A task that waits for another CPU of this LLC. */
static __always_inline bool cpu__fetch_near(struct cpu_ctx *c)
{
	__u64 came;
	__u32 i;

	c->seen = 0;
	c->coming = 0;
	if (llc__queue(c->llc)->waiting <= 0)
		return false;
	came = c->joined;
	bpf_for (i, 1, SCHED_MAX_CPUS) {
		__s32 other = llc__cpu(c, i);

		if (other < 0)
			break;
		if (cpu__fetch_from(c, other, &came))
			return true;
	}
	c->seen = llc__came(c->llc, came);
	return false;
}

/* One that waits for a CPU of that LLC. Its own loop for the verifier: as below. */
__noinline int llc__fetch(__u32 llc, __s32 cpu)
{
	struct cpu_ctx *c = cpu__ctx(cpu);
	__u64 came = 0;
	__u32 i;

	bpf_for (i, 0, SCHED_MAX_CPUS) {
		__s32 other = llc__cpu_at(llc, i);

		if (other < 0)
			break;
		if (cpu__fetch_from(c, other, &came))
			return 1;
	}
	c->seen += llc__came(llc, came);
	return 0;
}

/*
 * Nothing to run here: a task of another CPU of the LLC, then of another LLC, so that no CPU idles while a task waits.
 * Of the other LLCs only those are searched in which somebody waits. A function of its own for the verifier, which
 * else walks its loops anew on each path that leads here.
 */
__noinline int cpu__fetch_any(__s32 cpu)
{
	struct cpu_ctx *c = cpu__ctx(cpu);
	__u32 l;

	if (cpu__fetch_near(c))
		return 1;
	if (nr_llcs <= 1)
		return 0;
	bpf_for (l, 1, SCHED_MAX_LLCS) {
		__u32 llc = (c->llc + l) & (SCHED_MAX_LLCS - 1);

		if (llc__queue(llc)->waiting > 0 && llc__fetch(llc, cpu))
			return 1;
	}
	return 0;
}

/* What has come to the queues of an LLC. Its own loop, as above. */
__noinline __u64 llc__look(__u32 llc)
{
	__u64 came = 0;
	__u32 i;

	bpf_for (i, 0, SCHED_MAX_CPUS) {
		__s32 other = llc__cpu_at(llc, i);

		if (other < 0)
			break;
		came += READ_ONCE(cpu__ctx(other)->joined);
	}
	return llc__came(llc, came);
}

/*
 * Whether a task waits that this CPU has not seen: one that has come since it looked, or was on its way then. What it
 * saw and did not get may not run here, and is not looked for again.
 */
__noinline int cpu__sees_more(__s32 cpu)
{
	struct cpu_ctx *c = cpu__ctx(cpu);
	__u64 came = 0;
	__u32 l;

	if (READ_ONCE(llc__queue(c->llc)->waiting) > 0)
		came = llc__look(c->llc);
	if (nr_llcs > 1) {
		bpf_for (l, 0, llcs_end) {
			if (l != c->llc && READ_ONCE(llc__queue(l)->waiting) > 0)
				came += llc__look(l);
		}
	}
	return came && (c->coming || came != c->seen);
}

/*
 * An idle CPU, whose idle bit the caller has taken, is to look for a task that waits. Returns false where it has left
 * its idling for another one meanwhile: whatever it runs then, it may have begun without looking at what is said here.
 */
static __always_inline bool cpu__claim(__s32 cpu, const struct task_struct *p)
{
	struct cpu_ctx *c = cpu__ctx(cpu);
	bool idles;

	/* The barrier between the two; its counterpart is in cpu__leaves_idle(). */
	__sync_lock_test_and_set(&c->claimed, p->scx.tid);
	idles = READ_ONCE(c->idles);
	/* In either case: one that only begins to idle must look and be marked again, or nobody finds it idle. */
	scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
	return idles;
}

/*
 * An idle CPU for a task that waits: of one that did not come through ops.select_cpu (bound to one CPU, or put back),
 * or one that went idle since that looked. Its counterpart is cpu__idle(). Returns whether one was kicked.
 */
static __always_inline bool task__kick_idle(struct task_struct *p, __s32 cpu, bool bound)
{
	__s32 idle;
	__u32 i;

	if (cpus__are_busy(cpu))
		return false;
	bpf_for (i, 0, CLAIM_TRIES) {
		if (bound)
			idle = scx_bpf_test_and_clear_cpu_idle(cpu) ? cpu : -1;
		else
			idle = scx_bpf_pick_idle_cpu(p->cpus_ptr, 0);
		if (idle < 0)
			return false;
		if (cpu__claim(idle, p))
			return true;
	}
	return false;
}

/*
 * From ops.running, of a CPU that was claimed for a task that waits, and runs another one. Either it has looked at no
 * queue, since that one came to its own queue meanwhile, sent there before the CPU was busy with yet another one. Or it
 * has looked and found that one, whose own claim is left to the task that waits: but where that may run on other CPUs,
 * the CPU claimed for the one may be none for the other. The claim goes on to another CPU.
 */
static __always_inline void cpu__pass_claim(struct cpu_ctx *c, struct task_struct *runs)
{
	bool looked = !c->claimed;
	struct task_struct *p = scx_bpf_tid_to_task(looked ? c->served : c->claimed);
	struct task_ctx *t = p ? task__ctx(p) : NULL;

	c->claimed = 0;
	c->served = 0;
	if (t && t->queued && !(looked && bpf_cpumask_subset(p->cpus_ptr, runs->cpus_ptr)))
		task__kick_idle(p, t->cpu, task__is_bound(p));
}

/*
 * ops.update_idle, of a CPU that has been marked idle. Who is queued counts itself and then looks for an idle CPU; a
 * CPU is marked and then looks at the counts: one of the two sees the other.
 */
static __always_inline void cpu__idle(__s32 cpu)
{
	struct cpu_ctx *c = cpu__ctx(cpu);
	__u32 llc = c->llc;

	c->claimed = 0;
	/* One that came to idle without a word has left it with none: it is counted still. */
	if (!c->offline && !__sync_lock_test_and_set(&c->idles, 1 + llc))
		__sync_fetch_and_add(&llc__queue(llc)->idle, 1);
	if (cpu__sees_more(cpu))
		scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
}

/* ops.update_idle, of a CPU that runs somebody next. From here on a claim is seen by ops.running, or not made. */
static __always_inline void cpu__leaves_idle(__s32 cpu)
{
	__u64 counted = __sync_lock_test_and_set(&cpu__ctx(cpu)->idles, 0);

	if (counted)
		__sync_fetch_and_add(&llc__queue(counted - 1)->idle, -1);
}

/*
 * From ops.dispatch, where nothing was found. A CPU that was idle, was claimed for a task and lost that to another one
 * is marked idle again without ops.update_idle; it looks once more after it has been marked. So it does, some times,
 * for a task that is counted and on its way to its queue: whoever queues it has looked for idle CPUs before this one
 * was one.
 */
static __always_inline void cpu__found_nothing(struct cpu_ctx *c, __s32 cpu)
{
	bool coming = c->again < LOOK_AGAIN && cpu__sees_more(cpu);

	c->again = coming ? c->again + 1 : 0;
	if (!c->served && !coming)
		return;
	c->served = 0;
	scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
}

#endif /* ENTRAIN_SCHED_IDLE_BPF_H */
