// SPDX-License-Identifier: GPL-2.0-only
/*
 * Makes each CPU as slow as its operating point says, and counts the time at each point.
 *
 * A CPU at a quarter of the full speed does in 4 ms what a full one does in 1 ms. So for each ns that tasks ran, 3 ns
 * are owed, and a timer on the CPU pays them: it lets time pass in softirq context, on top of whatever task runs. The
 * task is not switched out (a vCPU does not look preempted to anybody), and Debian's arm64 kernel, which has no IRQ
 * time accounting, books the time as the task's own: that is what a slow CPU looks like to a scheduler, and what
 * frequency-invariant load tracking scales by the frequency. Idle time owes nothing, and what short tasks owe is paid
 * with the next longer one, so that work done per time is right over some milliseconds, not within one.
 */
#include "kernel.h"
#include "slow.h"

char LICENSE[] SEC("license") = "GPL";

#define PF_KTHREAD	 0x00200000
#define CLOCK_MONOTONIC	 1
/* A task runs at least this long between two payments: the timer itself costs an emulated CPU tens of µs. */
#define SHORTEST_RUN_NS	 150000
/* More than that is never owed: idle CPUs are looked at rarely, and what they owe must not pile up. */
#define LARGEST_DEBT_NS	 8000000
/* Softirqs that take longer than 2 ms are handed to a thread. */
#define LONGEST_STALL_NS 1900000
/* Steps of waiting; each takes longer than 100 ns on any machine. */
#define MAX_STEPS	 (1 << 20)

struct bpf_timer_slot {
	struct bpf_timer timer;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_CPUS);
	__type(key, __u32);
	__type(value, struct bpf_timer_slot);
} timers SEC(".maps");

struct cpu_state {
	/* Begin of the stretch of time that is not yet booked. */
	__u64 since;
	/* Time that the CPU must lose. */
	__u64 debt;
	/* When `asked` comes into force; 0: it has. */
	__u64 due;
	__u32 asked;
	__u32 point;
};

const volatile struct setup setup[MAX_CPUS];
/* Time of one run and the stall after it. */
const volatile __u64 period_ns = 1000000;
/* What one payment costs the task beside the stall: the timer's interrupt on an emulated CPU. */
const volatile __u64 overhead_ns;
/* From a request until the frequency is in force. */
const volatile __u64 delay_ns;

struct cpu_state states[MAX_CPUS];
struct counters counters[MAX_CPUS];

/* Books the time since the last booking, which a task used (`busy`) or not. */
static __always_inline void cpu_state__book(__u32 cpu, struct cpu_state *state, __u64 now, bool busy)
{
	struct counters *sums = &counters[cpu];
	__u64 stretch = now - state->since, due;
	__u32 point = state->point, level;

	if (point >= MAX_POINTS)
		return;
	if (state->since && stretch < (1ULL << 40)) {
		if (busy) {
			level = setup[cpu].level[point];
			sums->busy_ns[point] += stretch;
			if (level)
				state->debt += stretch * (FULL - level) / level;
			if (state->debt > LARGEST_DEBT_NS)
				state->debt = LARGEST_DEBT_NS;
		} else {
			sums->idle_ns[point] += stretch;
		}
	}
	state->since = now;
	due = READ_ONCE(state->due);
	if (due && now >= due) {
		/* Another CPU may ask for something else meanwhile: then that stays due. */
		point = READ_ONCE(state->asked);
		if (point < MAX_POINTS) {
			WRITE_ONCE(state->point, point);
			sums->point = point;
		}
		__sync_val_compare_and_swap(&state->due, due, 0);
	}
}

struct wait {
	__u64 until;
};

static long wait__step(__u32 step, struct wait *wait)
{
	return bpf_ktime_get_ns() >= wait->until;
}

static int cpu_state__slow_down(void *map, __u32 *key, struct bpf_timer_slot *slot)
{
	__u32 cpu = bpf_get_smp_processor_id(), point;
	struct task_struct *task = bpf_get_current_task_btf();
	__u64 now = bpf_ktime_get_ns(), run, stall, end, paid;
	struct counters *sums;
	struct cpu_state *state;
	struct wait wait;
	bool idle = !task->pid;
	__u32 level;

	if (cpu >= MAX_CPUS)
		return 0;
	state = &states[cpu];
	sums = &counters[cpu];
	cpu_state__book(cpu, state, now, !idle);
	point = state->point;
	if (point >= MAX_POINTS)
		return 0;
	level = setup[cpu].level[point];
	run = period_ns * level / FULL;
	if (run < SHORTEST_RUN_NS)
		run = SHORTEST_RUN_NS;
	/* Kernel threads are not slowed: one of them may be the thread that softirqs were handed to. */
	if (idle || (task->flags & PF_KTHREAD))
		run = period_ns;
	/* The interrupt's time was booked as work, which a CPU owes for. It was none, and slowed the task by itself. */
	if (!idle && level && level < FULL) {
		paid = overhead_ns * FULL / level;
		state->debt = paid < state->debt ? state->debt - paid : 0;
	}
	stall = state->debt < LONGEST_STALL_NS ? state->debt : LONGEST_STALL_NS;
	if (stall && !idle && !(task->flags & PF_KTHREAD)) {
		wait.until = now + stall;
		bpf_loop(MAX_STEPS, wait__step, &wait, 0);
		end = bpf_ktime_get_ns();
		state->debt = end - now < state->debt ? state->debt - (end - now) : 0;
		sums->stalled_ns += end - now;
		sums->busy_ns[point] += end - now;
		state->since = end;
	}
	bpf_timer_start(&slot->timer, run, BPF_F_TIMER_CPU_PIN);
	return 0;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(emulate_switch, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	__u32 cpu = bpf_get_smp_processor_id();

	if (cpu < MAX_CPUS && setup[cpu].points)
		cpu_state__book(cpu, &states[cpu], bpf_ktime_get_ns(), prev->pid != 0);
	return 0;
}

/* The driver wrote a frequency for a CPU, from any CPU. */
SEC("tp_btf/cpu_frequency")
int BPF_PROG(emulate_frequency, unsigned int khz, unsigned int cpu)
{
	struct cpu_state *state;
	__u32 point;

	if (cpu >= MAX_CPUS || !setup[cpu].points)
		return 0;
	for (point = 0; point < MAX_POINTS; point++)
		if (setup[cpu].khz[point] == khz)
			break;
	if (point >= MAX_POINTS)
		return 0;
	state = &states[cpu];
	if (point != READ_ONCE(state->asked))
		__sync_fetch_and_add(&counters[cpu].transitions, 1);
	WRITE_ONCE(state->asked, point);
	WRITE_ONCE(state->due, bpf_ktime_get_ns() + delay_ns);
	return 0;
}

/* Called once on each CPU, by a thread that is bound to it. */
SEC("syscall")
int emulate_start(void *ctx)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct bpf_timer_slot *slot = bpf_map_lookup_elem(&timers, &cpu);
	int error;

	if (!slot || cpu >= MAX_CPUS)
		return -1;
	states[cpu].point = states[cpu].asked = setup[cpu].start;
	counters[cpu].point = setup[cpu].start;
	error = bpf_timer_init(&slot->timer, &timers, CLOCK_MONOTONIC);
	if (!error)
		error = bpf_timer_set_callback(&slot->timer, cpu_state__slow_down);
	if (!error)
		error = bpf_timer_start(&slot->timer, period_ns, BPF_F_TIMER_CPU_PIN);
	return error;
}
