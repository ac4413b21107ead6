/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Balance between last-level caches. Every so often the tick of one CPU, whichever comes first, adds up the loads and
 * says how much each LLC is to take from which other. Their CPUs take it, task by task, when they choose whom to run
 * next: a task is moved by the CPU that runs it, and only if it may run there. An idle host has no tick and no
 * balancer. With one LLC the look tells what a CPU has in the mean, and nothing else comes of it.
 */
#ifndef ENTRAIN_SCHED_BALANCE_BPF_H
#define ENTRAIN_SCHED_BALANCE_BPF_H

#include "queue.bpf.h"

/* Between two looks. fair.c looks at domains of caches every 8 to 128 ms, by their size. */
#define BALANCE_NS (64 * ENTRAIN_MSEC)

/* When loads are looked at next, and what a CPU that is not full would have if all of those had the same. */
__u64 balance_at;
__u64 balance_mean;

/*
 * Whether a CPU counts. An idle one does not: it would have fetched any task that may run on it. Nor does one whose
 * only task is bound to it: the CPU is that task's, and counting it would leave more to the others of its LLC.
 */
static __always_inline bool cpu__shares(const struct cpu_ctx *c)
{
	return c->waiting > 0 || (c->started && !c->bound);
}

/*
 * Whether whoever runs has the CPU for himself, whatever else is there: he is due more than a CPU has in the mean, and
 * cannot have more than one. What he is due above that is load that no balance can even out, and would keep others away
 * from the rest of his LLC.
 */
static __always_inline bool cpu__is_full(const struct cpu_ctx *c)
{
	return c->started && balance_mean && c->share >= balance_mean;
}

/* The load of a CPU that balance can even out. */
static __always_inline __u64 cpu__spare_load(const struct cpu_ctx *c)
{
	return cpu__is_full(c) ? c->load : cpu__load(c);
}

/*
 * Adds up an LLC's loads. Whatever here has a loop is a function of its own for the verifier, which else walks it anew
 * on each path that leads to it.
 */
__noinline int llc__weigh(__u32 llc, __u64 now)
{
	struct queue_ctx *q = llc__queue(llc);
	__u64 avg = 0, load = 0, all = 0;
	__u32 i, cpus = 0, full = 0;

	bpf_for (i, 0, SCHED_MAX_CPUS) {
		__s32 cpu = llc__cpu_at(llc, i);
		struct cpu_ctx *c;
		__u64 spare;

		if (cpu < 0)
			break;
		c = cpu__ctx(cpu);
		all += cpu__load(c);
		if (!cpu__shares(c))
			continue;
		cpus++;
		full += cpu__is_full(c);
		spare = cpu__spare_load(c);
		load += spare;
		avg += entrain_load_avg(c->load_avg, spare, entrain_sub(now, c->load_at));
	}
	q->all = all;
	q->load = load + full * balance_mean;
	q->group.cpus = cpus - full;
	q->group.low = entrain_min(avg, load);
	q->group.high = entrain_max(avg, load);
	return 0;
}

/* Says what an LLC is to take from the one that has most to give. */
__noinline int llc__owe(__u32 llc, __u64 mean)
{
	struct queue_ctx *q = llc__queue(llc);
	__u64 deficit = entrain_deficit(&q->group, mean), best = 0, much;
	struct queue_ctx *giver = NULL;
	__u32 l, from = 0;

	q->owed = 0;
	if (!deficit)
		return 0;
	bpf_for (l, 0, SCHED_MAX_LLCS) {
		struct queue_ctx *other = llc__queue(l);

		if (!other->nr || !entrain_imbalanced(&other->group, &q->group))
			continue;
		much = entrain_surplus(&other->group, mean);
		if (much > best) {
			best = much;
			giver = other;
			from = l;
		}
	}
	if (!giver)
		return 0;
	much = entrain_min(deficit, best);
	giver->group.low -= much;
	q->giver = from;
	q->owed = much;
	return 0;
}

__noinline int balance__look(__u64 now)
{
	__u64 total = 0, cpus = 0, all = 0, nr = 0;
	__u32 l;

	bpf_for (l, 0, SCHED_MAX_LLCS) {
		struct queue_ctx *q = llc__queue(l);

		if (!q->nr)
			continue;
		llc__weigh(l, now);
		all += q->all;
		nr += q->nr;
		total += (q->group.low + q->group.high) / 2;
		cpus += q->group.cpus;
	}
	if (all)
		WRITE_ONCE(load_mean, all / nr);
	/* Where all CPUs seem full, tasks have changed since the mean was taken: the next look counts all of them. */
	balance_mean = cpus ? total / cpus : 0;
	bpf_for (l, 0, SCHED_MAX_LLCS) {
		if (llc__queue(l)->nr)
			llc__owe(l, balance_mean);
	}
	return 0;
}

