/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * cpu.max: limits of cgroups, for the schedulers of host and guest alike. The arithmetic stands in bandwidth.h.
 *
 * A limited group has a pool of time; a CPU that runs one of its tasks takes slices of it, for the group and for each
 * limited ancestor. A task that finds a pool empty waits in a queue of that group's own. A timer of the group fills the
 * pool with each period, and lets go as many as it is likely to suffice for. Those who have waited long are let go in
 * any case: they find no time and come back at once, but the kernel's watchdog counts from when a task last had a CPU
 * (p->scx.runnable_at), and no limit, however small, may end the scheduler.
 *
 * Machines without limits pay for one look at a word that nobody writes (limited.groups).
 *
 * The scheduler that includes this defines LIMIT_SLOTS (how many groups may have limits at once), LIMIT_CPUS (how many
 * CPUs there are) and limit__member() and limit__release(), see below. LIMIT_PREPARED: limits are set where one may not
 * sleep (sched_ext before 7.3), so that limit__start_anew() makes all queues beforehand.
 */
#ifndef ENTRAIN_CGROUP_LIMIT_BPF_H
#define ENTRAIN_CGROUP_LIMIT_BPF_H

#include "cgroup_share.bpf.h"
#include "sched_clock.bpf.h"
#include "bandwidth.h"

/*
 * Limits are looked for from the root downwards: of limits below the 32nd level, or below eight others, only the
 * outer ones hold. Whoever nests groups deeper limits nobody but himself there, and escapes nothing.
 */
#define LIMIT_LEVELS 32
#define LIMIT_CHAIN  8

/* Tasks that one run of the timer lets go; the next run follows at once. */
#define LIMIT_BATCH 128

/* A task is let go for a moment after so long: a quarter of the watchdogs' 10 s. */
#define LIMIT_TOUCH_NS (2500 * ENTRAIN_MSEC)

/* Between two runs of the timer at least, and while a queue that is given up empties itself. */
#define LIMIT_SOON_NS  (100 * ENTRAIN_USEC)
#define LIMIT_DRAIN_NS (10 * ENTRAIN_MSEC)
#define LIMIT_DRAINS   10

#define LIMIT_CLOCK_MONOTONIC 1
#define LIMIT_PF_EXITING      0x00000004
#define LIMIT_PF_KTHREAD      0x00200000
#define LIMIT_GROUP_EXIT      0x00000004 /* SIGNAL_GROUP_EXIT */
#define LIMIT_RUNTIME_INF     (~0ULL)
#define LIMIT_ENOMEM	      12
#define LIMIT_EEXIST	      17
#define LIMIT_ENOSPC	      28

/* Queues of tasks that wait for their group's next period. */
#define DSQ_LIMIT(slot) (0x20000ULL + (slot))

enum limit_state {
	LIMIT_FREE = 0,
	LIMIT_CLAIMED, /* being set up */
	LIMIT_HOLDS,
	LIMIT_ENDS, /* whoever waits is let go, then it is free */
};

/* One limited group. Number 0 is none. */
struct limit {
	struct bpf_spin_lock lock; /* guards `bw`, `state` and what the timer goes by */
	__u32 state;
	struct entrain_bw bw;
	__u64 turn;   /* how long its tasks run at a time, mean, ns */
	__u64 came;   /* tasks that came to its queue since ever ... */
	__u64 seen;   /* ... and that when the timer ran last */
	__u32 waits;  /* its queue held somebody when the timer ran last, or somebody has come since */
	__u32 armed;  /* the timer is under way */
	__u32 hurry;  /* ... and will be, soon */
	__u32 drains; /* runs of the timer until it is free */
	__u32 parent; /* number of the next limited ancestor, 0 = none */
	__u32 dsq;    /* its queue has been made */
	struct bpf_timer timer;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, LIMIT_SLOTS);
	__type(key, __u32);
	__type(value, struct limit);
} limits SEC(".maps");

/* What each CPU has taken of each group's time and not used, ns. Changes under the CPU's run-queue lock alone. */
struct limit_cpu {
	__s64 left;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, LIMIT_SLOTS);
	__type(key, __u32);
	__type(value, struct limit_cpu);
} limit_cpus SEC(".maps");

