// SPDX-License-Identifier: GPL-2.0-only
/*
 * Records what the scheduler and KVM do with chosen vCPU threads.
 *
 * A context switch is recorded when a vCPU leaves or comes, and also while one waits on that pCPU: so it is known who
 * ran instead. All other switches cost three failed lookups. The programs need no daemon; where one runs, its table of
 * vCPUs tells whether a vCPU was inside a critical section.
 */
#include "record/daemon.bpf.h"
#include "record/event.bpf.h"
#include "record/target.bpf.h"

char LICENSE[] SEC("license") = "GPL";

/* In a guest, where there are no vCPU threads: every switch of every CPU is recorded. Set before loading. */
const volatile bool all_tasks = false;

SEC("tp_btf/sched_switch")
int BPF_PROG(record_switch, bool preempt, struct task_struct *prev, struct task_struct *next, unsigned int prev_state)
{
	__u32 cpu = bpf_get_smp_processor_id(), out_tid = prev->pid, in_tid = next->pid;
	struct record_target *out = target__of(out_tid), *in = target__of(in_tid);
	struct record_cpu *queue = bpf_map_lookup_elem(&cpus, &cpu);
	__u8 flags = 0;

	if (all_tasks) {
		name__tell(prev, out_tid);
		name__tell(next, in_tid);
		event__emit(RECORD_SWITCH, preempt || prev_state == 0 ? RECORD_F_RUNNABLE : 0, cpu, out_tid, in_tid, 0);
		return 0;
	}
	if (!queue)
		return 0;
	queue->runs = in_tid + 1;
	if (!out) {
		/* Keeps the compiler from joining the two pointers into one condition, which the verifier refuses. */
		barrier_var(in);
		if (!in && READ_ONCE(queue->waiting) <= 0)
			return 0;
	}
	if (out) {
		out->running = 0;
		if (preempt || prev_state == 0) {
			flags = RECORD_F_RUNNABLE | daemon__critical_flags(out, out_tid);
			if (target__gives_way(out))
				flags |= RECORD_F_GAVE_WAY;
			target__wait_begin(out, cpu);
		} else if (prev_state & TASK_DEAD) {
			flags = RECORD_F_EXITED;
		}
	}
	if (in) {
		in->running = 1;
		in->samples = daemon__samples(daemon__entry(in, in_tid));
		target__wait_end(in);
	}
	name__tell(prev, out_tid);
	name__tell(next, in_tid);
	event__emit(RECORD_SWITCH, flags, cpu, out_tid, in_tid, 0);
	return 0;
}

SEC("tp_btf/sched_wakeup")
int BPF_PROG(record_wakeup, struct task_struct *task)
{
	struct task_struct___record *details = (void *)task;
	__u32 tid = task->pid, cpu, other;
	struct record_target *target = target__of(tid);
	__u8 flags;

	/* A thread that is woken before it has left its pCPU goes on running. */
	if (!target || target->running || !cpu_or_none__is_none(target->waits_on))
		return 0;
	cpu = BPF_CORE_READ(details, thread_info.cpu);
	target__wait_begin(target, cpu);
	flags = cpu__runs(cpu, &other);
	event__emit(RECORD_WAKEUP, flags, cpu, tid, other, 0);
	return 0;
}

SEC("tp_btf/sched_migrate_task")
int BPF_PROG(record_migrate, struct task_struct *task, int cpu)
{
	__u32 tid = task->pid, other;
	struct record_target *target = target__of(tid);
	__u8 flags;

	if (!target || cpu_or_none__is_none(target->waits_on))
		return 0;
	target__wait_begin(target, cpu);
	flags = cpu__runs(cpu, &other);
	event__emit(RECORD_MIGRATE, flags, cpu, tid, other, 0);
	return 0;
}

SEC("tp_btf/kvm_vcpu_wakeup")
int BPF_PROG(record_halt, __u64 ns, bool waited, bool valid)
{
	__u32 tid = (__u32)bpf_get_current_pid_tgid();

	if (target__of(tid))
		event__emit(RECORD_HALT, waited ? RECORD_F_WAITED : 0, bpf_get_smp_processor_id(), tid, 0, ns);
	return 0;
}

/* The two below have no tracepoint; a kernel whose functions can't be followed does without. */
SEC("fentry/kvm_vcpu_on_spin")
int BPF_PROG(record_spin)
{
	__u32 tid = (__u32)bpf_get_current_pid_tgid();

	if (target__of(tid))
		event__emit(RECORD_SPIN, 0, bpf_get_smp_processor_id(), tid, 0, 0);
	return 0;
}

SEC("fexit/yield_to")
int BPF_PROG(record_yield, struct task_struct *task, bool preempt, int answer)
{
	__u32 tid = (__u32)bpf_get_current_pid_tgid();

	if (target__of(tid))
		event__emit(RECORD_YIELD, 0, bpf_get_smp_processor_id(), tid, task->pid, answer);
	return 0;
}
