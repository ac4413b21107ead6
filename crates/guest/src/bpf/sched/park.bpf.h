/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * vcpud inside the scheduler: asks the controller (guest_vcpud.h) every STEP_NS how many vCPUs to keep, and parks and
 * unparks them. To park a vCPU is to give it nothing but what is pinned to it: a store and a kick, no hotplug. Its
 * interrupts, softirqs and per-CPU threads go on.
 */
#ifndef ENTRAIN_GUEST_SCHED_PARK_H
#define ENTRAIN_GUEST_SCHED_PARK_H

#include "host.bpf.h"

struct guest_vcpud vcpud;
__u64 step_at;
__u64 window_at;
/* What the host entitles the guest to now, 1/1024 pCPU; negative: it says nothing. Read by the loader. */
__s64 entitlement;

/* Measures how long the host lets a vCPU wait, from the words it publishes. */
static __noinline void vcpu__observe_wait(__s32 cpu, struct vcpu_ctx *v)
{
	struct entrain_page *page = page__of(cpu);
	__u64 seed, steal, preemptions;

	if (!page || !(host_features & ENTRAIN_F_VCPU_STATE))
		return;
	seed = READ_ONCE(page->link.seed);
	preemptions = entrain_read(&page->host_fast.preemptions, seed);
	if (preemptions == v->seen_preemptions)
		return;
	steal = entrain_read(&page->host_fast.steal, seed) << ENTRAIN_TIME_SHIFT;
	if (v->seen_preemptions && preemptions > v->seen_preemptions)
		v->host_wait = guest_mean(v->host_wait ? v->host_wait : GUEST_HOST_WAIT_NS,
					  entrain_sub(steal, v->seen_wait) / (preemptions - v->seen_preemptions));
	v->seen_preemptions = preemptions;
	v->seen_wait = steal;
}

/* Parks a vCPU, or takes it into use again. */
static __noinline void vcpu__set_parked(__s32 cpu, struct vcpu_ctx *v, bool parked)
{
	if (v->parked == parked)
		return;
	WRITE_ONCE(v->parked, parked);
	stats__count(parked ? &stats.parks : &stats.unparks);
	if (parked) {
		/* What runs there leaves at once. An idle one needs no kick. */
		if (!v->idle)
			scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);
	} else if (nr_runnable > 0) {
		scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
	}
}

/* What a vCPU did since the last step; `window` is the time since pinned work was last judged, 0 = not now. */
__noinline int vcpu__observe(__s32 cpu, __u64 window)
{
	struct vcpu_ctx *v = vcpu__of(cpu);
	__u64 ran = v->ran, stolen = v->stolen, pinned = v->pinned_ran;

	v->step_ran = entrain_sub(ran, v->seen_ran);
	v->step_stolen = entrain_sub(stolen, v->seen_stolen);
	if (v->step_ran || v->step_stolen)
		v->stolen_share = (v->stolen_share * 7 + guest_stolen_share(v->step_ran, v->step_stolen)) / 8;
	v->seen_ran = ran;
	v->seen_stolen = stolen;
	if (window) {
		v->pinned = entrain_sub(pinned, v->seen_pinned) > window / 2;
		v->seen_pinned = pinned;
	}
	vcpu__observe_wait(cpu, v);
	return 0;
}

/* How many vCPUs to keep now. */
__noinline __u32 vcpud__decide(__u64 now, __u32 floor, __u64 ran, __u64 stolen)
{
	struct guest_vcpud_input in = {
		.now = now,
		.nr_vcpus = nr_online,
		.floor = floor,
		.wants = nr_runnable > 0 ? nr_runnable : 0,
		.entitlement = host__entitlement(),
		.ran = ran,
		.stolen = stolen,
	};

	stats.keep = guest_vcpud_step(&vcpud, &in);
	entitlement = in.entitlement;
	stats.runnable = in.wants;
	stats.stolen = guest_stolen_share(ran, stolen);
	return stats.keep;
}

/* One step for the whole guest, by whichever vCPU comes first. */
__noinline int vcpud__step(__u64 now)
{
	__u64 last = READ_ONCE(step_at), window, ran = 0, stolen = 0;
	__u32 keep, pinned_all = 0, free_before = 0;
	int i;

	/* Clocks of vCPUs differ: one may be behind the last step. */
	if (entrain_sub(now, last) < STEP_NS || __sync_val_compare_and_swap(&step_at, last, now) != last)
		return 0;
	host__look(now);
	window = entrain_sub(now, window_at);
	if (window < PINNED_WINDOW_NS)
		window = 0;
	else
		window_at = now;

	bpf_for (i, 0, nr_vcpus) {
		struct vcpu_ctx *v = vcpu__of(i);

		vcpu__observe(i, window);
		ran += v->step_ran;
		stolen += v->step_stolen;
		pinned_all += v->pinned;
	}
	keep = vcpud__decide(now, pinned_all, ran, stolen);
	if (!use_vcpud)
		return 0;
	bpf_for (i, 0, nr_vcpus) {
		struct vcpu_ctx *v = vcpu__of(i);

		if (v->offline)
			continue;
		vcpu__set_parked(i, v, !guest_vcpud_kept(v->pinned != 0, pinned_all, free_before, keep));
		free_before += !v->pinned;
	}
	return 0;
}

#endif /* ENTRAIN_GUEST_SCHED_PARK_H */
