// SPDX-License-Identifier: GPL-2.0-only
/*
 * Attributes every interruption of the watched CPUs to its cause.
 *
 * Cost: an event on another CPU, or for another CPU, ends after one test of a bit mask. Nothing is sampled and nothing
 * runs by itself, so a CPU that is not interrupted is not touched. Programs whose tracepoint the kernel lacks are not
 * loaded (src/watch/programs.rs).
 */
#include "watch_sender.h"
#include "watch_config.h"
#include "watch_work.h"
#include "watch_irq.h"

char LICENSE[] SEC("license") = "GPL";

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

	if (!enabled || !watched(((struct task_struct___watch *)task)->wake_cpu))
		return 0;
	/* Real-time tasks of user space are what the CPU is there for; their wake-ups are their own business. */
	if (!(task->flags & PF_KTHREAD) && task->prio < MAX_RT_PRIO)
		return 0;
	pid = task->pid;
	sender_fill(ctx, &sender);
	bpf_map_update_elem(&wakers, &pid, &sender, BPF_ANY);
	return 0;
}

/*
 * Whether `next` interrupts somebody. Kernel threads always do. Of user space's tasks, all but the owners; where no
 * owners are named, those that run while another one was preempted, but not a real-time task that takes the CPU from an
 * ordinary one: then it is the owner itself that comes back.
 */
static __always_inline bool interrupts(const struct cpu_state *state, struct task_struct *prev,
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
	struct cpu_state *state = here();
	struct sender *waker;
	bool was_interrupting;
	__u32 pid;
	__u64 now;

	if (!state)
		return 0;
	now = bpf_ktime_get_ns();
	/* Only on PREEMPT_RT; the rest of such a softirq counts as its thread's own time. */
	if (state->soft.start)
		frame_finish(state, &state->soft);
	if (state->work.start)
		work_pause(state, prev->pid, now);
	was_interrupting = state->task.start != 0;
	frame_finish(state, &state->task);

	pid = next->pid;
	if (!pid || pid == state->victim)
		state->victim = 0;
	else if (!was_interrupting && prev->pid && !(prev->flags & PF_KTHREAD) && (preempt || !prev_state))
		state->victim = prev->pid;
	if (!interrupts(state, prev, next))
		return 0;
	frame_open(state, &state->task, next->flags & PF_KTHREAD ? WATCH_KTHREAD : WATCH_TASK, now);
	bpf_probe_read_kernel_str(state->task.key.what, WATCH_COMM, ((struct task_struct___watch *)next)->comm);
	state->task.key.detail = next->prio;
	waker = bpf_map_lookup_elem(&wakers, &pid);
	if (waker) {
		sender_put(&state->task, waker);
		bpf_map_delete_elem(&wakers, &pid);
	} else {
		state->task.pid = pid;
	}
	if (next->flags & PF_WQ_WORKER)
		work_resume(state, pid, now);
	return 0;
}
