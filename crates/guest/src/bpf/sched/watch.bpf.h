/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Tasks that wait for a vCPU which is to be free sooner than a kick takes (guest_wake_stays). That is a mean: who runs
 * there may stay much longer this time, and those that come later may go first. So a timer looks whether somebody still
 * waits, and has an idle vCPU take one then.
 */
#ifndef ENTRAIN_GUEST_SCHED_WATCH_H
#define ENTRAIN_GUEST_SCHED_WATCH_H

#include "helper.bpf.h"

struct watch_timer {
	struct bpf_timer timer;
};

/* One for each vCPU that others wait for. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, GUEST_MAX_CPUS);
	__type(key, __u32);
	__type(value, struct watch_timer);
} watch_timers SEC(".maps");

static __always_inline void watch__arm(struct watch_timer *watch)
{
	bpf_timer_start(&watch->timer, mode__watch(), 0);
}

/*
 * A task waits for that vCPU, and nobody is told of it. The count of those that wait has been raised before, as a
 * barrier: it is seen by the look that ends the watch, or the watch is begun here.
 */
static __noinline void watch__begin(__s32 cpu)
{
	struct vcpu_ctx *v = vcpu__of(cpu);
	struct watch_timer *watch;
	__u32 key = cpu;

	if (!READ_ONCE(v->stayed))
		WRITE_ONCE(v->stayed, 1);
	if (READ_ONCE(v->watched) || __sync_lock_test_and_set(&v->watched, 1))
		return;
	watch = bpf_map_lookup_elem(&watch_timers, &key);
	if (watch)
		watch__arm(watch);
}

/*
 * Whether somebody waits there who was to run by now: for one who stays for longer than most, or since the last look,
 * for the queue has not been empty in between.
 */
static __always_inline bool watch__is_late(struct vcpu_ctx *v)
{
	__s64 waiting = READ_ONCE(v->waiting_open);
	bool emptied = v->emptied;

	v->emptied = 0;
	return waiting > 0 && (!emptied || !vcpu__frees_soon(v, waiting - 1));
}

static int watch__look(void *map, __u32 *key, struct watch_timer *watch)
{
	__s32 cpu = *key;
	struct vcpu_ctx *v = vcpu__of(cpu);
	bool late = watch__is_late(v);

	if (v->crowded != late)
		WRITE_ONCE(v->crowded, late);
	if (late)
		helper__wake_for(cpu, NULL);
	/* As long as others come, it goes on: to begin it anew costs an interrupt to itself. */
	if (!v->stayed && __sync_lock_test_and_set(&v->watched, 0) && READ_ONCE(v->waiting_open) <= 0) {
		/* Who was late has been taken meanwhile: it is crowded no more, and nobody would look again. */
		WRITE_ONCE(v->crowded, 0);
		return 0;
	}
	v->stayed = 0;
	WRITE_ONCE(v->watched, 1);
	watch__arm(watch);
	return 0;
}

/* Where one may sleep. A second attachment finds it made. */
static __always_inline void watch__prepare(__u32 cpu)
{
	struct watch_timer *watch = bpf_map_lookup_elem(&watch_timers, &cpu);

	if (!watch)
		return;
	bpf_timer_init(&watch->timer, &watch_timers, CLOCK_MONOTONIC);
	bpf_timer_set_callback(&watch->timer, watch__look);
}

#endif /* ENTRAIN_GUEST_SCHED_WATCH_H */
