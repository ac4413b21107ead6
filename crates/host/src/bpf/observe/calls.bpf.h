/* SPDX-License-Identifier: GPL-2.0-only */
/* Programs that the daemon calls: they track vCPUs, step the link word, and tick. */
#ifndef ENTRAIN_OBSERVE_CALLS_BPF_H
#define ENTRAIN_OBSERVE_CALLS_BPF_H

#include "hint.bpf.h"

#define EINVAL 22
#define ENOENT 2
#define ESRCH  3
#define ESTALE 116

/* Host words that this program keeps current. */
#define NEIGHBOURS (ENTRAIN_F_INSTANT | ENTRAIN_F_CAPACITY | ENTRAIN_F_ENTITLEMENT)
#define HOST_FEATURES                                                                                                  \
	(ENTRAIN_F_VCPU_STATE | ENTRAIN_F_INSTANT | ENTRAIN_F_CAPACITY | ENTRAIN_F_ENTITLEMENT | extra_features |      \
	 READ_ONCE(mode_features))

/*
 * What a vCPU's thread does at this moment. Its next switch may be long in coming, above all where it has a pCPU to
 * itself: until then nothing would be counted, and its guest be told nothing. One that switches just now is wrong until
 * its next switch.
 */
static __always_inline __u32 task__vcpu_state(struct task_struct *task, __u32 *cpu)
{
	if (bpf_core_field_exists(task->thread_info.cpu))
		*cpu = task->thread_info.cpu;
	if (!bpf_core_field_exists(task->on_cpu) || !bpf_core_field_exists(task->__state))
		return ENTRAIN_VCPU_UNKNOWN;
	if (task->on_cpu)
		return ENTRAIN_VCPU_RUNNING;
	return task->__state ? ENTRAIN_VCPU_HALTED : ENTRAIN_VCPU_PREEMPTED;
}

/* Called by the daemon: a vCPU's entry is filled; watch its thread from now on. */
SEC("syscall")
int track(struct entrain_track_args *args)
{
	struct entrain_ref fresh = {.index = args->index}, *ref;
	struct task_struct *task = bpf_task_from_pid(args->tid), *old;
	struct entrain_vcpu *vcpu = vcpu__by_index(fresh.index);
	struct entrain_thread *thread = bpf_map_lookup_elem(&vcpu_threads, &fresh.index);

	args->error = -ESRCH;
	if (!task)
		return 0;
	/* A vCPU that was unplugged keeps its thread's number, which may be another's by now. */
	if (vcpu && task->tgid != vcpu->tgid) {
		bpf_task_release(task);
		return 0;
	}
	if (!vcpu || !thread) {
		bpf_task_release(task);
		args->error = -EINVAL;
		return 0;
	}
	ref = bpf_task_storage_get(&vcpu_refs, task, &fresh, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!ref) {
		bpf_task_release(task);
		return 0;
	}
	ref->index = fresh.index;
	vcpu->since = bpf_ktime_get_ns();
	vcpu->state = task__vcpu_state(task, &vcpu->pcpu);
	WRITE_ONCE(vcpu->paired, 0);
	WRITE_ONCE(vcpu->used, 1);
	old = bpf_kptr_xchg(&thread->task, task);
	if (old)
		bpf_task_release(old);
	args->error = 0;
	return 0;
}

/* Called by the daemon: forget a vCPU and its thread. */
SEC("syscall")
int untrack(struct entrain_track_args *args)
{
	__u32 index = args->index;
	struct entrain_vcpu *vcpu = vcpu__by_index(index);
	struct entrain_thread *thread = bpf_map_lookup_elem(&vcpu_threads, &index);
	struct task_struct *task;
	struct entrain_ref *ref;

	args->error = -ENOENT;
	if (!vcpu || !thread)
		return 0;
	WRITE_ONCE(vcpu->used, 0);
	task = bpf_kptr_xchg(&thread->task, NULL);
	if (task) {
		/* The thread may run another vCPU by now, whose entry it leads to. */
		ref = bpf_task_storage_get(&vcpu_refs, task, 0, 0);
		if (!ref || ref->index == index) {
			bpf_task_storage_delete(&pairings, task);
			bpf_task_storage_delete(&vcpu_refs, task);
		}
		bpf_task_release(task);
	}
	args->error = 0;
	return 0;
}

/* Called by the daemon: one step of the link word, on memory that stays pinned whatever the VMM does to its file. */
SEC("syscall")
int link_step(struct entrain_link_args *args)
{
	__u32 index = args->index;
	struct entrain_thread *thread = bpf_map_lookup_elem(&vcpu_threads, &index);
	struct entrain_vcpu *vcpu = vcpu__by_index(index);
	struct entrain_pairing *pairing;
	struct entrain_page *page;
	struct task_struct *task;

	args->error = -ENOENT;
	if (!thread || !vcpu)
		return 0;
	bpf_rcu_read_lock();
	task = thread->task;
	pairing = task ? bpf_task_storage_get(&pairings, task, 0, 0) : NULL;
	page = pairing ? pairing->page : NULL;
	/* Before the pairing opens, so that nothing is told later than it could be. */
	if (page && args->op == ENTRAIN_LINK_OP_PAIR)
		WRITE_ONCE(vcpu->paired, 1);
	if (page)
		args->error =
			entrain_host_step(&pairing->side, page, args->op, args->expected, args->wanted, &args->was)
				? 0
				: -ESTALE;
	if (page && args->op == ENTRAIN_LINK_OP_CLOSE)
		WRITE_ONCE(vcpu->paired, 0);
	bpf_rcu_read_unlock();
	return 0;
}

