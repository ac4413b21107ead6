/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Which vCPU takes a task that becomes runnable, and when another vCPU takes over what already waits.
 *
 * Every candidate gets a price: the time that the task would wait there, in ns, plus what the move itself costs. The
 * lowest price wins. This one scale answers reference 1's question (an idle vCPU that the host runs at once costs
 * nothing) and the one that reference 1 left open: whether a short queue on a running vCPU is better than an idle one
 * whose pCPU is busy. Reference 1 always took the idle vCPU, and its median got 4.5 times worse.
 */
#ifndef ENTRAIN_GUEST_WAKE_H
#define ENTRAIN_GUEST_WAKE_H

#include "guest_view.h"

/* Price of a vCPU that may not be used; above every other price. */
#define GUEST_PRICE_NEVER (~0ULL)

/* Cache-cold start elsewhere: what a move must save at least. A migration costs some ten microseconds ... */
#define GUEST_MOVE_NS	  50000ULL
/* ... and several times that where the last-level cache is another one, or another node's. */
#define GUEST_MOVE_FAR_NS (4 * GUEST_MOVE_NS)

/* Waking a halted vCPU: an IPI and a VM entry. */
#define GUEST_KICK_NS 20000ULL

/* Bounds for everything that is measured, so that no garbage makes a vCPU look endlessly bad or good. */
#define GUEST_WAIT_MAX_NS      100000000ULL
#define GUEST_BURST_MIN_NS     10000ULL
#define GUEST_HOST_WAIT_MIN_NS 500000ULL
#define GUEST_HOST_WAIT_NS     3000000ULL /* before anything was measured: about one slice of a stock host */

/* A task is big when it uses more than this of a full pCPU; only big tasks are worth a faster pCPU. 1/1024. */
#define GUEST_BIG_TASK 256

struct guest_candidate {
	struct guest_vcpu_view view;
	entrain_u32 parked;   /* vcpud has parked it, or the task may not run there */
	entrain_u32 idle;     /* the guest's kernel idles there */
	entrain_u32 previous; /* the task ran there last */
	entrain_u32 far;      /* ... or at another last-level cache than this vCPU's */
	entrain_u32 held;     /* neither idle nor running a task of the scheduler's: a real-time task has it, say */
	entrain_u32 queued;   /* tasks that wait there, the running one not counted, those in its local queue counted */
	entrain_u64 burst;    /* ns: how long tasks run there at a time, mean */
	entrain_u64 host_wait; /* ns: how long the host lets this guest's vCPUs wait, mean; 0 = not known */
	entrain_u32 capacity;  /* of the pCPU, 1..1024; a level of speed counts only where something runs already */
	entrain_u32 stolen;    /* without host words: share of its time that was stolen lately, 1/1024 */
};

ENTRAIN_POLICY entrain_u64 guest_clamp(entrain_u64 value, entrain_u64 low, entrain_u64 high)
{
	return entrain_min(entrain_max(value, low), high);
}

/* How long a vCPU that the host must first schedule keeps the task waiting, ns. */
ENTRAIN_POLICY entrain_u64 guest_host_wait(entrain_u64 measured)
{
	if (measured == 0)
		return GUEST_HOST_WAIT_NS;
	return guest_clamp(measured, GUEST_HOST_WAIT_MIN_NS, GUEST_WAIT_MAX_NS);
}

/*
 * How often a vCPU waited for a pCPU while its state changed `changes` times, `preemptions` of them involuntary
 * switch-outs. A preemption and its end are two changes and one wait; a halt, the wake-up that waits for a pCPU and the
 * run that follows are three and one.
 */
ENTRAIN_POLICY entrain_u64 guest_host_waits(entrain_u64 changes, entrain_u64 preemptions)
{
	entrain_u64 halts = entrain_sub(changes, 2 * entrain_min(preemptions, 1ULL << 32)) / 3;

	return entrain_min(preemptions, 1ULL << 32) + halts;
}

/*
 * How long the host lets a vCPU wait at a time, mean, ns, after `waited` ns in `waits` waits more. 0..GUEST_WAIT_MAX_NS
 * for every input: one long absence (a stopped VM) is not how a host schedules.
 */
ENTRAIN_POLICY entrain_u64 guest_host_wait_mean(entrain_u64 mean, entrain_u64 waited, entrain_u64 waits)
{
	if (!waits)
		return entrain_min(mean, GUEST_WAIT_MAX_NS);
	mean = mean ? entrain_min(mean, GUEST_WAIT_MAX_NS) : GUEST_HOST_WAIT_NS;
	waited = entrain_min(waited / waits, GUEST_WAIT_MAX_NS);
	return mean - mean / 8 + waited / 8;
}

/*
 * The price of a candidate, ns. `util` is the task's own utilisation, 0..1024. Monotone: it never falls when the queue,
 * the burst or the host's wait grows, and never rises with the capacity.
 */
