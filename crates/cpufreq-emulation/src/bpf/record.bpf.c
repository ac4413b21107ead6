// SPDX-License-Identifier: GPL-2.0-only
/* Tells when and where some threads ran: vCPUs, for experiments on placement. */
#include "kernel.h"
#include "record.h"

char LICENSE[] SEC("license") = "GPL";

const volatile __u32 threads[MAX_THREADS];
const volatile __u32 nr_threads;
/* Events that found the buffer full. */
__u64 lost;

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} events SEC(".maps");

/* Never used: what goes through a ring buffer has no BTF of its own, and user space has its types from BTF. */
struct record_event record_event_layout;

/* The index of a thread that is followed; -1: it is none. */
static __always_inline int thread__slot(const struct task_struct *task)
{
	__u32 slot;

	for (slot = 0; slot < MAX_THREADS; slot++)
		if (slot < nr_threads && threads[slot] == (__u32)task->pid)
			return (int)slot;
	return -1;
}

static __always_inline void event__tell(int slot, __u32 kind)
{
	struct record_event *event;

	if (slot < 0)
		return;
	event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
	if (!event) {
		__sync_fetch_and_add(&lost, 1);
		return;
	}
	event->at_ns = bpf_ktime_get_ns();
	event->slot = (__u32)slot;
	event->cpu = bpf_get_smp_processor_id();
	event->kind = kind;
	event->unused = 0;
	/* Not to wake the reader for each: it would take the CPU from those that are followed. */
	bpf_ringbuf_submit(event, BPF_RB_NO_WAKEUP);
}

SEC("tp_btf/sched_switch")
int BPF_PROG(record_switch, bool preempt, struct task_struct *prev, struct task_struct *next, unsigned int prev_state)
{
	event__tell(thread__slot(prev), preempt || !prev_state ? RECORD_PREEMPTED : RECORD_SLEEPS);
	event__tell(thread__slot(next), RECORD_RUNS);
	return 0;
}

SEC("tp_btf/sched_wakeup")
int BPF_PROG(record_wakeup, struct task_struct *task)
{
	event__tell(thread__slot(task), RECORD_WAKES);
	return 0;
}
