/* SPDX-License-Identifier: GPL-2.0-only */
/* Events and names, on their way to user space. */
#ifndef ENTRAIN_RECORD_EVENT_H
#define ENTRAIN_RECORD_EVENT_H

#include "interface.h"
#include "task.h"

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 8 << 20);
} events SEC(".maps");

/* Never used: what goes through a ring buffer has no BTF of its own, and user space has its types from BTF. */
struct record_event record_event_layout;

/* Events that found no room in the ring buffer. */
__u64 dropped = 0;

/* Thread -> the name that was told of it. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, RECORD_NAMES);
	__type(key, __u32);
	__type(value, struct record_name);
} named SEC(".maps");

static __always_inline void event__emit(__u8 kind, __u8 flags, __u32 cpu, __u32 tid, __u32 other, __u64 arg)
{
	struct record_event *event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);

	if (!event) {
		__sync_fetch_and_add(&dropped, 1);
		return;
	}
	event->ns = bpf_ktime_get_ns();
	event->kind = kind;
	event->flags = flags;
	event->cpu = cpu;
	event->tid = tid;
	event->other = other;
	event->pad = 0;
	event->arg = arg;
	/* User space looks every 50 ms; waking it up from here would disturb what is recorded. */
	bpf_ringbuf_submit(event, BPF_RB_NO_WAKEUP);
}

/* Tells a thread's name when it is met first, and again when it has changed: by exec, or as another has its number. */
static __always_inline void name__tell(struct task_struct *task, __u32 tid)
{
	struct record_name name = {.tgid = task->tgid, .kind = RECORD_NAME, .tid = tid};
	struct task_struct___record *details = (void *)task;
	const __u64 *new = (const void *)name.comm, *old;
	struct record_name *told;

	if (!tid)
		return;
	BPF_CORE_READ_INTO(&name.comm, details, comm);
	told = bpf_map_lookup_elem(&named, &tid);
	if (told) {
		old = (const void *)told->comm;
		if (told->tgid == name.tgid && old[0] == new[0] && old[1] == new[1])
			return;
	}
	if (!bpf_ringbuf_output(&events, &name, sizeof(name), BPF_RB_NO_WAKEUP))
		bpf_map_update_elem(&named, &tid, &name, BPF_ANY);
}

#endif /* ENTRAIN_RECORD_EVENT_H */
