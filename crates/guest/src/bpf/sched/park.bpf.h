/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The controller, vcpud inside the scheduler: every STEP_NS it asks guest_mode.h whether the guest is contended, and
 * guest_vcpud.h how many vCPUs to keep, and parks and unparks them. To park a vCPU is to give it nothing but what is
 * pinned to it: a store and a kick, no hotplug. Its interrupts, softirqs and per-CPU threads go on.
 *
 * Steps are taken by the way, at ticks and where tasks are chosen and queued. A guest that computes on few vCPUs has
 * next to none of these: while tasks wait and vCPUs are parked a timer takes the steps, so that a pCPU that becomes
 * free is seen in time.
 */
#ifndef ENTRAIN_GUEST_SCHED_PARK_H
#define ENTRAIN_GUEST_SCHED_PARK_H

#include "publish.bpf.h"

struct guest_vcpud vcpud;
struct guest_mode guest_mode;
__u64 step_at;
__u64 window_at;
/* Somebody paces its vCPUs, as seen in the window that runs, and in the last. */
__u64 pacing;
/* What the host entitles the guest to now, 1/1024 pCPU; negative: it says nothing. Read by the loader. */
__s64 entitlement;

/* What one step adds up over the vCPUs that are online. */
struct step {
	__u64 now;
	__u64 length; /* since the last step, ns */
	__u64 window; /* since pinned work was last judged, ns; 0 = not now */
	__u64 ran, stolen, withheld;
	__u64 furthest;
	__u64 wake;    /* sum of what wake-ups of idle vCPUs take, ns ... */
	__u64 send;    /* ... of what kicks take their senders, ns ... */
	__u32 wakes;   /* ... over so many vCPUs ... */
	__u32 sends;   /* ... of each */
	__u32 busy;    /* vCPUs that run something, and tasks that wait ... */
	__u32 waiting; /* ... these alone */
	__u32 held;    /* vCPUs that the host holds back */
	__u32 room;    /* parked ones that the host would run at once */
	__u32 parked, pinned;
};

struct step_timer {
	struct bpf_timer timer;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct step_timer);
} step_timers SEC(".maps");

/* Measures how long the host lets a vCPU wait, from the words it publishes. */
static __always_inline void vcpu__observe_wait(struct vcpu_ctx *v, struct entrain_page *page, __u64 seed)
{
	__u64 steal, preemptions, changes, seq;

	seq = ENTRAIN_STATE_SEQ(entrain_read(&page->host_fast.state, seed));
	changes = (seq - v->seen_seq) & 0xffffff;
	/* A wait begins and ends within three changes: with fewer it may not be over. */
	if (changes < 3)
		return;
	preemptions = entrain_read(&page->host_fast.preemptions, seed);
	steal = entrain_read(&page->host_fast.steal, seed) << ENTRAIN_TIME_SHIFT;
	if (v->seen_wait)
		v->host_wait =
			guest_host_wait_mean(v->host_wait, entrain_sub(steal, v->seen_wait),
					     guest_host_waits(changes, entrain_sub(preemptions, v->seen_preemptions)));
	v->seen_seq = seq;
	v->seen_preemptions = preemptions;
	v->seen_wait = steal;
}

/* The host's words of one vCPU, and the guest's word of what it could use. */
static __always_inline void vcpu__observe_host(__s32 cpu, struct vcpu_ctx *v, struct step *s)
{
	struct entrain_page *page = page__of(cpu);
	__u64 seed, state;

	if (!page)
		return;
	page__publish_wants(page, stats.runnable);
	if (!host_features)
		return;
	seed = READ_ONCE(page->link.seed);
	if (host_features & ENTRAIN_F_VCPU_STATE) {
		vcpu__observe_wait(v, page, seed);
		/* The same wait as at the last step: not one of those that each wake-up has. */
		state = entrain_read(&page->host_fast.state, seed);
		s->held += state == v->seen_state && ENTRAIN_STATE_VCPU(state) == ENTRAIN_VCPU_PREEMPTED;
		v->seen_state = state;
		if (v->parked)
			s->room += guest_vcpu_view(host_features, state, entrain_read(&page->host_fast.instant, seed))
					   .instant;
	}
	/* A host that goes by what tasks need, and pCPUs that are not all at their best. */
	if ((host_features & ENTRAIN_F_HOST_SCHED) &&
	    (guest_scale(host_features, entrain_read(&page->host_slow.perf, seed)) < ENTRAIN_CAPACITY_SCALE ||
	     guest_scale(host_features, entrain_read(&page->host_slow.capacity, seed)) < ENTRAIN_CAPACITY_SCALE))
		pacing = 2;
}

