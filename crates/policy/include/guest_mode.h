/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Calm or contended: whether what the host does to a guest's vCPUs matters now. In a calm guest the kernel's own choice
 * of an idle CPU is as good as any, and much cheaper than prices; a contended one pays for knowing better.
 *
 * What is withheld counts as a share of what was wanted, as a mean over some steps, so that neither a tick of a host's
 * own housekeeping nor one late wake-up makes a guest contended. It becomes contended within two steps of a neighbour
 * that takes half of its CPUs, and calm again when nothing was withheld for GUEST_CALM_NS.
 */
#ifndef ENTRAIN_GUEST_MODE_H
#define ENTRAIN_GUEST_MODE_H

#include "guest_load.h"

/* Shares of the wanted time, 1/1024, above which a guest is contended, and below which it may be calm. */
#define GUEST_CONTENDED_SHARE 48U
#define GUEST_CALM_SHARE      16U
/* What a vCPU waits in one part in so many of its time is what wake-ups take on an idle host, too. */
#define GUEST_WAKE_PART	      16U

/* How long it must have been calm, ns: several slices of a host, so that its turns are not taken for its leaving. */
#define GUEST_CALM_NS (100 * ENTRAIN_MSEC)

/* The memory of the decision; all zero at the start, when the guest is calm. */
struct guest_mode {
	entrain_u64 wanted, stolen; /* means of a step, ns */
	entrain_u64 contended_at;   /* when it last was for sure, ns */
	entrain_u32 contended;	    /* the answer */
};

struct guest_mode_input {
	entrain_u64 now;    /* ns, monotonic, not 0 */
	entrain_u64 ran;    /* ns that the vCPUs ran since the last step ... */
	entrain_u64 stolen; /* ... and ns that the host withheld from them, sum of guest_withheld() */
	entrain_u64 length; /* of the step, ns */
	entrain_u32 held;   /* vCPUs that the host held back all the time: it is not counted yet */
	entrain_u32 parked; /* vCPUs that are online and not in use */
};

/*
 * What was withheld from one vCPU in a step, of the steal time that it counted, ns. The steal clock of a vCPU that
 * wakes up often runs on an idle host as well: from the interrupt until its thread runs, each time.
 */
ENTRAIN_POLICY entrain_u64 guest_withheld(entrain_u64 stolen, entrain_u64 length)
{
	return entrain_sub(stolen, length / GUEST_WAKE_PART);
}

/* One step. Returns 1 where the guest is contended. */
ENTRAIN_POLICY int guest_mode_step(struct guest_mode *m, const struct guest_mode_input *in)
{
	entrain_u64 held = entrain_min(in->held, ENTRAIN_MAX_VCPUS * 64ULL) * entrain_min(in->length, ENTRAIN_SEC);
	entrain_u64 stolen = entrain_min(in->stolen, 1ULL << 40) + held;
	entrain_u32 share;

	m->stolen = guest_mean(m->stolen, stolen);
	m->wanted = guest_mean(m->wanted, entrain_min(in->ran, 1ULL << 40) + stolen);
	share = guest_stolen_share(entrain_sub(m->wanted, m->stolen), m->stolen);
	if (in->parked || share >= GUEST_CONTENDED_SHARE) {
		m->contended = 1;
		m->contended_at = in->now;
	} else if (m->contended && share >= GUEST_CALM_SHARE) {
		m->contended_at = in->now;
	} else if (m->contended && entrain_sub(in->now, m->contended_at) >= GUEST_CALM_NS) {
		m->contended = 0;
	}
	return m->contended != 0;
}

#endif /* ENTRAIN_GUEST_MODE_H */
