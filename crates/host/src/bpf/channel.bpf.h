/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The host's side of the page: where a vCPU's page is found, and what is told in it.
 *
 * Any BPF program of the host may include it (observe.bpf.c, the scheduler); they share the maps by name, the second
 * object re-using the file descriptors of the first. What is written, and how, stands in entrain_host.h.
 */
#ifndef ENTRAIN_HOST_CHANNEL_BPF_H
#define ENTRAIN_HOST_CHANNEL_BPF_H

#include "vcpus.bpf.h"
#include "entrain_host.h"
#include "policy.h"

/* A uptr points to a struct, and the struct may not cross a page: the kernel's u32 and u64 need one each. */
struct entrain_box32 {
	__u32 v;
};
struct entrain_box64 {
	__u64 v;
};

/* What the daemon attaches to the thread of a paired vCPU; pinned guest memory, released with it. */
struct entrain_pairing {
	struct entrain_page __uptr *page;
	struct entrain_box32 __uptr *preempt32;
	struct entrain_box64 __uptr *preempt64;
	struct entrain_box64 __uptr *util;
	struct entrain_box32 __uptr *nr_running;
	struct entrain_side side;
	__u64 features; /* of the guest, as verified */
	/* Figures of the vCPU when the pairing was made: the page counts from there. */
	__u64 ready0, preemptions0, preemptions_cs0, boosts0;
};

/* Keeps the full types of the pointees in the object's BTF: a forward declaration would make the uptr a number. */
struct entrain_page entrain_keep_page;
struct entrain_box32 entrain_keep_box32;
struct entrain_box64 entrain_keep_box64;

/* vCPU thread -> its entry in `vcpus`. A thread without an entry is not a vCPU: one failed lookup is all it costs. */
struct entrain_ref {
	__u32 index;
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct entrain_ref);
} vcpu_refs SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct entrain_pairing);
} pairings SEC(".maps");

/* index -> thread, for contexts that reach a vCPU from elsewhere (idle transitions, the tick). */
struct entrain_thread {
	struct task_struct __kptr *task;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, ENTRAIN_HOST_VCPUS);
	__type(key, __u32);
	__type(value, struct entrain_thread);
} vcpu_threads SEC(".maps");

/* 1 + the number of the vCPU that a thread runs; 0 for all other threads. */
static __always_inline __u32 vcpu__slot(struct task_struct *task)
{
	struct entrain_ref *ref = bpf_task_storage_get(&vcpu_refs, task, 0, 0);

	return ref ? ref->index + 1 : 0;
}

/* The vCPU that a thread runs; NULL when it runs none. */
static __always_inline struct entrain_vcpu *vcpu__of(struct task_struct *task)
{
	__u32 slot = vcpu__slot(task);

	return slot ? vcpu__by_index(slot - 1) : NULL;
}

/* The pairing of a thread; NULL when its guest has none (or has lost it). */
static __always_inline struct entrain_pairing *pairing__of(struct task_struct *task)
{
	struct entrain_pairing *pairing = bpf_task_storage_get(&pairings, task, 0, 0);

	return pairing && !entrain_host_is_closed(&pairing->side) ? pairing : NULL;
}

/* The same of a thread whose vCPU is known: where there is none, nothing is looked up. */
static __always_inline struct entrain_pairing *vcpu__pairing(const struct entrain_vcpu *vcpu, struct task_struct *task)
{
	return READ_ONCE(vcpu->paired) ? pairing__of(task) : NULL;
}

/* Instead of a pCPU's number, for guests that are not told it. */
#define ENTRAIN_PCPU_UNTOLD 0xffff

/*
 * Publishes the state of a vCPU with its counters. Call it with the run-queue lock of its pCPU held (sched_switch,
 * sched_wakeup, scheduler callbacks for a task on that CPU): that orders the writers of these words.
 */
