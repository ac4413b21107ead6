// SPDX-License-Identifier: GPL-2.0-only
/*
 * Attributes every interruption of the watched CPUs to its cause.
 *
 * Cost: an event on another CPU, or for another CPU, ends after one test of a bit mask. Nothing is sampled and nothing
 * runs by itself, so a CPU that is not interrupted is not touched. Programs whose tracepoint the kernel lacks are not
 * loaded (src/watch/programs.rs).
 */
#include "watch_sender.h"

char LICENSE[] SEC("license") = "GPL";

#define PF_WQ_WORKER 0x00000020
#define PF_KTHREAD   0x00200000
/* Priorities below this are real-time or deadline ones. */
#define MAX_RT_PRIO 100

/* Possible CPUs. */
const volatile __u32 nr_cpus = 1;
/* Work of unbound workqueues may run on a watched CPU: note who queues it. */
const volatile __u32 unbound = 0;
/* Address of the kernel's tick handler; 0: not found. */
const volatile __u64 tick_handler = 0;
/* Threads that the watched CPUs are for are named: every other one interrupts. */
const volatile __u32 has_owners = 0;

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct task_struct___watch {
	int wake_cpu;
	char comm[16];
};

struct work_struct {
	void *func;
};

struct worker_pool {
	int cpu;
};

struct workqueue_struct {
	char name[1];
};

struct pool_workqueue {
	struct worker_pool *pool;
	struct workqueue_struct *wq;
};

struct irqaction {
	const char *name;
};

struct hrtimer {
	void *function;
};

struct timer_list {
	void *function;
};

struct cpumask___watch {
	unsigned long bits[1];
};

#pragma clang attribute pop

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, __u32);
} owners SEC(".maps");

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

/* ---- Work items ---- */

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
	if (cpu < 0 ? !unbound : !watched(cpu))
		return 0;
	sender_fill(ctx, &sender);
	sender.unbound = cpu < 0;
	bpf_probe_read_kernel_str(sender.what, sizeof(sender.what), &BPF_CORE_READ(pwq, wq)->name);
	bpf_map_update_elem(&queued, &id, &sender, BPF_ANY);
	return 0;
}