/* Read at each event, written only when limits come and go. */
struct {
	__u32 groups; /* how many have one */
	__u32 epoch;  /* raised by each change of who has one */
} limited __attribute__((aligned(64)));

/* What a task keeps of its limits; all zero at first. */
struct limit_member {
	__u32 slot;    /* the innermost limited group that it is in, 0 = none ... */
	__u32 epoch;   /* ... as of this epoch; 0 = not known */
	__u64 came;    /* to the queue in which it waits for time, or last waited; ns */
	__u64 began;   /* its turn, ns; 0 = it has none */
	__u64 exec;    /* its CPU time when it was charged last, ns */
	__u32 granted; /* it had time when its turn began */
	__u32 pad;
};

/* By the scheduler: what it keeps of a task. Called from a timer, too. */
static struct limit_member *limit__member(struct task_struct *p);

/*
 * By the scheduler: moves a task out of the queue that `it` goes through to where it would wait had it not been
 * limited, and sees to it that a CPU looks there. Called from a timer, without the run-queue lock. Returns whether the
 * task was still there.
 */
static bool limit__release(struct bpf_iter_scx_dsq *it, struct task_struct *p);

static __always_inline struct limit *limit__of(__u32 slot)
{
	return slot ? bpf_map_lookup_elem(&limits, &slot) : NULL;
}

static __always_inline struct limit_cpu *limit__cpu(__u32 slot, __u32 cpu)
{
	return bpf_map_lookup_percpu_elem(&limit_cpus, &slot, cpu);
}

/* The innermost limited group of a cgroup, which may be itself; the chain of those above it is renewed on the way. */
static __u32 cgroup__limit(struct cgroup *cgrp, __u32 epoch)
{
	struct cgroup_ctx *leaf = bpf_cgrp_storage_get(&sched_cgroups, cgrp, 0, 0);
	int i, top = cgrp->level < LIMIT_LEVELS ? cgrp->level : LIMIT_LEVELS;
	__u32 last = 0, chain = 0;

	if (!leaf)
		return 0;
	if (leaf->limit_epoch == epoch)
		return leaf->nearest;
	bpf_for (i, 1, LIMIT_LEVELS + 1) {
		struct cgroup_ctx *ctx;
		struct cgroup *at;
		struct limit *l;
		__u32 slot;

		if (i > top || chain >= LIMIT_CHAIN)
			break;
		at = bpf_cgroup_ancestor(cgrp, i);
		if (!at)
			break;
		ctx = bpf_cgrp_storage_get(&sched_cgroups, at, 0, 0);
		slot = ctx ? READ_ONCE(ctx->limit) : 0;
		bpf_cgroup_release(at);
		l = limit__of(slot);
		if (!l)
			continue;
		l->parent = last;
		last = slot;
		chain++;
	}
	leaf->nearest = last;
	leaf->limit_epoch = epoch;
	return last;
}

/* Whether what the task keeps of its limits is of today. */
static __always_inline bool limit__is_known(const struct limit_member *m)
{
	return m->epoch == READ_ONCE(limited.epoch);
}

/* Looks up which group's limit a task is under. Only from operations on this task. */
static __always_inline void limit__follow(struct task_struct *p, struct limit_member *m)
{
	__u32 epoch = READ_ONCE(limited.epoch);
	struct cgroup *cgrp;

	if (m->epoch == epoch)
		return;
	cgrp = scx_bpf_task_cgroup(p);
	m->slot = cgrp->level > 0 ? cgroup__limit(cgrp, epoch) : 0;
	m->epoch = epoch;
	bpf_cgroup_release(cgrp);
}

/*
 * Whoever the kernel is waiting for is not held up: its own threads, and those that end or were killed, which give back
 * what they hold.
 */
static __always_inline bool limit__excuses(const struct task_struct *task)
{
	return (task->flags & (LIMIT_PF_KTHREAD | LIMIT_PF_EXITING)) ||
	       (BPF_CORE_READ(task, signal, flags) & LIMIT_GROUP_EXIT);
}

/* The timer is to run after so long, if nothing is under way yet. Returns whether it will. */
static __always_inline bool limit__arm(struct limit *l, __u64 after)
{
	if (__sync_lock_test_and_set(&l->armed, 1))
		return true;
	if (!bpf_timer_start(&l->timer, entrain_max(after, LIMIT_SOON_NS), 0))
		return true;
	l->armed = 0;
	return false;
}