static __always_inline void page__put_state(struct entrain_vcpu *vcpu, struct entrain_pairing *pairing)
{
	struct entrain_page *page = pairing->page;
	__u32 pcpu = READ_ONCE(vcpu->own_only) ? ENTRAIN_PCPU_UNTOLD : vcpu->pcpu;
	__u64 flags = (vcpu->in_cs ? ENTRAIN_STATE_IN_CS : 0) | (vcpu->extended ? ENTRAIN_STATE_EXTENDED : 0);
	struct entrain_told told = {
		.since = vcpu->since,
		.steal = (vcpu->ready_ns - pairing->ready0) >> ENTRAIN_TIME_SHIFT,
		.preemptions = vcpu->preemptions - pairing->preemptions0,
		.preemptions_cs = vcpu->preemptions_cs - pairing->preemptions_cs0,
		.boosts = vcpu->boosts - pairing->boosts0,
		.state = ENTRAIN_STATE(vcpu->state, flags, pcpu, vcpu->seq),
	};

	if (page)
		entrain_host_put_state(&pairing->side, page, &told);
}

/* Publishes vcpu->instant. Idle transitions of any pCPU call it, and the tick. */
static __always_inline void page__put_instant(struct entrain_vcpu *vcpu, struct entrain_pairing *pairing)
{
	struct entrain_page *page = pairing->page;

	if (page)
		entrain_host_put_instant(&pairing->side, page, &vcpu->instant, &vcpu->own_only, &vcpu->races);
}

/* Publishes what a pCPU can do now to the vCPU that runs there. Switches, changes of its frequency and the tick call
 * it. */
static __always_inline void page__put_level(struct entrain_vcpu *vcpu, struct entrain_pairing *pairing,
					    struct entrain_pcpu *pcpu)
{
	struct entrain_page *page = pairing->page;

	if (page)
		entrain_host_put_level(&pairing->side, page, &pcpu->capacity, &pcpu->perf, &vcpu->own_only,
				       &vcpu->races);
}

/* Guest-physical to the VMM's virtual address by the VM's memory slots; 0 when no slot holds all of it. */
static __always_inline __u64 vm__hva(const struct entrain_vm *vm, __u64 gpa, __u64 size)
{
	int i;

	for (i = 0; i < ENTRAIN_VM_SLOTS; i++) {
		const struct entrain_slot *slot = &vm->slots[i];

		if (gpa >= slot->gpa && size <= slot->size && gpa - slot->gpa <= slot->size - size)
			return slot->hva + (gpa - slot->gpa);
	}
	return 0;
}

/*
 * arm64: the preempt count belongs to the guest's running task, whose address its kernel keeps in sp_el0. KVM saved
 * that register at the last exit; the address is in the guest's linear map, which the guest described, so it becomes a
 * guest-physical and then a VMM address. In EL0 there is no critical section and nothing is read.
 */
static __always_inline bool vcpu__task_count(const struct entrain_vcpu *vcpu, __u32 seen, __u32 *count)
{
	struct kvm_vcpu *kvm_vcpu = (struct kvm_vcpu *)vcpu->kvm_vcpu;
	__u32 index = vcpu->vm;
	struct entrain_vm *vm = bpf_map_lookup_elem(&vms, &index);
	__u64 task, hva;

	if (!vm || !kvm_vcpu || !bpf_core_field_exists(kvm_vcpu->arch.ctxt.regs.pstate))
		return false;
	if (seen == ENTRAIN_CRITICAL_UNKNOWN && (BPF_CORE_READ(kvm_vcpu, arch.ctxt.regs.pstate) & 0xf) == 0)
		return true;
	task = BPF_CORE_READ(kvm_vcpu, arch.ctxt.regs.sp);
	if (task < vm->linear_base || task - vm->linear_base >= vm->linear_size)
		return false;
	hva = vm__hva(vm, task - vm->linear_base + vm->linear_gpa + vm->preempt_offset, sizeof(*count));
	return hva && bpf_probe_read_user(count, sizeof(*count), (void *)hva) == 0;
}

/*
 * The guest's preempt count on this vCPU, need-resched bit removed; false when it cannot be known. `seen` is what KVM
 * saw of it, where that is known already. Works on pinned memory from every context; otherwise (arm64, private guest
 * memory) only where `current` is the vCPU's own thread, so that its memory is mapped: at switch-out and in the tick of
 * the scheduler.
 */