SEC("tp_btf/workqueue_execute_start")
int BPF_PROG(watch_execute_start, struct work_struct *work)
{
	struct cpu_state *state = here();
	struct unfinished fresh = {};
	struct sender *sender;
	__u64 id = (__u64)work;
	__u32 pid;

	if (!state)
		return 0;
	frame_open(state, &state->work, WATCH_WORK, bpf_ktime_get_ns());
	state->work.key.subject = (__u64)BPF_CORE_READ(work, func);
	sender = bpf_map_lookup_elem(&queued, &id);
	if (sender) {
		sender_put(&state->work, sender);
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
	struct cpu_state *state = here();
	struct unfinished *item;
	__u32 pid;
	__u64 own;

	if (!state || !state->work.start)
		return 0;
	pid = bpf_get_current_pid_tgid();
	item = bpf_map_lookup_elem(&working, &pid);
	own = frame_close(state, &state->work, bpf_ktime_get_ns());
	if (item) {
		account(state, &item->frame, item->first, item->ns + own);
		bpf_map_delete_elem(&working, &pid);
	}
	return 0;
}

/* A worker leaves the CPU in the middle of a work item: what it did so far is kept with the thread. */
static __always_inline void work_pause(struct cpu_state *state, __u32 pid, __u64 now)
{
	struct unfinished *item = bpf_map_lookup_elem(&working, &pid);
	__u64 own = frame_close(state, &state->work, now);

	if (item)
		item->ns += own;
}

static __always_inline void work_resume(struct cpu_state *state, __u32 pid, __u64 now)
{
	if (!bpf_map_lookup_elem(&working, &pid))
		return;
	frame_open(state, &state->work, WATCH_WORK, now);
}

/* ---- Tasks ---- */

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
static __always_inline bool interrupts(const struct cpu_state *state, struct task_struct *prev, struct task_struct *next)
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

/* ---- Inter-processor interrupts ---- */

static __always_inline void note_ipi(void *ctx, __u32 cpu, void *callback)
{
	/* A reschedule IPI has no callback. */
	struct ipi ipi = {.cpu = cpu, .kind = callback ? WATCH_CALL : WATCH_RESCHED};
	struct sender sender = {};

	sender_fill(ctx, &sender);
	bpf_map_update_elem(&sent, &ipi, &sender, BPF_ANY);
}

SEC("tp_btf/ipi_send_cpu")
int BPF_PROG(watch_send_cpu, unsigned int cpu, unsigned long callsite, void *callback)
{
	if (enabled && watched(cpu))
		note_ipi(ctx, cpu, callback);
	return 0;
}

SEC("tp_btf/ipi_send_cpumask")
int BPF_PROG(watch_send_cpumask, const struct cpumask *mask, unsigned long callsite, void *callback)
{
	int word, bit, words = (nr_cpus + 63) / 64;

	if (!enabled)
		return 0;
	bpf_for (word, 0, words) {
		__u64 bits = 0;

		if (word < 0 || word >= WATCH_CPU_WORDS || !cpus[word])
			continue;
		bpf_probe_read_kernel(&bits, sizeof(bits), (void *)mask + word * sizeof(bits));
		bits &= cpus[word];
		if (!bits)
			continue;
		bpf_for (bit, 0, 64) {
			if (bits >> bit & 1)
				note_ipi(ctx, word * 64 + bit, callback);
		}
	}
	return 0;
}

/* Raw: the verifier lets no typed program read an argument that points to a function. */
SEC("raw_tp/csd_queue_cpu")
int BPF_PROG(watch_queue_call, unsigned int cpu, unsigned long callsite, void *func, void *csd)
{
	struct sender sender = {};
	__u64 id = (__u64)csd;

	if (!enabled || !watched(cpu))
		return 0;
	sender_fill(ctx, &sender);
	sender.func = (__u64)func;
	bpf_map_update_elem(&calls, &id, &sender, BPF_ANY);
	return 0;
}

/* One interrupt may serve several calls; it counts for the first, without which it would not have come. */
SEC("raw_tp/csd_function_entry")
int BPF_PROG(watch_call, void *func, void *csd)
{
	struct cpu_state *state = here();
	__u64 id = (__u64)csd;
	struct sender *sender;

	if (!state)
		return 0;
	sender = bpf_map_lookup_elem(&calls, &id);
	if (state->irq.start && state->irq.key.kind == WATCH_CALL && !state->irq.key.subject) {
		state->irq.key.subject = (__u64)func;
		if (sender)
			sender_put(&state->irq, sender);
	}
	if (sender)
		bpf_map_delete_elem(&calls, &id);
	return 0;
}

/* ---- Interrupts ---- */

static __always_inline struct frame *irq_enter(__u32 kind, __u32 detail)
{
	struct cpu_state *state = here();
	struct sender *sender;
	struct ipi ipi = {.kind = kind};

	if (!state)
		return NULL;
	frame_open(state, &state->irq, kind, bpf_ktime_get_ns());
	state->irq.key.detail = detail;
	if (kind == WATCH_CALL || kind == WATCH_RESCHED) {
		ipi.cpu = state->irq.key.cpu;
		sender = bpf_map_lookup_elem(&sent, &ipi);
		if (sender) {
			sender_put(&state->irq, sender);
			bpf_map_delete_elem(&sent, &ipi);
		}
	}
	return &state->irq;
}

static __always_inline void irq_leave(void)
{
	struct cpu_state *state = here();

	if (!state)
		return;
	if (state->irq.key.kind == WATCH_TIMER && (!tick_handler || state->irq.key.subject == tick_handler))
		state->irq.key.detail = state->dep;
	frame_finish(state, &state->irq);
}

#define VECTOR(name, kind, detail)                                                                                     \
	SEC("tp_btf/" #name "_entry")                                                                                  \
	int BPF_PROG(watch_##name##_entry, int vector)                                                                 \
	{                                                                                                              \
		irq_enter(kind, detail);                                                                               \
		return 0;                                                                                              \
	}                                                                                                              \
	SEC("tp_btf/" #name "_exit")                                                                                   \
	int BPF_PROG(watch_##name##_exit, int vector)                                                                  \
	{                                                                                                              \
		irq_leave();                                                                                           \
		return 0;                                                                                              \
	}

VECTOR(local_timer, WATCH_TIMER, 0)
VECTOR(reschedule, WATCH_RESCHED, 0)
VECTOR(call_function, WATCH_CALL, 0)
VECTOR(call_function_single, WATCH_CALL, 0)
VECTOR(irq_work, WATCH_IRQWORK, 0)
VECTOR(x86_platform_ipi, WATCH_VECTOR, vector)
VECTOR(thermal_apic, WATCH_VECTOR, vector)
VECTOR(threshold_apic, WATCH_VECTOR, vector)
VECTOR(deferred_error_apic, WATCH_VECTOR, vector)
VECTOR(error_apic, WATCH_VECTOR, vector)
VECTOR(spurious_apic, WATCH_VECTOR, vector)

/* arm64: one pair of events for all IPIs, told apart by their descriptions in arch/arm64/kernel/smp.c. */
SEC("tp_btf/ipi_entry")
int BPF_PROG(watch_ipi_entry, const char *reason)
{
	char first = 0;

	bpf_probe_read_kernel(&first, 1, reason);
	irq_enter(first == 'R' ? WATCH_RESCHED :
		  first == 'F' ? WATCH_CALL :
		  first == 'T' ? WATCH_TIMER :
		  first == 'I' ? WATCH_IRQWORK :
				 WATCH_VECTOR,
		  0);
	return 0;
}

SEC("tp_btf/ipi_exit")
int BPF_PROG(watch_ipi_exit, const char *reason)
{
	irq_leave();
	return 0;
}

SEC("tp_btf/irq_handler_entry")
int BPF_PROG(watch_irq_entry, int irq, struct irqaction *action)
{
	struct frame *frame = irq_enter(WATCH_IRQ, 0);
	const char timer[] = "arch_timer";
	int i;

	if (!frame)
		return 0;
	bpf_probe_read_kernel_str(frame->key.what, WATCH_COMM, BPF_CORE_READ(action, name));
	frame->key.subject = irq;
	/* arm64: the local timer is an interrupt like others. */
	for (i = 0; i < sizeof(timer); i++) {
		if (frame->key.what[i] != timer[i])
			return 0;
	}
	frame->key.kind = WATCH_TIMER;
	frame->key.subject = 0;
	__builtin_memset(frame->key.what, 0, WATCH_COMM);
	return 0;
}

SEC("tp_btf/irq_handler_exit")
int BPF_PROG(watch_irq_exit, int irq)
{
	irq_leave();
	return 0;
}

/* The kernel tells the length of an NMI's handlers itself. Its time stays in whatever it came upon, too: it is rare. */
SEC("tp_btf/nmi_handler")
int BPF_PROG(watch_nmi, void *handler, __s64 ns, int handled)
{
	struct cpu_state *state = here();
	struct frame frame = {};

	if (!state || !handled)
		return 0;
	frame.key.cpu = bpf_get_smp_processor_id();
	frame.key.kind = WATCH_NMI;
	frame.key.subject = (__u64)handler;
	frame.key.stack = -1;
	account(state, &frame, bpf_ktime_get_ns() - ns, ns);
	return 0;
}

/* ---- Timers: what for ---- */

SEC("tp_btf/hrtimer_expire_entry")
int BPF_PROG(watch_hrtimer, struct hrtimer *timer)
{
	struct cpu_state *state = here();
	__u64 func;

	if (!state || !state->irq.start || state->irq.key.kind != WATCH_TIMER)
		return 0;
	func = (__u64)BPF_CORE_READ(timer, function);
	/* The tick is told even where it comes together with another timer. */
	if (!state->irq.key.subject || func == tick_handler)
		state->irq.key.subject = func;
	return 0;
}

SEC("tp_btf/tick_stop")
int BPF_PROG(watch_tick_stop, int success, int dependency)
{
	struct cpu_state *state = here();

	if (state)
		state->dep = success ? 0 : dependency;
	return 0;
}

/* ---- Softirqs ---- */

SEC("tp_btf/softirq_entry")
int BPF_PROG(watch_softirq_entry, unsigned int vec)
{
	struct cpu_state *state = here();

	if (state) {
		frame_open(state, &state->soft, WATCH_SOFTIRQ, bpf_ktime_get_ns());
		state->soft.key.detail = vec;
	}
	return 0;
}

SEC("tp_btf/softirq_exit")
int BPF_PROG(watch_softirq_exit, unsigned int vec)
{
	struct cpu_state *state = here();

	if (state)
		frame_finish(state, &state->soft);
	return 0;
}

SEC("tp_btf/timer_expire_entry")
int BPF_PROG(watch_timer, struct timer_list *timer)
{
	struct cpu_state *state = here();

	if (state && state->soft.start && !state->soft.key.subject)
		state->soft.key.subject = (__u64)BPF_CORE_READ(timer, function);
	return 0;
}