/*
 * The first group, from `slot` outwards, that has no time for a task that is no better than those who wait already; 0:
 * all have. `cpu`: what that CPU has taken counts; `ran` of it is used already. -1: what is in the pools alone.
 */
__noinline __u32 limit__spent(__u32 slot, __s32 cpu, __u64 ran, __u64 now)
{
	__u32 i;

	bpf_for (i, 0, LIMIT_CHAIN) {
		struct limit *l = limit__of(slot);
		struct limit_cpu *lc;
		__s64 left = 0, pool;
		bool waits;

		if (!l)
			break;
		lc = cpu >= 0 ? limit__cpu(slot, cpu) : NULL;
		if (lc)
			left = lc->left - (__s64)ran;
		if (left <= 0 && READ_ONCE(l->state) == LIMIT_HOLDS) {
			bpf_spin_lock(&l->lock);
			entrain_bw_refill(&l->bw, now);
			pool = l->bw.pool;
			waits = l->waits && cpu >= 0;
			bpf_spin_unlock(&l->lock);
			if (waits || pool + left <= 0)
				return slot;
		}
		slot = l->parent;
	}
	return 0;
}

/*
 * In ops.enqueue: where the task has no time left, it is put to the queue of the group that has none. Returns whether
 * it was. `ahead`: of the clock of its CPU, virtual time.
 */
static __always_inline bool limit__parks(struct task_struct *p, struct limit_member *m, __s32 cpu, __s64 ahead,
					 __u64 now, __u64 enq_flags)
{
	struct limit *l;
	__u64 after;
	__u32 slot;
	bool holds;

	if (!READ_ONCE(limited.groups))
		return false;
	limit__follow(p, m);
	if (!m->slot || limit__excuses(p))
		return false;
	slot = limit__spent(m->slot, cpu, 0, now);
	l = limit__of(slot);
	if (!l)
		return false;
	bpf_spin_lock(&l->lock);
	holds = l->state == LIMIT_HOLDS;
	if (holds) {
		l->came++;
		l->waits = 1;
	}
	after = l->bw.pool > 0 ? ENTRAIN_BW_SLICE : entrain_bw_due(&l->bw, now);
	bpf_spin_unlock(&l->lock);
	if (!holds || !limit__arm(l, after))
		return false;
	m->came = now;
	scx_insert_vtime(p, DSQ_LIMIT(slot), ENTRAIN_BW_SLICE, entrain_bw_place(now, ahead), enq_flags);
	return true;
}

/* For ops.select_cpu, where the task's group can't be asked for: whether it would find no time on its CPU. */
static __always_inline bool limit__would_park(const struct limit_member *m, __s32 cpu, __u64 now)
{
	return READ_ONCE(limited.groups) && limit__is_known(m) && m->slot && limit__spent(m->slot, cpu, 0, now);
}

/* A CPU takes what it lacks of a group's time to run somebody for `want`. Returns how much it has then. */
static __always_inline __u64 limit__take(struct limit *l, struct limit_cpu *lc, __u64 want, __u64 now)
{
	__s64 left = lc->left;

	if (left < (__s64)entrain_min(want, ENTRAIN_BW_KEEP)) {
		bpf_spin_lock(&l->lock);
		entrain_bw_refill(&l->bw, now);
		left += entrain_bw_take(&l->bw, ENTRAIN_BW_SLICE - left);
		bpf_spin_unlock(&l->lock);
		lc->left = left;
	}
	return left > 0 ? left : 0;
}

/* A turn of the task begins on a CPU, of `want` at most. Returns how long it may be; 0: it has no time. */
__noinline __u64 limit__turn(__u32 slot, __u32 cpu, __u64 want, __u64 now)
{
	__u32 i;

	bpf_for (i, 0, LIMIT_CHAIN) {
		struct limit *l = limit__of(slot);
		struct limit_cpu *lc = l ? limit__cpu(slot, cpu) : NULL;

		if (!lc)
			break;
		if (READ_ONCE(l->state) == LIMIT_HOLDS)
			want = entrain_min(want, limit__take(l, lc, want, now));
		slot = l->parent;
	}
	return want;
}