/* From ops.tick. */
static __always_inline void balance__tick(struct cpu_ctx *c, __u64 now)
{
	__u64 due = READ_ONCE(balance_at);

	c->load_avg = entrain_load_avg(c->load_avg, cpu__spare_load(c), entrain_sub(now, c->load_at));
	c->load_at = now;
	/* One of those that see that it is time does it. */
	if (!entrain_before(now, due) && __sync_val_compare_and_swap(&balance_at, due, now + BALANCE_NS) == due)
		balance__look(now);
}

/* The CPU of an LLC that has most, if that is more than all have in the mean. -1: none has. */
__noinline __s32 llc__fullest(__u32 llc)
{
	__u64 most = balance_mean;
	__s32 found = -1;
	__u32 i;

	bpf_for (i, 0, SCHED_MAX_CPUS) {
		__s32 cpu = llc__cpu_at(llc, i);
		struct cpu_ctx *c;

		if (cpu < 0)
			break;
		c = cpu__ctx(cpu);
		if (c->waiting > 0 && cpu__load(c) > most) {
			most = cpu__load(c);
			found = cpu;
		}
	}
	return found;
}

/* Takes one task of what the LLC is to take. */
__noinline int llc__take(__u32 llc)
{
	struct queue_ctx *q = llc__queue(llc);
	struct task_struct *p;
	struct task_ctx *t;
	__u64 share;
	__s32 from;

	from = llc__fullest(q->giver);
	p = from >= 0 ? scx_bpf_dsq_peek(DSQ_CPU(from)) : NULL;
	t = p ? task__ctx(p) : NULL;
	share = t ? t->loads : 0;
	if (t && entrain_worth_moving(share, q->owed) && queue__take_first(DSQ_CPU(from))) {
		__sync_fetch_and_add(&q->owed, -(__s64)share);
		return 1;
	}
	q->owed = 0;
	return 0;
}

/*
 * From ops.dispatch: takes one task of what the LLC is to take, unless this CPU has its part already. Where nothing can
 * be taken (the tasks there may not run here) nobody tries again before the next look.
 */
static __always_inline bool cpu__balance(const struct cpu_ctx *c)
{
	return llc__queue(c->llc)->owed > 0 && cpu__load(c) < balance_mean && llc__take(c->llc);
}

/* The LLC with the least load for each of its CPUs, of those where the task may run, as far as their first CPUs tell.
 */
__noinline __u32 llc__least(struct task_struct *p __arg_trusted, __u32 home)
{
	__u64 load = llc__queue(home)->load, cpus = entrain_max(llc__queue(home)->nr, 1);
	__u32 l, least = home;

	if (nr_llcs < 2)
		return home;
	bpf_for (l, 0, SCHED_MAX_LLCS) {
		struct queue_ctx *q = llc__queue(l);

		if (q->nr && q->load * cpus < load * q->nr && bpf_cpumask_test_cpu(llc__cpu_at(l, 0), p->cpus_ptr)) {
			load = q->load;
			cpus = q->nr;
			least = l;
		}
	}
	return least;
}

/*
 * The CPU of a new task where none is idle: the one with the least to do, in the LLC with the least to do. A child that
 * stayed beside its parent would leave it to the balancer.
 */
__noinline __s32 task__fork_cpu(struct task_struct *p __arg_trusted, __s32 prev)
{
	struct cpu_ctx *h = cpu__ctx(prev);
	__u64 least = ~0ULL;
	__s32 found = prev;
	__u32 i, llc;

	if (!h || task__is_bound(p))
		return prev;
	llc = llc__least(p, h->llc);
	bpf_for (i, 0, SCHED_MAX_CPUS) {
		__s32 cpu = llc__cpu_at(llc, i);
		struct cpu_ctx *c;

		if (cpu < 0)
			break;
		c = cpu__ctx(cpu);
		if (c->offline || cpu__load(c) >= least || !bpf_cpumask_test_cpu(cpu, p->cpus_ptr))
			continue;
		least = cpu__load(c);
		found = cpu;
	}
	__sync_fetch_and_add(&llc__queue(llc)->load, ENTRAIN_WEIGHT_DEFAULT << ENTRAIN_SHARE_SHIFT);
	return found;
}

#endif /* ENTRAIN_SCHED_BALANCE_BPF_H */
