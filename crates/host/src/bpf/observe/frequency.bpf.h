/* SPDX-License-Identifier: GPL-2.0-only */
/* A pCPU's level changes: the guest of the vCPU that runs there hears of it at once, and not at the next tick. */
#ifndef ENTRAIN_OBSERVE_FREQUENCY_BPF_H
#define ENTRAIN_OBSERVE_FREQUENCY_BPF_H

#include "levels.bpf.h"
#include "page.bpf.h"

/*
 * cpufreq has changed the frequency of a pCPU, which need not be this one. Where schedutil does so from the scheduler
 * (a "fast switch"), the kernel's figure is the new one already; where a driver sleeps for it, that comes a moment
 * later, and the tick tells it.
 */
SEC("tp_btf/cpu_frequency")
int BPF_PROG(observe_frequency, unsigned int khz, unsigned int id)
{
	struct entrain_pcpu *pcpu = pcpu__with_level(id);
	struct entrain_thread *thread;
	struct entrain_vcpu *vcpu;
	struct task_struct *task;
	__u32 index, slot;

	if (!pcpu)
		return 0;
	slot = READ_ONCE(pcpu->runs);
	if (!slot)
		return 0;
	index = slot__index(slot);
	vcpu = vcpu__by_index(index);
	thread = bpf_map_lookup_elem(&vcpu_threads, &index);
	task = thread ? thread->task : NULL;
	if (vcpu && vcpu->used && task)
		vcpu__tell_level(vcpu, vcpu__pairing(vcpu, task), pcpu);
	return 0;
}

#endif /* ENTRAIN_OBSERVE_FREQUENCY_BPF_H */
