/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Fair shares by virtual time: each task's clock runs at a speed inverse to its weight while the task runs, and the
 * task whose clock is furthest behind goes first. Weighted fair queueing as in CFS and EEVDF; the bounded credit of
 * sleepers is what keeps both a waking task's latency and everybody else's share.
 */
#ifndef ENTRAIN_FAIR_H
#define ENTRAIN_FAIR_H

#include "policy.h"

/* Weights as in cgroup v2's cpu.weight; nice 0 is the default. */
#define ENTRAIN_WEIGHT_MIN     1
#define ENTRAIN_WEIGHT_MAX     10000
#define ENTRAIN_WEIGHT_DEFAULT 100

/*
 * One stay on a CPU is charged as at most this long. A clock that jumps (suspend, a host that is itself a guest) must
 * not put a task so far into the future that it never runs again. Ten seconds is far above any slice.
 */
#define ENTRAIN_CHARGE_MAX (10 * ENTRAIN_SEC)

ENTRAIN_POLICY entrain_u64 entrain_weight_clamp(entrain_u64 weight)
{
	return entrain_min(entrain_max(weight, ENTRAIN_WEIGHT_MIN), ENTRAIN_WEIGHT_MAX);
}

/* Whether virtual time a lies before b, across the wrap. */
ENTRAIN_POLICY int entrain_before(entrain_u64 a, entrain_u64 b)
{
	return (entrain_s64)(a - b) < 0;
}

/*
 * A queue's virtual time: how far the clocks of all that want to run have come. The task that begins to run counts only
 * up to the first that waits. One that was taken out of turn (a yield's target, a sibling) is ahead of the others: if
 * it counted, whoever wakes would be put behind it, and would wait until all of the others had come that far.
 */
ENTRAIN_POLICY entrain_u64 entrain_queue_vtime(entrain_u64 queue, entrain_u64 running, int waits, entrain_u64 first)
{
	if (waits && entrain_before(first, running))
		running = first;
	return entrain_before(queue, running) ? running : queue;
}

/*
 * The virtual time of a task that wakes up, given the queue's own: neither further behind than `credit` (else a long
 * sleeper could own the CPU until it caught up) nor further ahead than `debt` (else a task that ran alone in another
 * queue, or whose weight was raised, would starve here).
 */
ENTRAIN_POLICY entrain_u64 entrain_wake_vtime(entrain_u64 vtime, entrain_u64 queue, entrain_u64 credit,
					      entrain_u64 debt)
{
	if (entrain_before(vtime, queue - credit))
		return queue - credit;
	if (entrain_before(queue + debt, vtime))
		return queue + debt;
	return vtime;
}

/*
 * A task that goes to another queue keeps its lag: how far its clock is from the queue's, as EEVDF places tasks. Where
 * tasks are fetched from queue to queue by their clocks, these say something across queues as far as that keeps them
 * together, and a task that is behind by so much (`keep`) is owed it; clocks that are further apart (tasks bound to
 * their CPUs, CPUs of another cache: `keep` is 0) are not comparable, and a task that kept its own would wait until
 * the others have caught up, or own the CPU until it has.
 */
ENTRAIN_POLICY entrain_u64 entrain_move_vtime(entrain_u64 vtime, entrain_u64 from, entrain_u64 to, entrain_u64 keep)
{
	if (entrain_before(from + keep, to))
		return vtime + (to - from) - keep;
	if (entrain_before(to + keep, from))
		return vtime - (from - to) + keep;
	return vtime;
}

/*
 * A clock that counts as no further behind the furthest than so. How far behind a task was that has a CPU for itself by
 * now is no claim on those who come. One that is due more than it can have is behind without end, and is not to come
 * before whoever wakes for as long as it is owed.
 */
ENTRAIN_POLICY entrain_u64 entrain_bounded_vtime(entrain_u64 vtime, entrain_u64 furthest, entrain_u64 behind)
{
	return entrain_before(vtime, furthest - behind) ? furthest - behind : vtime;
}

