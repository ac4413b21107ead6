/* SPDX-License-Identifier: GPL-2.0-only */
/* Tasks and kernel threads: who wakes them, and which of them interrupt whom. */
#ifndef ENTRAIN_ISOLATE_WATCH_TASK_H
#define ENTRAIN_ISOLATE_WATCH_TASK_H

#include "sender.bpf.h"
#include "work.bpf.h"

#define PF_WQ_WORKER 0x00000020
#define PF_KTHREAD   0x00200000
/* Priorities below this are real-time or deadline ones. */
#define MAX_RT_PRIO  100

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, __u32);
} owners SEC(".maps");

SEC("tp_btf/sched_waking")
int BPF_PROG(watch_waking, struct task_struct *task)
{
	struct sender sender = {};
	__u32 pid;

	if (!enabled || !cpu__is_watched(((struct task_struct___watch *)task)->wake_cpu))
		return 0;
	/* Real-time tasks of user space are what the CPU is there for; their wake-ups are their own business. */
	if (!(task->flags & PF_KTHREAD) && task->prio < MAX_RT_PRIO)
		return 0;
	pid = task->pid;
	sender__fill(ctx, &sender);
	bpf_map_update_elem(&wakers, &pid, &sender, BPF_ANY);
	return 0;
}

/*
 * Whether `next` interrupts somebody. Kernel threads always do. Of user space's tasks, all but the owners; where no
 * owners are named, those that run while another one was preempted, but not a real-time task that takes the CPU from an
 * ordinary one: then it is the owner itself that comes back.
 */
static __always_inline bool task__interrupts(const struct cpu_state *state, struct task_struct *prev,
					     struct task_struct *next)
{
	__u32 pid = next->pid;

	if (!pid)
		return false;
	if (has_owners)
		return !bpf_map_lookup_elem(&owners, &pid);
	if (next->flags & PF_KTHREAD)
		return true;
	if (!state->victim || state->victim == pid)
		return false;
	return next->prio >= MAX_RT_PRIO || (state->victim == prev->pid && prev->prio < MAX_RT_PRIO);
}

SEC("tp_btf/sched_switch")
int BPF_PROG(watch_switch, bool preempt, struct task_struct *prev, struct task_struct *next, unsigned int prev_state)
{
	struct cpu_state *state = cpu_state__here();
	struct sender *waker;
	bool was_interrupting;
	__u32 pid;
	__u64 now;

	if (!state)
		return 0;
	now = bpf_ktime_get_ns();
	/* Only on PREEMPT_RT; the rest of such a softirq counts as its thread's own time. */
	if (state->soft.start)
		frame__finish(state, &state->soft);
	if (state->work.start)
		work__pause(state, prev->pid, now);
	was_interrupting = state->task.start != 0;
	frame__finish(state, &state->task);

	pid = next->pid;
	if (!pid || pid == state->victim)
		state->victim = 0;
	else if (!was_interrupting && prev->pid && !(prev->flags & PF_KTHREAD) && (preempt || !prev_state))
		state->victim = prev->pid;
	if (!task__interrupts(state, prev, next))
		return 0;
	frame__open(state, &state->task, next->flags & PF_KTHREAD ? WATCH_KTHREAD : WATCH_TASK, now);
	bpf_probe_read_kernel_str(state->task.key.what, WATCH_COMM, ((struct task_struct___watch *)next)->comm);
	state->task.key.detail = next->prio;
	waker = bpf_map_lookup_elem(&wakers, &pid);
	if (waker) {
		sender__put(&state->task, waker);
		bpf_map_delete_elem(&wakers, &pid);
	} else {
		state->task.pid = pid;
	}
	if (next->flags & PF_WQ_WORKER)
		work__resume(state, pid, now);
	return 0;
}

#endif /* ENTRAIN_ISOLATE_WATCH_TASK_H */