/*
 * What the task has run and not been charged for: by the kernel's own account, as cpu.stat has it and cpu.max means it.
 * That leaves out interrupts and what a hypervisor withheld, and is current wherever an operation is called with the
 * task. Time between two readings of a clock is neither.
 */
static __always_inline __u64 limit__ran(const struct task_struct *task, const struct limit_member *m)
{
	return m->began ? entrain_sub(task->se.sum_exec_runtime, m->exec) : 0;
}

/* In ops.running: as limit__turn(), for a task that nothing is known of. */
static __always_inline __u64 limit__begin(struct task_struct *p, struct limit_member *m, __u32 cpu, __u64 want,
					  __u64 now)
{
	__u64 turn;

	if (!READ_ONCE(limited.groups))
		return want;
	limit__follow(p, m);
	if (!m->slot || (p->flags & LIMIT_PF_KTHREAD))
		return want;
	turn = limit__turn(m->slot, cpu, want, now);
	m->began = now;
	m->exec = p->se.sum_exec_runtime;
	m->granted = turn > 0;
	return turn || !limit__excuses(p) ? turn : want;
}

/*
 * Settles what ran on a CPU with all groups from `slot` outwards. `stops`: nobody goes on there, so that what is left
 * goes back to the pool. `turn`: how long the turn was that has ended, 0 = it has not. Those who wait need not do so
 * until the next period when a CPU gives time back, only for a moment, since many CPUs may do so at once: the kernel's
 * slack timer.
 */
__noinline int limit__settle(__u32 slot, __u32 cpu, __u64 ran, __u64 turn, bool stops)
{
	__u64 now = scx_bpf_now();
	__u32 i;

	bpf_for (i, 0, LIMIT_CHAIN) {
		struct limit *l = limit__of(slot);
		struct limit_cpu *lc = l ? limit__cpu(slot, cpu) : NULL;
		__s64 left, keep;
		__u64 due;
		bool hurry;

		if (!lc)
			break;
		left = lc->left - (__s64)ran;
		keep = stops ? entrain_bw_keep(l->bw.quota, LIMIT_CPUS) : ENTRAIN_BW_SLICE;
		if (left < 0 || left > keep) {
			keep = left < 0 ? 0 : keep;
			bpf_spin_lock(&l->lock);
			entrain_bw_give(&l->bw, left - keep);
			hurry = left > 0 && l->waits && l->bw.pool > 0;
			due = entrain_bw_due(&l->bw, now);
			bpf_spin_unlock(&l->lock);
			left = keep;
			if (hurry && !__sync_lock_test_and_set(&l->hurry, 1))
				bpf_timer_start(&l->timer, entrain_min(due, ENTRAIN_BW_SLICE), 0);
		}
		lc->left = left;
		if (turn)
			l->turn = entrain_bw_turn(l->turn, turn);
		slot = l->parent;
	}
	return 0;
}

/* Charges the task for what it ran on its CPU. `stops`: it leaves the CPU with that. */
static __always_inline void limit__charge(const struct task_struct *p, struct limit_member *m, __u32 cpu, bool stops,
					  __u64 now)
{
	__u64 turn = stops && m->granted ? entrain_sub(now, m->began) : 0, ran = limit__ran(p, m);

	if (!m->began)
		return;
	m->exec += ran;
	if (READ_ONCE(limited.groups) && m->slot)
		limit__settle(m->slot, cpu, ran, turn, stops);
	if (stops)
		m->began = 0;
}

/*
 * Whether the task that runs may not go on: it has no time left, or limits have changed and it must be queued for the
 * scheduler to learn which it is under.
 */
static __always_inline bool limit__ends(const struct task_struct *p, const struct limit_member *m, __s32 cpu, __u64 now)
{
	if (!READ_ONCE(limited.groups))
		return false;
	if (!limit__is_known(m))
		return true;
	return m->slot && !limit__excuses(p) && limit__spent(m->slot, cpu, limit__ran(p, m), now);
}

/* The task moves to another group, or is no longer what it was. */
static __always_inline void limit__forget(struct limit_member *m)
{
	m->epoch = 0;
}

/*
 * Lets go those at the head of a group's queue: `n` of them, and whoever has waited too long. Returns whether there may
 * be more of these. The count is the loop's own, so that one pass shows the verifier all of them.
 */
