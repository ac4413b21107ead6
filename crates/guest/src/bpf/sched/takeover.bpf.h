/* SPDX-License-Identifier: GPL-2.0-only */
/* What a vCPU takes over from the queues of the others. The decision is guest_take_over() of guest_wake.h. */
#ifndef ENTRAIN_GUEST_SCHED_TAKEOVER_H
#define ENTRAIN_GUEST_SCHED_TAKEOVER_H

#include "queue.bpf.h"
#include "watch.bpf.h"

/* Takes the head of another vCPU's queue when the policy says so; true when this one has got a task. */
__noinline int takeover__from(__s32 other, int own_work, __u64 own_vtime)
{
	struct vcpu_ctx *v = vcpu__of(other);
	struct guest_takeover t = {
		.own_work = own_work,
		.own_vtime = own_vtime,
		.slice = GUEST_SLICE_NS,
		.victim_parked = v->parked != 0,
		.victim_idle = !v->run_at,
	};
	struct guest_vcpu_view view;

	if (READ_ONCE(v->waiting_open) <= 0)
		return false;
	view = host__vcpu_view(other);
	t.victim_state = view.state;
	t.victim_instant = view.instant;
	/* All of those that wait there, or one of them goes. */
	t.stays = !own_work && vcpu__frees_soon(v, READ_ONCE(v->waiting_open) - 1);
	if (t.stays)
		watch__begin(other);
	if (own_work) {
		t.head_vtime = queue__head_vtime(QUEUE_OPEN(other));
		if (t.head_vtime == NO_HEAD)
			return false;
	}
	if (!guest_take_over(&t) || !queue__take_first(QUEUE_OPEN(other)))
		return false;
	stats__count(takeovers);
	if (t.victim_parked || view.state == ENTRAIN_VCPU_PREEMPTED)
		stats__count(rescues);
	return true;
}

/* Looks at the queues that hold something, of one word of vCPUs; those of the same cache, or those of others. */
__noinline int takeover__word(__s32 cpu, __u32 word, int far, int own_work, __u64 own_vtime)
{
	struct vcpu_ctx *v = vcpu__of(cpu);
	__u64 bits = bits__without(mask__word(&mask_waiting, word), word, cpu);
	int i;

	bpf_for (i, 0, own_work ? LOOK_AT_BUSY : 64) {
		__s32 other;

		if (!bits)
			break;
		other = bits__next(bits, v->look + 1);
		bits &= ~(1ULL << other);
		v->look = other;
		other += word * 64;
		if ((vcpu__of(other)->llc != v->llc) == !!far && takeover__from(other, own_work, own_vtime))
			return true;
	}
	return false;
}

/*
 * Looks for work of others: at a few when there is own work, at all before the vCPU idles. With own work once a tick: a
 * look costs more than most wake-ups take.
 */
static __noinline bool takeover__look(__s32 cpu, int own_work, __u64 own_vtime)
{
	struct vcpu_ctx *v = vcpu__of(cpu);
	int far, i;

	v->compare = 0;
	bpf_for (far, 0, nr_llcs > 1 ? 2 : 1) {
		bpf_for (i, 0, nr_words) {
			__u32 word = ((__u32)cpu / 64 + i) % nr_words;

			if (takeover__word(cpu, word, far, own_work, own_vtime))
				return true;
		}
	}
	return false;
}

#endif /* ENTRAIN_GUEST_SCHED_TAKEOVER_H */