static __always_inline bool vcpu__preempt_count(struct entrain_vcpu *vcpu, struct entrain_pairing *pairing, __u32 seen,
						__u32 *count)
{
	__u32 layout = vcpu->preempt_layout;
	bool known = false;

	*count = 0;
	if (layout == ENTRAIN_PREEMPT_NONE)
		return false;
	/* User mode: no section, and nothing to read. */
	if (seen == ENTRAIN_CRITICAL_USER)
		return true;
	if (layout == ENTRAIN_PREEMPT_TASK32 || layout == ENTRAIN_PREEMPT_TASK64) {
		known = vcpu__task_count(vcpu, seen, count);
	} else if (pairing && pairing->preempt64) {
		*count = (__u32)READ_ONCE(pairing->preempt64->v);
		known = true;
	} else if (pairing && pairing->preempt32) {
		*count = READ_ONCE(pairing->preempt32->v);
		known = true;
	} else if (vcpu->preempt_hva) {
		known = bpf_probe_read_user(count, sizeof(*count), (void *)vcpu->preempt_hva) == 0;
	}
	/* The old layouts use 24 bits; what stands above is need-resched or nothing. */
	if (layout == ENTRAIN_PREEMPT_PERCPU32 || layout == ENTRAIN_PREEMPT_TASK32)
		*count &= 0x00ffffff;
	return known;
}

/*
 * Whether a vCPU spins for a sleeping lock: its guest says so. Threat model: by a lie a guest gives up what its preempt
 * count would have bought it, and hands its own turns on within the VM; nobody else gains or loses anything.
 */
static __always_inline bool vcpu__spins(const struct entrain_vcpu *vcpu, struct entrain_pairing *pairing)
{
	struct entrain_page *page;

	if (!pairing || !READ_ONCE(vcpu->tells))
		return false;
	page = pairing->page;
	return page && READ_ONCE(page->guest.spins_for);
}

/*
 * enum entrain_critical out of what KVM saw of the vCPU and, where it was read, its guest's preempt count. A spin for a
 * sleeping lock has a level of that count of its own, and holds nothing; an interrupt's handler on top of it may.
 */
static __always_inline __u32 critical__level(__u32 seen, bool counted, __u32 count, bool spins)
{
	if (seen == ENTRAIN_CRITICAL_USER)
		return seen;
	if (!counted)
		return spins && seen == ENTRAIN_CRITICAL_KERNEL ? ENTRAIN_CRITICAL_FREE : seen;
	if (count > spins)
		return ENTRAIN_CRITICAL_SECTION;
	/* Masked interrupts count beside a preempt count of 0, too: a sibling may wait for the answer to its own. */
	return seen == ENTRAIN_CRITICAL_MASKED ? seen : ENTRAIN_CRITICAL_FREE;
}

/*
 * Works out what is known of the critical sections of a vCPU that is taken off its pCPU; `seen` is what KVM saw of it,
 * `spins` whether it waits for a sleeping lock. Whoever needs it first does so: the host's scheduler where there is
 * one, which hands it on to observe.bpf.c.
 */
static __always_inline void vcpu__sample(struct entrain_vcpu *vcpu, struct entrain_pairing *pairing, __u32 seen,
					 bool spins)
{
	__u32 count = 0;
	bool counted = vcpu->preempt_layout && vcpu__preempt_count(vcpu, pairing, seen, &count);

	if (counted)
		vcpu->preempt_count = count;
	vcpu->counted = counted;
	vcpu->spins = spins;
	vcpu->level = critical__level(seen, counted, count, spins);
}

/*
 * The struct kvm_vcpu of a thread inside KVM_RUN, 0 for any other: KVM alone uses preempt notifiers, and a thread has
 * its vCPU's registered from vcpu_load() to vcpu_put(). An address for probes, never followed directly.
 */
static __always_inline __u64 kvm_vcpu__of(struct task_struct *p)
{
	__u64 link;

	if (!bpf_core_field_exists(struct kvm_vcpu, preempt_notifier))
		return 0;
	link = (__u64)p->preempt_notifiers.first;
	if (!link)
		return 0;
	return link - bpf_core_field_offset(struct kvm_vcpu, preempt_notifier) -
	       bpf_core_field_offset(struct preempt_notifier, link);
}

#endif /* ENTRAIN_HOST_CHANNEL_BPF_H */
