/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Whether the timer of a guest's vCPU is its kernel's own tick. Nobody in the guest waits for that: to let the vCPU in
 * for it takes two switches from others, HZ times a second, and gains nothing. A clock, a timeout or a sleeper's timer
 * is another matter, and looks alike from outside. But a tick falls on one grid for ever, whose period is one of the
 * four that Linux is built with (kernel/Kconfig.hz), and a vCPU that computes has it always. So a vCPU whose timers
 * have all been on one such grid has had its tick alone, and one off that grid counts as a reason to run from there on.
 *
 * Limits: what cannot be told from a tick is served as by a scheduler that knows nothing of timers: a clock that keeps
 * to the whole ticks of its kernel, one of exactly such a period on a vCPU without a tick (nohz_full, a real-time
 * kernel whose tick is its clock), and one that hides behind ticks, since it is rare or falls due a moment after them.
 * The guest decides what its timers look like, and gains no more by it than whoever is let in for a timer may: see the
 * threat model of those.
 */
#ifndef ENTRAIN_TICK_H
#define ENTRAIN_TICK_H

#include "policy.h"

/*
 * The time of ticks that have followed on one another, ns, before a tick counts as alone: a clock of 8 Hz and more
 * beside it has shown by then. A vCPU takes some ticks in its own turns, unseen: it takes some times longer.
 */
#define ENTRAIN_TICK_ROW (128 * ENTRAIN_MSEC)

/* Timers so many periods apart tell nothing of the grid: the guest's idea of time differs from the host's. */
#define ENTRAIN_TICK_FAR 64U

/* The part of a period and the part of the time between two timers by which they may miss the grid: 500 ppm. */
#define ENTRAIN_TICK_MISS  256U
#define ENTRAIN_TICK_DRIFT 2048U

/* What the timers of one vCPU have been; all zero at the start. */
struct entrain_tick {
	entrain_u64 at;	    /* when the last one expired, ns of any clock that the guest's follows */
	entrain_u64 period; /* of the tick, as far as is known, ns; 0 = nothing is */
	entrain_u64 row;    /* periods in which a tick has followed on a tick since another timer expired, ns */
	entrain_u32 once;   /* 1: the last one came one period after the one before */
	entrain_u32 known;  /* 1: the period is known for sure; a kernel keeps it */
};

/* Whether the time between two timers is a multiple of a period. */
ENTRAIN_POLICY int entrain_tick_fits(entrain_u64 apart, entrain_u64 period)
{
	entrain_u64 miss = period / ENTRAIN_TICK_MISS + apart / ENTRAIN_TICK_DRIFT;

	return (apart + miss) % period <= 2 * miss;
}

/* The period of HZ = 100, 250, 300 or 1000 that this is about, ns; 0 = none. */
ENTRAIN_POLICY entrain_u64 entrain_tick_period(entrain_u64 apart)
{
	entrain_u64 period = 10 * ENTRAIN_MSEC;

	if (apart < 2 * ENTRAIN_MSEC)
		period = ENTRAIN_MSEC;
	else if (apart < 3600 * ENTRAIN_USEC)
		period = ENTRAIN_SEC / 300;
	else if (apart < 7 * ENTRAIN_MSEC)
		period = 4 * ENTRAIN_MSEC;
	return apart < period + period / 2 && entrain_tick_fits(apart, period) ? period : 0;
}

/*
 * The vCPU's next timer expires `at`, ns of the same clock as before. Returns 1 where that is its kernel's tick, and it
 * has had no other timer for long. The same timer may be asked for again.
 */
ENTRAIN_POLICY int entrain_tick_alone(struct entrain_tick *t, entrain_u64 at)
{
	entrain_u64 apart = at > t->at ? at - t->at : t->at - at, period = t->period;
	entrain_u32 once = t->once;

	if (!apart)
		return t->row >= ENTRAIN_TICK_ROW;
	t->at = at;
	t->once = 0;
	if (apart > ENTRAIN_TICK_FAR * (period ? period : 10 * ENTRAIN_MSEC)) {
		/* It may be another: two more have to follow on one another. */
		t->row = entrain_min(t->row, ENTRAIN_TICK_ROW - 1);
		return 0;
	}
	if (!t->known && !t->row) {
		period = entrain_tick_period(apart);
		if (period)
			t->period = period;
		period = t->period;
	}
	if (!period || !entrain_tick_fits(apart, period)) {
		t->row = 0;
		return 0;
	}
	if (apart < period + period / 2) {
		t->once = 1;
		if (once && t->row < ENTRAIN_TICK_ROW)
			t->row += apart;
	}
	if (t->row < ENTRAIN_TICK_ROW)
		return 0;
	/* At 100 Hz the firmware of virtual machines ticks as well (edk2), before a kernel with another tick has
	 * booted. */
	t->known = period < 10 * ENTRAIN_MSEC;
	return 1;
}

#endif /* ENTRAIN_TICK_H */
