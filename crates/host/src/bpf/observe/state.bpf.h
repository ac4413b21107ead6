/* SPDX-License-Identifier: GPL-2.0-only */
/* What the observing programs share: the pCPUs, the cache domains, and the daemon's ear. */
#ifndef ENTRAIN_OBSERVE_STATE_BPF_H
#define ENTRAIN_OBSERVE_STATE_BPF_H

#include "../vcpus.bpf.h"

/* More features, set by the daemon before loading: the self-test's. */
const volatile __u64 extra_features = 0;

/* The scheduler's while it has the host's tasks, by the daemon: it may end, and come back. */
__u64 mode_features = 0;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* possible CPUs, by the daemon */
	__type(key, __u32);
	__type(value, struct entrain_pcpu);
} pcpus SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* possible CPUs, by the daemon */
	__type(key, __u32);
	__type(value, struct entrain_domain);
} domains SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 65536);
} events SEC(".maps");

/* Never used: a record of a ring buffer has no BTF of its own, and its type reaches Rust through the skeleton. */
struct entrain_event entrain_event_layout;

/* Events that found no room, for the metrics. */
__u64 dropped_events = 0;

/* A word that names a vCPU by its index in `vcpus`, or none: 0, as zeroed memory has it. */
static __always_inline __u32 slot__of(__u32 index)
{
	return index + 1;
}

/* The index; only of a slot that names a vCPU. */
static __always_inline __u32 slot__index(__u32 slot)
{
	return slot - 1;
}

static __always_inline void event__report(__u32 kind, int tid, int tgid, __u64 arg)
{
	struct entrain_event *event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);

	if (!event) {
		__sync_fetch_and_add(&dropped_events, 1);
		return;
	}
	event->kind = kind;
	event->tid = tid;
	event->tgid = tgid;
	event->pad = 0;
	event->arg = arg;
	bpf_ringbuf_submit(event, 0);
}

#endif /* ENTRAIN_OBSERVE_STATE_BPF_H */