static __always_inline bool limit__let_go(__u32 slot, __u64 n, __u64 now)
{
	struct bpf_iter_scx_dsq it;
	struct task_struct *p;
	bool more = false;
	__u32 i;

	bpf_rcu_read_lock();
	if (!bpf_iter_scx_dsq_new(&it, DSQ_LIMIT(slot), 0)) {
		bpf_for (i, 0, LIMIT_BATCH) {
			struct limit_member *m;

			p = bpf_iter_scx_dsq_next(&it);
			m = p ? limit__member(p) : NULL;
			if (!m || (i >= n && entrain_sub(now, m->came) < LIMIT_TOUCH_NS))
				break;
			limit__release(&it, p);
			more = i == LIMIT_BATCH - 1;
		}
	}
	bpf_iter_scx_dsq_destroy(&it);
	bpf_rcu_read_unlock();
	return more;
}

/* A group's timer: a period begins, or there may be time for somebody. */
static int limit__timer(void *map, __u32 *key, struct limit *l)
{
	__u64 now = sched__now(), n, after, turn = l->turn;
	bool holds, again, more;
	__u32 slot = *key;
	__s32 queued;

	l->hurry = 0;
	bpf_spin_lock(&l->lock);
	holds = l->state == LIMIT_HOLDS;
	entrain_bw_refill(&l->bw, now);
	n = entrain_bw_admits(l->bw.pool, turn);
	bpf_spin_unlock(&l->lock);
	/* While an outer group has no time, they would but go from queue to queue; they do so one by one. */
	if (holds && n > 1 && l->parent && limit__spent(l->parent, -1, 0, now))
		n = 1;
	more = limit__let_go(slot, holds ? n : LIMIT_BATCH, now);
	queued = scx_bpf_dsq_nr_queued(DSQ_LIMIT(slot));

	bpf_spin_lock(&l->lock);
	/* One that came a moment ago may not stand in the queue yet: its operation must have returned. */
	again = queued > 0 || l->came != l->seen;
	l->seen = l->came;
	l->waits = queued > 0;
	after = l->bw.pool > 0 ? ENTRAIN_BW_SLICE : entrain_bw_due(&l->bw, now);
	if (l->state == LIMIT_ENDS) {
		again = again || l->drains > 0;
		after = LIMIT_DRAIN_NS;
		if (l->drains > 0)
			l->drains--;
		if (!again)
			l->state = LIMIT_FREE;
	}
	l->armed = again;
	bpf_spin_unlock(&l->lock);
	if (more)
		after = 0;
	if (again)
		bpf_timer_start(&l->timer, entrain_max(after, LIMIT_SOON_NS), 0);
	return 0;
}

/* A number has a queue and a timer from its first use on. Only where one may sleep. */
static __always_inline __s32 limit__prepare(struct limit *l, __u32 slot)
{
	__s32 error;

	if (l->dsq)
		return 0;
	error = scx_bpf_create_dsq(DSQ_LIMIT(slot), -1);
	if (error && error != -LIMIT_EEXIST)
		return error;
	l->dsq = 1;
	bpf_timer_init(&l->timer, &limits, LIMIT_CLOCK_MONOTONIC);
	bpf_timer_set_callback(&l->timer, limit__timer);
	return 0;
}

/* A number for a group that gets a limit. Only where one may sleep. Returns 0 when there is none left. */
static __u32 limit__claim(void)
{
	__u32 slot;

	bpf_for (slot, 1, LIMIT_SLOTS) {
		struct limit *l = limit__of(slot);

		if (!l || __sync_val_compare_and_swap(&l->state, LIMIT_FREE, LIMIT_CLAIMED) != LIMIT_FREE)
			continue;
		return slot;
	}
	return 0;
}

static __always_inline void limit__drop(struct limit *l)
{
	bpf_spin_lock(&l->lock);
	l->state = LIMIT_ENDS;
	l->drains = LIMIT_DRAINS;
	bpf_spin_unlock(&l->lock);
	__sync_fetch_and_add(&limited.groups, -1);
	__sync_fetch_and_add(&limited.epoch, 1);
	l->armed = 1;
	bpf_timer_start(&l->timer, LIMIT_SOON_NS, 0);
}

