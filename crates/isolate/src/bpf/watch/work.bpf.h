/* SPDX-License-Identifier: GPL-2.0-only */
/* Work items: from the queueing, on whatever CPU, to the end of the function on a watched one. */
#ifndef ENTRAIN_ISOLATE_WATCH_WORK_H
#define ENTRAIN_ISOLATE_WATCH_WORK_H

#include "sender.bpf.h"
#include "config.h"

/* Worker thread -> the work item that it was in when it left its CPU, with the time it has taken so far. */
struct unfinished {
	struct frame frame;
	__u64 first; /* when it started */
	__u64 ns;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, struct unfinished);
} working SEC(".maps");

SEC("tp_btf/workqueue_queue_work")
int BPF_PROG(watch_queue_work, int req_cpu, struct pool_workqueue *pwq, struct work_struct *work)
{
	struct sender sender = {};
	__u64 id = (__u64)work;
	int cpu;

	if (!enabled)
		return 0;
	/* The requested CPU may be "any"; the pool is where the work has really gone. */
	cpu = BPF_CORE_READ(pwq, pool, cpu);
	if (cpu < 0 ? !unbound : !cpu__is_watched(cpu))
		return 0;
	sender__fill(ctx, &sender);
	sender.unbound = cpu < 0;
	bpf_probe_read_kernel_str(sender.what, sizeof(sender.what), &BPF_CORE_READ(pwq, wq)->name);
	bpf_map_update_elem(&queued, &id, &sender, BPF_ANY);
	return 0;
}

SEC("tp_btf/workqueue_execute_start")
int BPF_PROG(watch_execute_start, struct work_struct *work)
{
	struct cpu_state *state = cpu_state__here();
	struct unfinished fresh = {};
	struct sender *sender;
	__u64 id = (__u64)work;
	__u32 pid;

	if (!state)
		return 0;
	frame__open(state, &state->work, WATCH_WORK, bpf_ktime_get_ns());
	state->work.key.subject = (__u64)BPF_CORE_READ(work, func);
	sender = bpf_map_lookup_elem(&queued, &id);
	if (sender) {
		sender__put(&state->work, sender);
		__builtin_memcpy(state->work.key.what, sender->what, WATCH_COMM);
		state->work.key.detail = sender->unbound;
		bpf_map_delete_elem(&queued, &id);
	}
	pid = bpf_get_current_pid_tgid();
	__builtin_memcpy(&fresh.frame, &state->work, sizeof(fresh.frame));
	fresh.first = state->work.start;
	bpf_map_update_elem(&working, &pid, &fresh, BPF_ANY);
	return 0;
}

SEC("tp_btf/workqueue_execute_end")
int BPF_PROG(watch_execute_end, struct work_struct *work)
{
	struct cpu_state *state = cpu_state__here();
	struct unfinished *item;
	__u32 pid;
	__u64 own;

	if (!state || !state->work.start)
		return 0;
	pid = bpf_get_current_pid_tgid();
	item = bpf_map_lookup_elem(&working, &pid);
	own = frame__close(state, &state->work, bpf_ktime_get_ns());
	if (item) {
		total__add(state, &item->frame, item->first, item->ns + own);
		bpf_map_delete_elem(&working, &pid);
	}
	return 0;
}

/* A worker leaves the CPU in the middle of a work item: what it did so far is kept with the thread. */
static __always_inline void work__pause(struct cpu_state *state, __u32 pid, __u64 now)
{
	struct unfinished *item = bpf_map_lookup_elem(&working, &pid);
	__u64 own = frame__close(state, &state->work, now);

	if (item)
		item->ns += own;
}

static __always_inline void work__resume(struct cpu_state *state, __u32 pid, __u64 now)
{
	if (!bpf_map_lookup_elem(&working, &pid))
		return;
	frame__open(state, &state->work, WATCH_WORK, now);
}

#endif /* ENTRAIN_ISOLATE_WATCH_WORK_H */
