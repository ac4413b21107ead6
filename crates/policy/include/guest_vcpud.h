/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * vcpud: how many vCPUs a guest keeps in use, and which (reference 3 asked for it in 2013: "automatically adjust
 * active vcpus ... to approximate the actual host cpu resource available").
 *
 * The host's entitlement is a bound for shrinking, by a Schmitt trigger: much more room is taken at once, a little more
 * room only when it lasts, and less room is accepted after a hold, if the guest feels it: where nothing is withheld,
 * others leave to it what it has. It grows beyond that where the host has a pCPU that idles and the guest has work for
 * it. Its own steal time bounds it as well: it shrinks to what it really got, and grows by probing, with a back-off
 * that doubles when a probe was a mistake. Where the host says nothing that is all it goes by.
 */
#ifndef ENTRAIN_GUEST_VCPUD_H
#define ENTRAIN_GUEST_VCPUD_H

#include "guest_load.h"

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

/*
 * How long a pCPU must idle before the guest takes it beyond its entitlement, ns, at first and at most: it doubles each
 * time that the vCPU had to be given up within GUEST_VCPUD_PROVEN_NS. Far more than the pauses between the exits of a
 * vCPU that works, less than anybody notices.
 */
#define GUEST_VCPUD_ROOM_NS	1000000ULL
#define GUEST_VCPUD_ROOM_MAX_NS 64000000ULL

/* Steal: length of a window of observation, ns; five ticks at HZ=250, for steal is only counted at ticks. */
#define GUEST_VCPUD_WINDOW_NS	   20000000ULL
/* Steal: shares (1/1024) of the wanted time above which it shrinks and below which it may grow. */
#define GUEST_VCPUD_STEAL_HIGH	   128U
#define GUEST_VCPUD_STEAL_LOW	   32U
/* Steal: pause after a mistake, ns, at first and at most; a growth that survives so many windows was right. */
#define GUEST_VCPUD_PAUSE_NS	   20000000ULL
#define GUEST_VCPUD_PAUSE_MAX_NS   1000000000ULL
#define GUEST_VCPUD_PROVEN_WINDOWS 5U
#define GUEST_VCPUD_PROVEN_NS	   (GUEST_VCPUD_PROVEN_WINDOWS * GUEST_VCPUD_WINDOW_NS)

/* What the guest's own steal time says; all zero at the start. */
struct guest_vcpud_felt {
	entrain_u32 most; /* vCPUs that it got time for; 0 = not started */
	entrain_u32 grew; /* windows since it grew, 0 = that has proven right, or been taken back */
	entrain_u64 window_at, ran, stolen;
	entrain_u64 grow_after, pause;
	entrain_u64 turn_after, turn_pause;
	entrain_u32 suffers; /* windows in a row in which as few vCPUs as can be did */
	entrain_u32 pad;
};

/* The controller's memory; all zero at the start, when all vCPUs are kept. */
struct guest_vcpud {
	entrain_u32 keep; /* vCPUs in use; 0 = not started */
	/* From which one they are counted: others are tried while those in use suffer and cannot be fewer. */
	entrain_u32 first;
	entrain_u32 entitled;		    /* vCPUs by the host's word */
	entrain_u32 less;		    /* the most that was fit to be kept while less was */
	entrain_u64 less_since, more_since; /* 0 = not the case */
	entrain_u64 less_ran, less_stolen;  /* since `less_since`, ns */
	entrain_u64 room_since, room_wait, roomed_at;
	struct guest_vcpud_felt felt;
};

struct guest_vcpud_input {
	entrain_u64 now;	 /* ns, monotonic, not 0 */
	entrain_u32 nr_vcpus;	 /* 1..ENTRAIN_MAX_VCPUS */
	entrain_u32 floor;	 /* vCPUs that pinned tasks need */
	entrain_u32 wants;	 /* runnable tasks */
	entrain_u32 room;	 /* vCPUs not in use that the host would run at once */
	entrain_s64 entitlement; /* 1/1024 pCPU; -1 = the host says nothing (guest_entitlement) */
	entrain_u64 ran;	 /* ns that the kept vCPUs ran since the last step ... */
	entrain_u64 stolen;	 /* ... and ns that the host withheld from them */
	entrain_u64 random;	 /* any number, another one each time */
};

/* vCPUs worth having for this entitlement, when `spare` of the last one may be missing. */
ENTRAIN_POLICY entrain_u32 guest_vcpud_fit(entrain_u64 entitlement, entrain_u64 spare, entrain_u32 nr_vcpus)
{
	entrain_u64 fit = entitlement > spare ? (entitlement - spare + GUEST_VCPUD_ONE - 1) / GUEST_VCPUD_ONE : 0;

	if (fit < 1)
		return 1;
	return fit > nr_vcpus ? nr_vcpus : (entrain_u32)fit;
}

/* Doubles a pause after a mistake. */
ENTRAIN_POLICY entrain_u64 guest_vcpud_doubled(entrain_u64 pause, entrain_u64 least, entrain_u64 most)
{
	return entrain_min(entrain_max(pause * 2, least), most);
}

/*
 * vCPUs that it may take beyond its entitlement, since the host has pCPUs that idle: one at first, then as many again
 * each step while more of them idle. All of its vCPUs that are not in use may see one and the same pCPU.
 */
ENTRAIN_POLICY entrain_u32 guest_vcpud_room(struct guest_vcpud *v, const struct guest_vcpud_input *in)
{
	entrain_u32 more;

	if (v->roomed_at && entrain_sub(in->now, v->roomed_at) >= GUEST_VCPUD_PROVEN_NS) {
		v->roomed_at = 0;
		v->room_wait = 0;
	}
	if (!in->room || in->wants <= v->keep) {
		v->room_since = 0;
		return 0;
	}
	if (!v->room_since)
		v->room_since = in->now;
	if (entrain_sub(in->now, v->room_since) < entrain_max(v->room_wait, GUEST_VCPUD_ROOM_NS))
		return 0;
	more = v->roomed_at ? v->keep : 1;
	more = (entrain_u32)entrain_min(more, entrain_min(in->room, in->wants - v->keep));
	v->roomed_at = in->now;
	return more;
}

ENTRAIN_POLICY entrain_u32 guest_vcpud_entitled(struct guest_vcpud *v, const struct guest_vcpud_input *in)
{
	entrain_u64 entitlement = in->entitlement > 0 ? (entrain_u64)in->entitlement : 0;
	entrain_u32 jump = guest_vcpud_fit(entitlement, GUEST_VCPUD_JUMP, in->nr_vcpus);
	entrain_u32 more = guest_vcpud_fit(entitlement, GUEST_VCPUD_UP, in->nr_vcpus);
	entrain_u32 less = guest_vcpud_fit(entitlement, GUEST_VCPUD_DOWN, in->nr_vcpus);
	entrain_u32 room = guest_vcpud_room(v, in);

	if (jump > v->entitled) {
		v->more_since = v->less_since = 0;
		return jump;
	}
	if (room) {
		v->more_since = v->less_since = 0;
		return (entrain_u32)entrain_max(v->entitled, v->keep + room);
	}
	if (more > v->entitled) {
		v->less_since = 0;
		if (!v->more_since)
			v->more_since = in->now;
		if (entrain_sub(in->now, v->more_since) < GUEST_VCPUD_UP_NS)
			return v->entitled;
		v->more_since = 0;
		return more;
	}
	v->more_since = 0;
	if (less >= v->entitled) {
		v->less_since = 0;
		return v->entitled;
	}
	if (!v->less_since) {
		v->less_since = in->now;
		v->less = less;
		v->less_ran = v->less_stolen = 0;
	}
	if (less > v->less)
		v->less = less;
	v->less_ran += entrain_min(in->ran, 1ULL << 40);
	v->less_stolen += entrain_min(in->stolen, 1ULL << 40);
	if (entrain_sub(in->now, v->less_since) < GUEST_VCPUD_DOWN_NS)
		return v->entitled;
	v->less_since = 0;
	if (guest_stolen_share(v->less_ran, v->less_stolen) < GUEST_VCPUD_STEAL_LOW)
		return v->entitled;
	if (v->roomed_at) {
		v->room_wait = guest_vcpud_doubled(v->room_wait, 2 * GUEST_VCPUD_ROOM_NS, GUEST_VCPUD_ROOM_MAX_NS);
		v->roomed_at = 0;
	}
	return v->less;
}

/* All that may be in use is, as far as steal time is concerned. */
ENTRAIN_POLICY entrain_u32 guest_vcpud_unfelt(struct guest_vcpud_felt *f, entrain_u64 now, entrain_u32 bound)
{
	f->most = bound;
	f->grew = 0;
	f->window_at = now;
	f->ran = f->stolen = 0;
	return bound;
}

/*
 * vCPUs that the guest got time for, at most `bound`, by its own steal time. `excused`: the share of the wanted time,
 * 1/1024, that is withheld by right. `turn` is set where as few as can be suffer: others are worth a try, as on a host
 * that has bound each of its vCPUs to a pCPU, and those of another VM to the same.
 */
ENTRAIN_POLICY entrain_u32 guest_vcpud_feel(struct guest_vcpud_felt *f, const struct guest_vcpud_input *in,
					    entrain_u32 bound, entrain_u32 excused, int *turn)
{
	entrain_u64 length = entrain_sub(in->now, f->window_at), wanted, all;
	entrain_u32 share, keep = (entrain_u32)entrain_min(f->most, bound), got;

	f->most = keep;
	f->ran += entrain_min(in->ran, 1ULL << 40);
	f->stolen += entrain_min(in->stolen, 1ULL << 40);
	if (length < GUEST_VCPUD_WINDOW_NS)
		return keep;

	wanted = f->ran + f->stolen;
	all = length * keep;
	share = (entrain_u32)entrain_sub(guest_stolen_share(f->ran, f->stolen), excused);
	f->window_at = in->now;
	f->ran = f->stolen = 0;
	/* A window of a second and more says that nobody stepped: the guest was idle or stopped. */
	if (length > 1000000000ULL || wanted > 2 * all)
		return keep;

	if (share > GUEST_VCPUD_STEAL_HIGH && wanted > all / 2) {
		/* A neighbour that takes an eighth is no reason to give up half of two vCPUs: it stays with what it
		 * got. */
		got = guest_vcpud_fit((entrain_u64)keep * (1024 - share), GUEST_VCPUD_UP, keep);
		if (got < keep && f->grew)
			f->pause = guest_vcpud_doubled(f->pause, GUEST_VCPUD_PAUSE_NS, GUEST_VCPUD_PAUSE_MAX_NS);
		f->grow_after = in->now + f->pause;
		f->grew = 0;
		f->most = got;
		f->suffers = got == keep ? f->suffers + 1 : 0;
		/* A host that can has moved its threads by then; and to leave a vCPU leaves work behind for a while. */
		if (f->suffers > GUEST_VCPUD_PROVEN_WINDOWS && in->now >= f->turn_after) {
			*turn = 1;
			f->suffers = 0;
			f->turn_pause =
				guest_vcpud_doubled(f->turn_pause, GUEST_VCPUD_PAUSE_NS, GUEST_VCPUD_PAUSE_MAX_NS);
			f->turn_after = in->now + f->turn_pause;
		}
		return got;
	}
	f->suffers = 0;
	if (f->grew && ++f->grew > GUEST_VCPUD_PROVEN_WINDOWS) {
		f->pause = GUEST_VCPUD_PAUSE_NS;
		f->grew = 0;
	}
	if (entrain_sub(in->now, f->turn_after) > GUEST_VCPUD_PAUSE_MAX_NS)
		f->turn_pause = 0;
	if (share < GUEST_VCPUD_STEAL_LOW && keep < bound && in->wants > keep && wanted > all / 4 * 3 &&
	    in->now >= f->grow_after) {
		/* A quarter more at first; as long as nothing is withheld, twice as many each time. */
		entrain_u32 more = f->grew ? keep : (entrain_u32)entrain_max(keep / 4, 1);

		f->grew = 1;
		f->most = keep + (entrain_u32)entrain_min(more, entrain_min(in->wants, bound) - keep);
	}
	return f->most;
}

/*
 * One step, every millisecond or so. Returns the vCPUs to keep: max(1, floor)..nr_vcpus, whatever comes in. The work is
 * constant.
 */
ENTRAIN_POLICY entrain_u32 guest_vcpud_step(struct guest_vcpud *v, const struct guest_vcpud_input *in)
{
	entrain_u32 keep, bound = in->nr_vcpus, was = v->entitled, floor = in->floor < 1 ? 1 : in->floor;
	entrain_u64 entitlement = in->entitlement > 0 ? (entrain_u64)in->entitlement : 0, excused = 0;
	int turn = 0;

	if (floor > in->nr_vcpus)
		floor = in->nr_vcpus;
	if (v->keep == 0 || v->keep > in->nr_vcpus) {
		v->keep = v->entitled = was = in->nr_vcpus;
		v->felt.pause = GUEST_VCPUD_PAUSE_NS;
		guest_vcpud_unfelt(&v->felt, in->now, in->nr_vcpus);
	}
	if (in->entitlement >= 0) {
		bound = (entrain_u32)entrain_min(guest_vcpud_entitled(v, in), in->nr_vcpus);
		/* A last vCPU that only a part of a pCPU is left for waits for the rest of its time. */
		if (bound * GUEST_VCPUD_ONE > entitlement)
			excused = 1024 - entitlement / bound;
	} else {
		v->less_since = v->more_since = v->room_since = 0;
	}
	v->entitled = bound;
	/* A host that entitles it to all its vCPUs asks it to park none, whatever it withholds. */
	if (in->entitlement >= 0 && (bound > was || bound == in->nr_vcpus || v->roomed_at == in->now))
		keep = guest_vcpud_unfelt(&v->felt, in->now, bound);
	else
		keep = guest_vcpud_feel(&v->felt, in, bound, (entrain_u32)excused, &turn);
	v->keep = keep < floor ? floor : keep;
	if (turn && in->nr_vcpus > 1)
		v->first = (v->first + 1 + (entrain_u32)(in->random % (in->nr_vcpus - 1))) % in->nr_vcpus;
	return v->keep;
}

/*
 * Whether a vCPU is among the kept ones. Those with pinned work run anyway, so they count first; the rest is filled up
 * from `first` on, so that the set changes as little as the count does.
 *
 * `pinned_all`: vCPUs with pinned work; `free_before`: vCPUs between `first` and this one without.
 */
ENTRAIN_POLICY int guest_vcpud_kept(int pinned, entrain_u32 pinned_all, entrain_u32 free_before, entrain_u32 keep)
{
	if (pinned)
		return 1;
	return pinned_all < keep && free_before < keep - pinned_all;
}

#endif /* ENTRAIN_GUEST_VCPUD_H */