static __always_inline void vcpu__read_guest(struct entrain_vcpu *vcpu, struct entrain_pairing *pairing,
					     struct entrain_page *page, __u64 now)
{
	__u64 beat = READ_ONCE(page->guest.heartbeat);

	if (beat != vcpu->guest_beat) {
		vcpu->guest_beat = beat;
		vcpu->beat_at = now;
	}
	WRITE_ONCE(vcpu->tells,
		   (pairing->features & ENTRAIN_F_SPINS) && entrain_fresh(now, vcpu->beat_at, ENTRAIN_GUEST_EXPIRY_NS));
	/* Not of the scheduler alone: a guest that gives up vCPUs by other means says it, too. */
	vcpu->wants = READ_ONCE(page->guest.wants);
	if (pairing->features & ENTRAIN_F_GUEST_WORDS) {
		vcpu->util = READ_ONCE(page->guest.util);
		vcpu->runnable = READ_ONCE(page->guest.runnable);
		return;
	}
	if (pairing->util)
		vcpu->util = READ_ONCE(pairing->util->v);
	if (pairing->nr_running)
		vcpu->runnable = READ_ONCE(pairing->nr_running->v);
}

/* Withheld, left as it was by those who met, or changed without a word of the kernel's: the tick puts it right. */
static __always_inline void vcpu__level_in_time(struct entrain_vcpu *vcpu, struct entrain_pairing *pairing,
						struct entrain_pcpu *pcpu)
{
	__u32 level = pcpu__level(pcpu);

	/* One that runs has been told, or the kernel said nothing; a halted one hears of it when it wakes. */
	if (vcpu->level_told != level && READ_ONCE(vcpu->state) == ENTRAIN_VCPU_RUNNING)
		pcpu->late++;
	vcpu->level_told = level;
	page__put_level(vcpu, pairing, pcpu);
}

static __always_inline void vcpu__tick(__u32 index, struct entrain_tick_args *args, __u64 now)
{
	struct entrain_vcpu *vcpu = vcpu__by_index(index);
	struct entrain_thread *thread = bpf_map_lookup_elem(&vcpu_threads, &index);
	struct entrain_pairing *pairing;
	struct entrain_pcpu *pcpu;
	struct kvm_vcpu *kvm_vcpu;
	struct entrain_page *page;
	struct task_struct *task;
	struct entrain_beat beat = {};
	__u32 cpu, own_only;
	__u64 link;

	if (!vcpu || !thread || !vcpu->used || (args->speakers && !vcpu->speaks))
		return;
	hint__refresh(slot__of(index));
	task = thread->task;
	pairing = task ? bpf_task_storage_get(&pairings, task, 0, 0) : NULL;
	page = pairing ? pairing->page : NULL;
	if (page && !entrain_host_is_closed(&pairing->side)) {
		entrain_host_stands(&pairing->side, page, &link);
		vcpu->link = link;
	}
	/* The one place where an end is told: whoever else finds it may be late, when the entry is another pairing's.
	 */
	vcpu->gone = pairing ? entrain_host_gone(&pairing->side) : 0;
	args->gone += vcpu->gone != 0;
	if (!page || entrain_host_is_closed(&pairing->side))
		return;
	args->paired++;
	/* KVM raises it at every change of a VM's memory slots; so begins a live migration, which is in a hurry. */
	kvm_vcpu = (struct kvm_vcpu *)vcpu->kvm_vcpu;
	args->layouts += BPF_CORE_READ(kvm_vcpu, kvm, memslots[0], generation);
	vcpu__read_guest(vcpu, pairing, page, now);
	own_only = READ_ONCE(vcpu->own_only);
	cpu = vcpu->pcpu;
	pcpu = bpf_map_lookup_elem(&pcpus, &cpu);
	/* Withheld, or left as it was by those who met at the word (entrain_host_put_instant). */
	page__put_instant(vcpu, pairing);
	if (pcpu)
		vcpu__level_in_time(vcpu, pairing, pcpu);
	beat.now = now;
	beat.features = own_only ? HOST_FEATURES & ~NEIGHBOURS : HOST_FEATURES;
	beat.entitlement = own_only ? 0 : vcpu->entitlement;
	entrain_host_put_beat(&pairing->side, page, &beat);
}

/* Called by the daemon every 100 ms: checks every pairing, reads the guests' words, publishes what changes slowly. */
SEC("syscall")
int tick(struct entrain_tick_args *args)
{
	__u64 now = bpf_ktime_get_ns();
	__u32 entries = args->entries;
	int i;

	args->paired = 0;
	args->gone = 0;
	args->layouts = 0;
	if (entries > ENTRAIN_HOST_VCPUS)
		return 0;
	bpf_for (i, 0, entries) {
		bpf_rcu_read_lock();
		vcpu__tick(i, args, now);
		bpf_rcu_read_unlock();
	}
	return 0;
}

#endif /* ENTRAIN_OBSERVE_CALLS_BPF_H */
