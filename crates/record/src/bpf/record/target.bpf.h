/* SPDX-License-Identifier: GPL-2.0-only */
/* The vCPU threads that are followed, and where they wait. */
#ifndef ENTRAIN_RECORD_TARGET_H
#define ENTRAIN_RECORD_TARGET_H

#include "cpu_or_none.h"
#include "interface.h"

/* Thread -> the vCPU that it is. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, RECORD_TARGETS);
	__type(key, __u32);
	__type(value, struct record_target);
} targets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, RECORD_CPUS);
	__type(key, __u32);
	__type(value, struct record_cpu);
} cpus SEC(".maps");

static __always_inline struct record_target *target__of(__u32 tid)
{
	return tid ? bpf_map_lookup_elem(&targets, &tid) : NULL;
}

/* It queues nowhere any more. */
static __always_inline void target__wait_end(struct record_target *target)
{
	__u32 cpu = cpu_or_none__cpu(target->waits_on);
	struct record_cpu *queue;

	if (cpu_or_none__is_none(target->waits_on))
		return;
	target->waits_on = 0;
	queue = bpf_map_lookup_elem(&cpus, &cpu);
	if (queue)
		__sync_fetch_and_add(&queue->waiting, -1);
}

/* It queues on a pCPU. */
static __always_inline void target__wait_begin(struct record_target *target, __u32 cpu)
{
	struct record_cpu *queue = bpf_map_lookup_elem(&cpus, &cpu);

	target__wait_end(target);
	if (!queue)
		return;
	target->waits_on = cpu_or_none__of(cpu);
	__sync_fetch_and_add(&queue->waiting, 1);
}

/* While KVM looks for a sibling to yield to. */
static __always_inline bool target__gives_way(const struct record_target *target)
{
	struct kvm_vcpu *kvm_vcpu = (struct kvm_vcpu *)target->kvm_vcpu;

	return kvm_vcpu && bpf_core_field_exists(kvm_vcpu->spin_loop.in_spin_loop) &&
	       BPF_CORE_READ(kvm_vcpu, spin_loop.in_spin_loop);
}

/* Who runs on a pCPU, as `flags` and `tid`; it may change at any moment, the next switch there tells, also its name. */
static __always_inline __u8 cpu__runs(__u32 cpu, __u32 *tid)
{
	struct record_cpu *queue = bpf_map_lookup_elem(&cpus, &cpu);

	*tid = queue && queue->runs ? queue->runs - 1 : 0;
	return queue && queue->runs ? RECORD_F_OTHER_KNOWN : 0;
}

#endif /* ENTRAIN_RECORD_TARGET_H */