/*
 * The credit that serves a waking task within `target` where the queue serves everybody once in `period`: whoever came
 * to a CPU earlier than that is then ahead of it in virtual time. At most a period, which is what a sleeper can have
 * missed; the time itself is charged as ever, so a short target moves a VM's share and does not raise it.
 */
ENTRAIN_POLICY entrain_u64 entrain_latency_credit(entrain_u64 target, entrain_u64 period)
{
	return entrain_sub(period, target);
}

/*
 * The weight of a task that shares its group's: group * task / active, where `active` is the sum of the weights of the
 * group's tasks that want to run, the task's own included. This flattens the cgroup tree into one queue: as tasks of a
 * group come and go, each one's part of the group's share changes and the group's whole does not.
 * In 1/1024 of a weight, so that a group of many tasks does not round to nothing.
 */
#define ENTRAIN_SHARE_SHIFT 10
#define ENTRAIN_SHARE_MAX   ((entrain_u64)ENTRAIN_WEIGHT_MAX << ENTRAIN_SHARE_SHIFT)

ENTRAIN_POLICY entrain_u64 entrain_share(entrain_u64 group, entrain_u64 part, entrain_u64 active)
{
	group = entrain_min(entrain_max(group, 1), ENTRAIN_SHARE_MAX);
	part = entrain_weight_clamp(part);
	active = entrain_max(active, part);
	return entrain_max(group * part / active, 1);
}

/*
 * Virtual time for `ran` nanoseconds on a CPU at a share in 1/1024 of a weight: ran * 100 / weight. Never 0 for a task
 * that ran at all.
 */
ENTRAIN_POLICY entrain_u64 entrain_charge_share(entrain_u64 ran, entrain_u64 share)
{
	share = entrain_min(entrain_max(share, 1), ENTRAIN_SHARE_MAX);
	if (!ran)
		return 0;
	ran = entrain_min(ran, ENTRAIN_CHARGE_MAX);
	return entrain_max(ran * (ENTRAIN_WEIGHT_DEFAULT << ENTRAIN_SHARE_SHIFT) / share, 1);
}

/* The time on a CPU that costs so much virtual time, rounded up: entrain_charge_share() the other way round. */
ENTRAIN_POLICY entrain_u64 entrain_time_of(entrain_u64 vtime, entrain_u64 share)
{
	entrain_u64 unit = ENTRAIN_WEIGHT_DEFAULT << ENTRAIN_SHARE_SHIFT;

	share = entrain_min(entrain_max(share, 1), ENTRAIN_SHARE_MAX);
	if (vtime / unit >= ENTRAIN_CHARGE_MAX / share)
		return ENTRAIN_CHARGE_MAX;
	return vtime / unit * share + (vtime % unit * share + unit - 1) / unit;
}

/*
 * How far ahead of its queue's clock a task's own may be: what `debt` nanoseconds on a CPU cost it, and no more than
 * the queue's clock, which moves at the speed of all who are there together (`load`, the sum of their shares), comes
 * in `wait`. Without the second bound a task of weight 1 beside one of 10,000 would wait for minutes after one slice.
 */
ENTRAIN_POLICY entrain_u64 entrain_lead(entrain_u64 debt, entrain_u64 wait, entrain_u64 share, entrain_u64 load)
{
	return entrain_min(entrain_charge_share(debt, share), entrain_charge_share(wait, entrain_max(load, share)));
}

/* The clock of a task that goes on waiting: at most `lead` ahead of its queue's. What it is owed stays. */
ENTRAIN_POLICY entrain_u64 entrain_led_vtime(entrain_u64 vtime, entrain_u64 queue, entrain_u64 lead)
{
	return entrain_before(queue + lead, vtime) ? queue + lead : vtime;
}

#endif /* ENTRAIN_FAIR_H */
