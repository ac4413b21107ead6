/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The books of a watched CPU: frames that nest, their own times, totals by cause and the timeline.
 *
 * Tasks, work items, softirqs and interrupts nest in this order, at most one of each at a time. A frame's own time is
 * its length less that of the frames inside it; `inner` counts the own times of all frames that ended, so the
 * difference since the frame's begin is what to take off.
 */
#ifndef ENTRAIN_ISOLATE_WATCH_STATE_H
#define ENTRAIN_ISOLATE_WATCH_STATE_H

#include "config.h"
#include "interface.h"

/* Interruptions per second and CPU that go into the timeline; the totals hold all of them. */
#define EVENTS_PER_SECOND 2000
#define SECOND		  1000000000ULL

struct frame {
	__u64 start; /* 0: not open */
	__u64 inner; /* `inner` of the CPU at its begin */
	struct watch_key key;
	__u32 pid;
	__u32 pad;
};

struct cpu_state {
	__u64 inner;
	struct frame task, work, soft, irq;
	__u64 window; /* begin of the second that `in_window` counts */
	__u32 in_window;
	__u32 victim; /* user task that was preempted while it could run; 0: none */
	__u32 dep;    /* why the tick could not be stopped, TICK_DEP_MASK_* */
	__u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct cpu_state);
} states SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, struct watch_key);
	__type(value, struct watch_total);
} totals SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} events SEC(".maps");

struct watch_lost lost;
/* Never used: what goes through a ring buffer has no BTF of its own, and user space has its types from BTF. */
struct watch_event watch_event_layout;

static __always_inline bool cpu__is_watched(__u32 cpu)
{
	return cpu < WATCH_CPU_WORDS * 64 && cpus[cpu >> 6] >> (cpu & 63) & 1;
}

/* The books of this CPU; NULL when it is not watched. The test that all other CPUs' events end with. */
static __always_inline struct cpu_state *cpu_state__here(void)
{
	__u32 zero = 0;

	if (!enabled || !cpu__is_watched(bpf_get_smp_processor_id()))
		return NULL;
	return bpf_map_lookup_elem(&states, &zero);
}

static __always_inline void event__remember(struct cpu_state *state, const struct frame *frame, __u64 start, __u64 ns)
{
	struct watch_event *event = NULL;

	if (start - state->window >= SECOND) {
		state->window = start;
		state->in_window = 0;
	}
	if (state->in_window++ < EVENTS_PER_SECOND)
		event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
	if (!event) {
		__sync_fetch_and_add(&lost.events, 1);
		return;
	}
	event->start = start;
	event->ns = ns;
	__builtin_memcpy(&event->key, &frame->key, sizeof(event->key));
	event->pid = frame->pid;
	event->pad = 0;
	/* The reader looks by itself: waking it would be an interruption of this program's own making. */
	bpf_ringbuf_submit(event, BPF_RB_NO_WAKEUP);
}

/* Adds an interruption of `ns` own time to its cause. */
static __always_inline void total__add(struct cpu_state *state, const struct frame *frame, __u64 start, __u64 ns)
{
	struct watch_total *total = bpf_map_lookup_elem(&totals, &frame->key);

	if (!total) {
		struct watch_total empty = {};

		bpf_map_update_elem(&totals, &frame->key, &empty, BPF_NOEXIST);
		total = bpf_map_lookup_elem(&totals, &frame->key);
	}
	if (total) {
		/* The CPU is part of the key, so nobody else writes here. */
		total->count++;
		total->ns += ns;
		if (ns > total->max_ns)
			total->max_ns = ns;
		total->last = start;
		total->pid = frame->pid;
	} else {
		__sync_fetch_and_add(&lost.totals, 1);
	}
	event__remember(state, frame, start, ns);
}

/* Opens a frame for a cause that is filled in from here on. */
static __always_inline void frame__open(struct cpu_state *state, struct frame *frame, __u32 kind, __u64 now)
{
	__builtin_memset(&frame->key, 0, sizeof(frame->key));
	frame->key.cpu = bpf_get_smp_processor_id();
	frame->key.kind = kind;
	frame->key.stack = -1;
	frame->pid = 0;
	frame->inner = state->inner;
	frame->start = now;
}

/* Ends a frame and returns its own time. */
static __always_inline __u64 frame__close(struct cpu_state *state, struct frame *frame, __u64 now)
{
	__u64 wall = now - frame->start, inside = state->inner - frame->inner;
	__u64 own = wall > inside ? wall - inside : 0;

	state->inner += own;
	frame->start = 0;
	return own;
}

/* Ends a frame that is the whole of an interruption. */
static __always_inline void frame__finish(struct cpu_state *state, struct frame *frame)
{
	__u64 start = frame->start;

	if (start)
		total__add(state, frame, start, frame__close(state, frame, bpf_ktime_get_ns()));
}

#endif /* ENTRAIN_ISOLATE_WATCH_STATE_H */
