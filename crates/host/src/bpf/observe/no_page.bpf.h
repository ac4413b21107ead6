/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A vCPU's thread where the kernel has no user memory in task storage (`__uptr`, Linux 6.13): no guest is told
 * anything. A thread leads to its vCPU by a hash of thread numbers, which user space fills: such kernels have neither a
 * descriptor of a thread that does not lead its process (6.9), by which to reach its storage, nor, some of them, a way
 * from a number to a task (6.2). What page.bpf.h does to tell a guest, does nothing here.
 */
#ifndef ENTRAIN_OBSERVE_NO_PAGE_BPF_H
#define ENTRAIN_OBSERVE_NO_PAGE_BPF_H

#include "state.bpf.h"

struct entrain_pairing;

/* Thread -> its entry in `vcpus`. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, ENTRAIN_HOST_VCPUS);
	__type(key, __u32);
	__type(value, __u32);
} vcpu_tids SEC(".maps");

static __always_inline __u32 vcpu__slot(struct task_struct *task)
{
	__u32 tid = task->pid, *index;

	if (!tid)
		return 0;
	index = bpf_map_lookup_elem(&vcpu_tids, &tid);
	return index ? slot__of(*index) : 0;
}

static __always_inline struct entrain_vcpu *vcpu__of(struct task_struct *task)
{
	__u32 slot = vcpu__slot(task);

	return slot ? vcpu__by_index(slot__index(slot)) : NULL;
}

/* The number is another thread's from now on. */
static __always_inline void vcpu__leaves(struct task_struct *task)
{
	__u32 tid = task->pid;

	bpf_map_delete_elem(&vcpu_tids, &tid);
}

static __always_inline bool task__gives_way(const struct task_struct *task, __u32 slot)
{
	return task->pid == 0;
}

static __always_inline void pcpu__opens(struct entrain_pcpu *pcpu, bool open)
{
	pcpu->open = open;
}

static __always_inline __u32 vcpu__would_run(const struct entrain_vcpu *vcpu)
{
	return 0;
}

static __always_inline void hint__remember(struct entrain_pcpu *pcpu, const struct entrain_vcpu *vcpu, __u32 index)
{
}

/* No vCPU has one. */
static __always_inline struct entrain_pairing *vcpu__pairing(const struct entrain_vcpu *vcpu, struct task_struct *task)
{
	return NULL;
}

static __always_inline void vcpu__publish(struct entrain_vcpu *vcpu, struct entrain_pairing *pairing, __u32 instant)
{
}

static __always_inline void vcpu__tell_level(struct entrain_vcpu *vcpu, struct entrain_pairing *pairing,
					     struct entrain_pcpu *pcpu)
{
}

static __always_inline void vcpu__count_section(struct entrain_vcpu *vcpu, struct entrain_pairing *pairing,
						bool sampled, bool involuntary)
{
}

#endif /* ENTRAIN_OBSERVE_NO_PAGE_BPF_H */