/* What a vCPU did since the last step. */
__noinline int vcpu__observe(__s32 cpu, struct step *s)
{
	struct vcpu_ctx *v = vcpu__of(cpu);
	__u64 ran = v->ran, pinned = v->pinned_ran, which, steal;
	__s64 waiting = READ_ONCE(v->waiting);

	if (!s)
		return 0;
	steal = steal_clock__read(cpu, &which);
	v->step_ran = entrain_sub(ran, v->seen_ran);
	v->step_stolen = which == v->seen_which ? entrain_sub(steal, v->seen_steal) : 0;
	v->step_stolen = entrain_min(v->step_stolen, 2 * s->length);
	v->seen_ran = ran;
	v->seen_steal = steal;
	v->seen_which = which;
	if (v->step_ran || v->step_stolen)
		v->stolen_share = (v->stolen_share * 7 + guest_stolen_share(v->step_ran, v->step_stolen)) / 8;
	if (s->window) {
		v->pinned = entrain_sub(pinned, v->seen_pinned) > s->window / 2;
		v->seen_pinned = pinned;
	}
	s->ran += v->step_ran;
	s->stolen += v->step_stolen;
	s->withheld += guest_withheld(v->step_stolen, s->length);
	s->pinned += v->pinned;
	s->parked += v->parked != 0;
	s->busy += v->run_at != 0;
	if (waiting > 0) {
		s->busy += waiting;
		s->waiting += waiting;
	}
	s->wake += v->wake;
	s->wakes += v->wake != 0;
	if (v->after_kick && v->after_stay) {
		s->send += entrain_sub(v->after_kick, v->after_stay);
		s->sends++;
	}
	if (v->run_at && entrain_before(s->furthest, v->clock))
		s->furthest = v->clock;
	vcpu__observe_host(cpu, v, s);
	return 0;
}

/* Parks a vCPU, or takes it into use again. Returns whether it was kicked for one of those that `wait`. */
static __noinline bool vcpu__set_parked(__s32 cpu, struct vcpu_ctx *v, bool parked, bool wait)
{
	if (v->parked == parked)
		return false;
	WRITE_ONCE(v->parked, parked);
	if (parked)
		mask__clear(&mask_kept, cpu);
	else
		mask__set(&mask_kept, cpu);
	stats__count_if(parked, parks);
	stats__count_if(!parked, unparks);
	if (parked) {
		/* What runs there leaves at once. An idle one needs no kick. */
		if (v->run_at)
			vcpu__kick(cpu, SCX_KICK_PREEMPT);
		return false;
	}
	if (wait)
		vcpu__kick(cpu, SCX_KICK_IDLE);
	return wait;
}

/* How many vCPUs to keep now. */
__noinline __u32 vcpud__decide(struct step *s)
{
	struct guest_vcpud_input in = {.nr_vcpus = nr_online};

	if (!s)
		return nr_online;
	in.now = s->now;
	in.floor = s->pinned;
	in.wants = s->busy;
	in.room = s->room;
	in.entitlement = host__entitlement();
	in.ran = s->ran;
	/* What wake-ups take on an idle host, too, is no reason to give a vCPU up. */
	in.stolen = s->withheld;
	/* The time in ns is as good as a random number here, and that of each guest is another. */
	in.random = (s->now * 0x9e3779b97f4a7c15ULL) >> 33;
	stats.keep = guest_vcpud_step(&vcpud, &in);
	entitlement = in.entitlement;
	stats.runnable = in.wants;
	stats.stolen = guest_stolen_share(s->ran, s->stolen);
	return stats.keep;
}

