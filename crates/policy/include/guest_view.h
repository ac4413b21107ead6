/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the guest believes of the host's words: decodes and bounds their values, and lets them expire.
 *
 * The host is trusted with the guest's CPU time anyway, but not with its correctness: whatever stands in a word, these
 * functions return a value from the documented range, so that everything behind them may rely on it. A value is what
 * entrain_read() returns: 0 when this pairing's host has not written the word.
 */
#ifndef ENTRAIN_GUEST_VIEW_H
#define ENTRAIN_GUEST_VIEW_H

#include "entrain.h"
#include "policy.h"

/* One vCPU as the guest's scheduler sees it. */
struct guest_vcpu_view {
	entrain_u32 state;    /* enum entrain_vcpu_state; UNKNOWN when nothing usable was published */
	entrain_u32 instant;  /* 1: kicked now, it would run at once; only with HALTED and RUNNING */
	entrain_u32 pcpu;     /* 0..65535, meaningful when the state is not UNKNOWN */
	entrain_u32 extended; /* 1: runs on an extended slice and should yield soon */
};

/*
 * Decodes host_fast.state and host_fast.instant. `features` are the host's: a word without its feature is not current.
 * The two words are written at different times, so that a preempted vCPU may still be marked instant: the state wins.
 */
ENTRAIN_POLICY struct guest_vcpu_view guest_vcpu_view(entrain_u64 features, entrain_u64 state, entrain_u64 instant)
{
	struct guest_vcpu_view view = {.state = ENTRAIN_VCPU_UNKNOWN};
	entrain_u32 vcpu = ENTRAIN_STATE_VCPU(state);

	if (!(features & ENTRAIN_F_VCPU_STATE) || vcpu > ENTRAIN_VCPU_PREEMPTED || vcpu == ENTRAIN_VCPU_UNKNOWN)
		return view;
	view.state = vcpu;
	view.instant =
		(features & ENTRAIN_F_INSTANT) && (instant & ENTRAIN_INSTANT_NOW) && vcpu != ENTRAIN_VCPU_PREEMPTED;
	view.pcpu = ENTRAIN_STATE_PCPU(state);
	view.extended = vcpu == ENTRAIN_VCPU_RUNNING && (state & ENTRAIN_STATE_EXTENDED) != 0;
	return view;
}

/* The guest's memory of the host's heartbeat; all zero at the start. */
struct guest_heartbeat {
	entrain_u64 last; /* the value seen last */
	entrain_u64 seen; /* guest's clock when it changed, ns; 0 = never */
};

/*
 * Whether the host's words may be used at `now` (guest's monotonic clock, ns, not 0). A heartbeat counts only when it
 * *changes*: the word that a dead host left behind does not.
 */
ENTRAIN_POLICY int guest_host_alive(struct guest_heartbeat *heartbeat, entrain_u64 beat, entrain_u64 now)
{
	if (!beat)
		return 0;
	if (beat != heartbeat->last) {
		heartbeat->last = beat;
		heartbeat->seen = now;
	}
	return entrain_fresh(now, heartbeat->seen, ENTRAIN_HOST_EXPIRY_NS);
}

/* Capacity or performance level: 1..ENTRAIN_CAPACITY_SCALE. What was not published, or is no such value, is 1024. */
ENTRAIN_POLICY entrain_u32 guest_scale(entrain_u64 features, entrain_u64 value)
{
	if (!(features & ENTRAIN_F_CAPACITY) || value == 0 || value > ENTRAIN_CAPACITY_SCALE)
		return ENTRAIN_CAPACITY_SCALE;
	return (entrain_u32)value;
}

/*
 * Entitlement in 1/1024 pCPU, bounded by what the guest's vCPUs can use: 0..nr_vcpus*1024; -1 when the host publishes
 * none.
 */
ENTRAIN_POLICY entrain_s64 guest_entitlement(entrain_u64 features, entrain_u64 value, entrain_u32 nr_vcpus)
{
	if (!(features & ENTRAIN_F_ENTITLEMENT) || !value)
		return -1;
	return (entrain_s64)entrain_min(value, (entrain_u64)nr_vcpus * ENTRAIN_CAPACITY_SCALE);
}

#endif /* ENTRAIN_GUEST_VIEW_H */
