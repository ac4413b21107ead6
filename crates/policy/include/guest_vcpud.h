/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * vcpud: how many vCPUs a guest keeps in use, and which (reference 3 asked for it in 2013: "automatically adjust
 * active vcpus ... to approximate the actual host cpu resource available").
 *
 * With the host's entitlement it is a Schmitt trigger: much more room is taken at once, a little more room only when it
 * lasts, and less room is accepted after a hold. Without, it reads its own steal time: it shrinks to what it really
 * got, and grows by probing, with a back-off that doubles when a probe was a mistake.
 */
#ifndef ENTRAIN_GUEST_VCPUD_H
#define ENTRAIN_GUEST_VCPUD_H

#include "entrain.h"
#include "policy.h"

/* One vCPU in the units of the entitlement. */
#define GUEST_VCPUD_ONE 1024ULL

/* More room than this beyond what is kept is taken at once; it is the step that a departing neighbour leaves. */
#define GUEST_VCPUD_JUMP 512ULL
/* More room than this is taken when it lasts: a vCPU for less would run mostly on stolen time. */
#define GUEST_VCPUD_UP	 192ULL
/* A vCPU is given up when less than this of it is left; below UP, so that the two never chase each other. */
#define GUEST_VCPUD_DOWN 64ULL

/*
 * How long a little more room must last, and how long less room must last, ns. Less room is accepted when the host has
 * said it twice: it looks at its VMs every ENTRAIN_ENTITLE_NS at most while one of them works.
 */
#define GUEST_VCPUD_UP_NS   32000000ULL
#define GUEST_VCPUD_DOWN_NS (2 * ENTRAIN_ENTITLE_NS + 1000000ULL)

/* Steal: length of a window of observation, ns; five ticks at HZ=250, for steal is only counted at ticks. */
#define GUEST_VCPUD_WINDOW_NS	 20000000ULL
/* Steal: shares (1/1024) of the wanted time above which it shrinks and below which it may grow. */
#define GUEST_VCPUD_STEAL_HIGH	 128U
#define GUEST_VCPUD_STEAL_LOW	 32U
/* Steal: pause between probes, ns, at first and at most; a probe that survives PROVEN was right. */
#define GUEST_VCPUD_PAUSE_NS	 20000000ULL
#define GUEST_VCPUD_PAUSE_MAX_NS 1000000000ULL
#define GUEST_VCPUD_PROVEN_NS	 100000000ULL

/* The controller's memory; all zero at the start, when all vCPUs are kept. */
struct guest_vcpud {
	entrain_u32 keep;		    /* vCPUs in use; 0 = not started */
	entrain_u32 most;		    /* the most that was wanted while less was */
	entrain_u64 less_since, more_since; /* 0 = not the case */
	entrain_u64 window_at, window_ran, window_stolen;
	entrain_u64 grew_at, grow_after, pause;
};

struct guest_vcpud_input {
	entrain_u64 now;	 /* ns, monotonic, not 0 */
	entrain_u32 nr_vcpus;	 /* 1..ENTRAIN_MAX_VCPUS */
	entrain_u32 floor;	 /* vCPUs that pinned tasks need */
	entrain_u32 wants;	 /* runnable tasks */
	entrain_s64 entitlement; /* 1/1024 pCPU; -1 = the host says nothing (guest_entitlement) */
	entrain_u64 ran;	 /* ns that the kept vCPUs ran since the last step ... */
	entrain_u64 stolen;	 /* ... and ns that the host withheld from them */
};

/* vCPUs worth having for this entitlement, when `spare` of the last one may be missing. */
ENTRAIN_POLICY entrain_u32 guest_vcpud_fit(entrain_u64 entitlement, entrain_u64 spare, entrain_u32 nr_vcpus)
{
	entrain_u64 fit = entitlement > spare ? (entitlement - spare + GUEST_VCPUD_ONE - 1) / GUEST_VCPUD_ONE : 0;

	if (fit < 1)
		return 1;
	return fit > nr_vcpus ? nr_vcpus : (entrain_u32)fit;
}

ENTRAIN_POLICY entrain_u32 guest_vcpud_entitled(struct guest_vcpud *v, const struct guest_vcpud_input *in)
{
	entrain_u64 entitlement = in->entitlement > 0 ? (entrain_u64)in->entitlement : 0;
	entrain_u32 jump = guest_vcpud_fit(entitlement, GUEST_VCPUD_JUMP, in->nr_vcpus);
	entrain_u32 more = guest_vcpud_fit(entitlement, GUEST_VCPUD_UP, in->nr_vcpus);
	entrain_u32 less = guest_vcpud_fit(entitlement, GUEST_VCPUD_DOWN, in->nr_vcpus);

	if (jump > v->keep) {
		v->more_since = v->less_since = 0;
		return jump;
	}
	if (more > v->keep) {
		v->less_since = 0;
		if (!v->more_since)
			v->more_since = in->now;
		if (entrain_sub(in->now, v->more_since) < GUEST_VCPUD_UP_NS)
			return v->keep;
		v->more_since = 0;
		return more;
	}
	v->more_since = 0;
	if (less >= v->keep) {
		v->less_since = 0;
		return v->keep;
	}
	if (!v->less_since) {
		v->less_since = in->now;
		v->most = less;
	}
	if (less > v->most)
		v->most = less;
	if (entrain_sub(in->now, v->less_since) < GUEST_VCPUD_DOWN_NS)
		return v->keep;
	v->less_since = 0;
	return v->most;
}

ENTRAIN_POLICY entrain_u32 guest_vcpud_steal(struct guest_vcpud *v, const struct guest_vcpud_input *in)
{
	entrain_u64 length = entrain_sub(in->now, v->window_at), wanted, all;
	entrain_u32 share, keep = v->keep;

	v->window_ran += in->ran;
	v->window_stolen += in->stolen;
	if (length < GUEST_VCPUD_WINDOW_NS)
		return keep;

	wanted = v->window_ran + v->window_stolen;
	all = length * keep;
	share = wanted && wanted >= v->window_stolen ? (entrain_u32)(v->window_stolen * 1024 / wanted) : 0;
	v->window_at = in->now;
	v->window_ran = v->window_stolen = 0;
	/* A window of a second and more says that nobody stepped: the guest was idle or stopped. */
	if (length > 1000000000ULL || wanted > 2 * all)
		return keep;

	if (share > GUEST_VCPUD_STEAL_HIGH && wanted > all / 2) {
		/* A neighbour that takes an eighth is no reason to give up half of two vCPUs: it stays with what it
		 * got. */
		entrain_u32 got = guest_vcpud_fit((entrain_u64)keep * (1024 - share), GUEST_VCPUD_UP, keep);

		if (got < keep && v->grew_at && entrain_sub(in->now, v->grew_at) < GUEST_VCPUD_PROVEN_NS)
			v->pause = v->pause * 2 < GUEST_VCPUD_PAUSE_MAX_NS ? v->pause * 2 : GUEST_VCPUD_PAUSE_MAX_NS;
		v->grow_after = in->now + v->pause;
		v->grew_at = 0;
		return got;
	}
	if (v->grew_at && entrain_sub(in->now, v->grew_at) >= GUEST_VCPUD_PROVEN_NS) {
		v->pause = GUEST_VCPUD_PAUSE_NS;
		v->grew_at = 0;
	}
	if (share < GUEST_VCPUD_STEAL_LOW && in->wants > keep && wanted > all / 4 * 3 && in->now >= v->grow_after) {
		/* One at first; as long as nothing is withheld, twice as many each time, so that big guests grow, too.
		 */
		entrain_u32 more = v->grew_at ? keep : 1;

		if (!v->grew_at)
			v->grew_at = in->now;
		v->grow_after = in->now + v->pause;
		return keep + (entrain_u32)entrain_min(more, in->wants - keep);
	}
	return keep;
}

/*
 * One step, every millisecond or so. Returns the vCPUs to keep: max(1, floor)..nr_vcpus, whatever comes in. The work is
 * constant.
 */
ENTRAIN_POLICY entrain_u32 guest_vcpud_step(struct guest_vcpud *v, const struct guest_vcpud_input *in)
{
	entrain_u32 keep, floor = in->floor < 1 ? 1 : in->floor;

	if (floor > in->nr_vcpus)
		floor = in->nr_vcpus;
	if (v->keep == 0 || v->keep > in->nr_vcpus) {
		v->keep = in->nr_vcpus;
		v->window_at = in->now;
		v->pause = GUEST_VCPUD_PAUSE_NS;
	}
	if (in->entitlement >= 0) {
		keep = guest_vcpud_entitled(v, in);
		v->window_at = in->now;
		v->window_ran = v->window_stolen = 0;
	} else {
		v->less_since = v->more_since = 0;
		keep = guest_vcpud_steal(v, in);
	}
	if (keep > in->nr_vcpus)
		keep = in->nr_vcpus;
	v->keep = keep < floor ? floor : keep;
	return v->keep;
}

/*
 * Whether a vCPU is among the kept ones. Those with pinned work run anyway, so they count first; the rest is filled up
 * from the lowest number, so that the set changes as little as the count does.
 *
 * `pinned_all`: vCPUs with pinned work; `free_before`: vCPUs of a lower number without.
 */
ENTRAIN_POLICY int guest_vcpud_kept(int pinned, entrain_u32 pinned_all, entrain_u32 free_before, entrain_u32 keep)
{
	if (pinned)
		return 1;
	return pinned_all < keep && free_before < keep - pinned_all;
}

#endif /* ENTRAIN_GUEST_VCPUD_H */