ENTRAIN_POLICY entrain_u64 guest_wake_price(const struct guest_candidate *c, entrain_u32 util)
{
	entrain_u64 price, burst, missing;

	if (c->parked)
		return GUEST_PRICE_NEVER;

	burst = guest_clamp(c->burst, GUEST_BURST_MIN_NS, GUEST_WAIT_MAX_NS);
	price = guest_clamp(c->queued, 0, 1024) * burst;
	if (!c->idle)
		price += burst;
	/* How long a task of another class stays is not known: as long as a vCPU that the host holds back. */
	if (c->held)
		price += guest_host_wait(c->host_wait);
	switch (c->view.state) {
	case ENTRAIN_VCPU_RUNNING:
		/* A running vCPU whose kernel idles polls, or is about to halt: as good as instant. */
		break;
	case ENTRAIN_VCPU_HALTED:
		/* What is halted though its kernel does not idle is blocked in the VMM: for how long, nobody says. */
		price += c->view.instant && c->idle ? GUEST_KICK_NS : guest_host_wait(c->host_wait);
		break;
	case ENTRAIN_VCPU_PREEMPTED:
		price += guest_host_wait(c->host_wait);
		break;
	default:
		/* No word of the host: steal time says how likely a wake-up waits. */
		if (c->idle)
			price += GUEST_KICK_NS;
		price += guest_host_wait(c->host_wait) * guest_clamp(c->stolen, 0, 1024) / 1024;
		break;
	}
	if (!c->previous)
		price += c->far ? GUEST_MOVE_FAR_NS : GUEST_MOVE_NS;
	/* A big task on a slow pCPU runs longer: count the time that it loses over a burst of its own. */
	if (util > GUEST_BIG_TASK) {
		missing = ENTRAIN_CAPACITY_SCALE - guest_clamp(c->capacity, 1, ENTRAIN_CAPACITY_SCALE);
		price += missing * guest_clamp(util, 0, 1024);
	}
	return price;
}

/*
 * Whether a task may be handed to the idle vCPU's own queue directly, where nobody else can take it: only when nothing
 * says that it could wait there.
 */
ENTRAIN_POLICY int guest_wake_direct(const struct guest_candidate *c)
{
	if (!c->idle || c->parked || c->queued)
		return 0;
	if (c->view.state == ENTRAIN_VCPU_UNKNOWN)
		return c->stolen < 1024 / 50;
	return c->view.state == ENTRAIN_VCPU_RUNNING || c->view.instant;
}

/*
 * Whether a task had better wait for a vCPU that runs another one than have an idle one kicked. `stay`: how long tasks
 * keep it from the vCPU at a time, mean, or how long this one has by now if that is more, ns; `ahead`: tasks that wait
 * there before it; `kick`: what a kick costs, ns: from the wake-up until the task runs on the idle vCPU, and what
 * whoever kicks loses by it (an exit of its own). 0: not known, and nobody waits.
 *
 * fair.c comes to it by constants: it looks for no idle CPU where those of a cache are busy for the most part
 * (SIS_UTIL), and fetches nothing for one that idles for less than a move is worth (newidle_balance); here both sides
 * are measured.
 */
ENTRAIN_POLICY int guest_wake_stays(entrain_u64 stay, entrain_u64 ahead, entrain_u64 kick)
{
	return (1 + entrain_min(ahead, 1024)) * entrain_min(stay, GUEST_WAIT_MAX_NS) <
	       entrain_min(kick, 2 * GUEST_WAIT_MAX_NS);
}

/* What a vCPU that looks for work compares: the head of another vCPU's queue against its own best. */
struct guest_takeover {
	entrain_u32 victim_state;  /* enum entrain_vcpu_state */
	entrain_u32 victim_parked; /* vcpud has parked it: it will not run the task itself */
	entrain_u32 victim_idle;   /* its kernel idles: a kick is on the way */
	entrain_u32 victim_instant;
	entrain_u32 own_work;	/* 1: this vCPU has something of its own to run */
	entrain_u64 own_vtime;	/* ... of this virtual time */
	entrain_u64 head_vtime; /* virtual time of the task at the head of the victim's queue */
	entrain_u64 slice;	/* ns: the advantage that a task must have to be moved between running vCPUs */
	entrain_u32 stays;	/* the head starts sooner where it is (guest_wake_stays) */
};

/*
 * Whether this vCPU runs the head of the other's queue now. With nothing of its own it does unless that one starts
 * sooner where it is: a queued task waits no longer than a kick costs, by means, while a vCPU is free. Else the
 * older virtual time decides; the advantage that it must have is a slice when the victim makes progress itself, and
 * nothing when the host holds the victim back.
 */
ENTRAIN_POLICY int guest_take_over(const struct guest_takeover *t)
{
	entrain_s64 ahead = (entrain_s64)(t->own_vtime - t->head_vtime);

	if (!t->own_work)
		return !t->stays;
	if (t->victim_parked || t->victim_state == ENTRAIN_VCPU_PREEMPTED)
		return ahead > 0;
	if (t->victim_idle && t->victim_instant)
		return 0;
	return ahead > (entrain_s64)guest_clamp(t->slice, 0, GUEST_WAIT_MAX_NS);
}

#endif /* ENTRAIN_GUEST_WAKE_H */