/* The group has no limit any more, or ends. */
static void cgroup__unlimit(struct cgroup *cgrp)
{
	struct cgroup_ctx *ctx = bpf_cgrp_storage_get(&sched_cgroups, cgrp, 0, 0);
	struct limit *l = ctx ? limit__of(__sync_lock_test_and_set(&ctx->limit, 0)) : NULL;

	if (l)
		limit__drop(l);
}

/* The limit of a group that has one already. Returns whether it has. */
static __always_inline bool cgroup__relimit(struct cgroup_ctx *ctx, __u64 quota, __u64 period, __u64 burst, __u64 now)
{
	struct limit *l = limit__of(READ_ONCE(ctx->limit));

	if (!l)
		return false;
	bpf_spin_lock(&l->lock);
	entrain_bw_refill(&l->bw, now);
	entrain_bw_set(&l->bw, quota, period, burst, now);
	bpf_spin_unlock(&l->lock);
	/* Whoever waits may have time now. */
	if (l->waits)
		bpf_timer_start(&l->timer, LIMIT_SOON_NS, 0);
	return true;
}

/*
 * ops.cgroup_init and ops.cgroup_set_bandwidth, in µs as the kernel has them. Only where one may sleep. Returns 0 or a
 * negative error number; -ENOSPC: more groups have limits than there is room for.
 */
static __s32 cgroup__limit_to(struct cgroup *cgrp, __u64 period_us, __u64 quota_us, __u64 burst_us)
{
	struct cgroup_ctx *ctx = bpf_cgrp_storage_get(&sched_cgroups, cgrp, 0, 0);
	__u64 now = sched__now(), quota, period, burst;
	struct limit_cpu *lc;
	struct limit *l;
	__u32 slot, cpu;

	if (!ctx)
		return -LIMIT_ENOMEM;
	if (!quota_us || quota_us == LIMIT_RUNTIME_INF) {
		cgroup__unlimit(cgrp);
		return 0;
	}
	quota = entrain_min(quota_us, ENTRAIN_BW_MAX / ENTRAIN_USEC) * ENTRAIN_USEC;
	burst = entrain_min(burst_us, ENTRAIN_BW_MAX / ENTRAIN_USEC) * ENTRAIN_USEC;
	period = entrain_min(period_us, ENTRAIN_BW_PERIOD_MAX / ENTRAIN_USEC) * ENTRAIN_USEC;
	if (cgroup__relimit(ctx, quota, period, burst, now))
		return 0;
	slot = limit__claim();
	l = limit__of(slot);
	if (!l)
		return -LIMIT_ENOSPC;
#ifndef LIMIT_PREPARED
	__s32 error = limit__prepare(l, slot);

	if (error) {
		l->state = LIMIT_FREE;
		return error;
	}
#endif
	bpf_for (cpu, 0, LIMIT_CPUS) {
		lc = limit__cpu(slot, cpu);
		if (lc)
			lc->left = 0;
	}
	bpf_spin_lock(&l->lock);
	l->bw.quota = 0;
	entrain_bw_set(&l->bw, quota, period, burst, now);
	l->turn = ENTRAIN_BW_SLICE;
	l->waits = l->armed = l->hurry = 0;
	l->state = LIMIT_HOLDS;
	bpf_spin_unlock(&l->lock);
	/* Two may write the file of one group at once. */
	if (__sync_val_compare_and_swap(&ctx->limit, 0, slot)) {
		__sync_fetch_and_add(&limited.groups, 1);
		limit__drop(l);
		cgroup__relimit(ctx, quota, period, burst, now);
		return 0;
	}
	__sync_fetch_and_add(&limited.groups, 1);
	__sync_fetch_and_add(&limited.epoch, 1);
	return 0;
}

#ifdef LIMIT_PREPARED
/* ops.init of a scheduler that may be attached more than once: its queues have gone with the last time. */
static __s32 limit__start_anew(void)
{
	__u32 slot;

	limited.groups = 0;
	bpf_for (slot, 1, LIMIT_SLOTS) {
		struct limit *l = limit__of(slot);
		__s32 error;

		if (!l)
			break;
		l->state = LIMIT_FREE;
		l->dsq = 0;
		error = limit__prepare(l, slot);
		if (error)
			return error;
	}
	return 0;
}
#endif

#endif /* ENTRAIN_CGROUP_LIMIT_BPF_H */
