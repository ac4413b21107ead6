/* SPDX-License-Identifier: GPL-2.0-only */
/* The programs at the scheduler's tracepoints; what they know of guests was included before (vcpu.bpf.h). */
#ifndef ENTRAIN_OBSERVE_SWITCH_BPF_H
#define ENTRAIN_OBSERVE_SWITCH_BPF_H

#include "vcpu.bpf.h"

SEC("tp_btf/sched_switch")
int BPF_PROG(observe_switch, bool preempt, struct task_struct *prev, struct task_struct *next, unsigned int prev_state)
{
	__u32 out = vcpu__slot(prev), in = vcpu__slot(next);
	bool was_idle = prev->pid == 0, idle = next->pid == 0;
	bool was_open = task__gives_way(prev, out), open = task__gives_way(next, in);
	struct entrain_pairing *pairing;
	struct entrain_pcpu *pcpu;
	struct entrain_vcpu *vcpu;
	__u32 cpu;
	__u64 now;

	if (!out && !in && was_idle == idle && was_open == open)
		return 0;
	cpu = bpf_get_smp_processor_id();
	pcpu = bpf_map_lookup_elem(&pcpus, &cpu);
	if (!pcpu)
		return 0;
	if (was_idle != idle) {
		pcpu->idle = idle;
		pcpu->idles++;
	}
	if (was_open != open)
		pcpu__opens(pcpu, open);
	if (!out && !in)
		return 0;
	now = bpf_ktime_get_ns();
	WRITE_ONCE(pcpu->runs, in);
	if (out) {
		vcpu = vcpu__by_index(slot__index(out));
		if (vcpu && vcpu->used) {
			/* One that was about to sleep when it was preempted still runs. */
			vcpu__switch_out(vcpu, slot__index(out), prev, pcpu, preempt || prev_state == 0, now);
		}
	}
	if (in) {
		vcpu = vcpu__by_index(slot__index(in));
		if (vcpu && vcpu->used) {
			if (READ_ONCE(watch_waits))
				wait__end(vcpu, slot__index(in), prev, out != 0, now);
			vcpu__enter(vcpu, ENTRAIN_VCPU_RUNNING, now);
			vcpu->pcpu = cpu;
			vcpu->switches++;
			pcpu->switches++;
			pairing = vcpu__pairing(vcpu, next);
			vcpu__tell_level(vcpu, pairing, pcpu);
			vcpu__publish(vcpu, pairing, 1);
		}
	}
	return 0;
}

/* A halted vCPU becomes runnable: from here on it waits for a pCPU. */
SEC("tp_btf/sched_wakeup")
int BPF_PROG(observe_wakeup, struct task_struct *task)
{
	struct entrain_vcpu *vcpu = vcpu__of(task);
	struct entrain_pcpu *pcpu;
	__u32 cpu;

	/* A thread that is woken before it has left its CPU goes on running. */
	if (!vcpu || !vcpu->used || vcpu->state == ENTRAIN_VCPU_RUNNING || vcpu->state == ENTRAIN_VCPU_PREEMPTED)
		return 0;
	cpu = bpf_get_smp_processor_id();
	pcpu = bpf_map_lookup_elem(&pcpus, &cpu);
	if (pcpu)
		pcpu->wakeups++;
	vcpu__enter(vcpu, ENTRAIN_VCPU_PREEMPTED, bpf_ktime_get_ns());
	vcpu__publish(vcpu, vcpu__pairing(vcpu, task), 0);
	return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(observe_exit, struct task_struct *task)
{
	if (!vcpu__of(task))
		return 0;
	vcpu__leaves(task);
	event__report(ENTRAIN_EVENT_EXIT, task->pid, task->tgid, 0);
	return 0;
}

#endif /* ENTRAIN_OBSERVE_SWITCH_BPF_H */