/* Calm or contended from now on, and whether the loads of tasks are kept. */
__noinline int mode__decide(struct step *s)
{
	struct guest_mode_input in = {};
	__u64 contended, send;

	if (!s)
		return 0;
	in.now = s->now;
	in.length = s->length;
	in.ran = s->ran;
	in.stolen = s->withheld;
	in.held = s->held;
	in.parked = s->parked;
	contended = guest_mode_step(&guest_mode, &in);
	/* Written when it changes: every wake-up reads this line. */
	if (mode.contended != contended)
		WRITE_ONCE(mode.contended, contended);
	stats.contended = contended;
	if (s->wakes && mode.wake != s->wake / s->wakes)
		WRITE_ONCE(mode.wake, s->wake / s->wakes);
	send = s->sends ? s->send / s->sends : mode.wake;
	if (mode.send != send)
		WRITE_ONCE(mode.send, send);
	if (mode.furthest != s->furthest)
		WRITE_ONCE(mode.furthest, s->furthest);
	if (s->window && pacing)
		pacing--;
	if (mode.paced != (pacing != 0))
		WRITE_ONCE(mode.paced, pacing != 0);
	return 0;
}

/*
 * Parks what is more than `keep`, and takes into use what is less. As many are kicked as there are tasks that wait: a
 * kick is an entry into the guest, and one that finds nothing halts again.
 */
static __always_inline void vcpud__park(__u32 keep, __u32 pinned_all, __u32 waiting)
{
	__u32 free_before = 0;
	int i;

	bpf_for (i, 0, nr_vcpus) {
		__u32 cpu = (vcpud.first + i) % nr_vcpus;
		struct vcpu_ctx *v = vcpu__of(cpu);

		if (v->offline)
			continue;
		waiting -= vcpu__set_parked(cpu, v, !guest_vcpud_kept(v->pinned != 0, pinned_all, free_before, keep),
					    waiting != 0);
		free_before += !v->pinned;
	}
}

/* The next step is taken in time, whatever the tasks of this guest do. */
static __always_inline void step__arm(void)
{
	__u32 key = 0;
	struct step_timer *step = bpf_map_lookup_elem(&step_timers, &key);

	if (step)
		bpf_timer_start(&step->timer, STEP_NS, 0);
}

/* One step for the whole guest, by whichever vCPU comes first. */
__noinline int vcpud__step(__u64 now)
{
	__u64 last = READ_ONCE(step_at);
	struct step s = {.now = now, .furthest = mode.furthest};
	__u32 keep, was = vcpud.keep, first = vcpud.first;
	int i;

	/* Clocks of vCPUs differ: one may be behind the last step. */
	s.length = entrain_sub(now, last);
	if (s.length < (mode.contended ? STEP_NS : STEP_CALM_NS) ||
	    __sync_val_compare_and_swap(&step_at, last, now) != last)
		return 0;
	host__look(now);
	s.window = entrain_sub(now, window_at);
	if (s.window < PINNED_WINDOW_NS)
		s.window = 0;
	else
		window_at = now;

	bpf_for (i, 0, nr_vcpus) {
		if (!vcpu__of(i)->offline)
			vcpu__observe(i, &s);
	}
	mode__decide(&s);
	keep = vcpud__decide(&s);
	/* All were in use, and stay it. */
	if (use_vcpud && (keep != was || vcpud.first != first || keep < nr_online || s.parked))
		vcpud__park(keep, s.pinned, s.waiting);
	if (s.parked && s.waiting && (host_features & ENTRAIN_F_INSTANT))
		step__arm();
	return 0;
}

static int step__timer(void *map, __u32 *key, struct step_timer *step)
{
	vcpud__step(sched__now());
	return 0;
}

/* Where one may sleep. */
static __always_inline void step__prepare(void)
{
	__u32 key = 0;
	struct step_timer *step = bpf_map_lookup_elem(&step_timers, &key);

	if (!step)
		return;
	/* A second attachment finds it made. */
	bpf_timer_init(&step->timer, &step_timers, CLOCK_MONOTONIC);
	bpf_timer_set_callback(&step->timer, step__timer);
}

#endif /* ENTRAIN_GUEST_SCHED_PARK_H */
