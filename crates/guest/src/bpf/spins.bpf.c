// SPDX-License-Identifier: GPL-2.0-only
/*
 * Tells the host while what runs on a vCPU spins for a sleeping lock, and for whom. Mutexes and semaphores of readers
 * and writers spin as long as the lock's owner runs (kernel/locking/mutex.c, rwsem.c), and have disabled preemption for
 * that: to a host they look like holders of a lock, while the owner, whose preempt count is 0, does not. Where the
 * owner's vCPU is off its pCPU, and the kernel does not know that (arm64), they spin in vain.
 *
 * Those who come first go through one queue for each lock: its head waits for the owner, each other for the one before
 * it. Who has slept for a mutex, and is the first of those that did, spins for the owner without coming to the queue.
 * All of them are preemptible neither in the queue nor at its head: what is said here needs no clearing at a switch.
 * The tracepoints of contention would be no substitute: semaphores tell of their spin by none, spinning locks pass
 * them, too, and between a mutex's two a task may be switched away. Only who finds a lock taken comes here.
 */
#include "pages.bpf.h"

char LICENSE[] SEC("license") = "GPL";

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

/* 1 + the CPU of the last one in the queue; 0 = it is empty. */
struct optimistic_spin_queue {
	struct {
		int counter;
	} tail;
};

/* The owner, a task; flags in the lowest bits. */
struct rw_semaphore {
	struct {
		__s64 counter;
	} owner;
};

#pragma clang attribute pop

#define RWSEM_READER_OWNED 1UL
#define RWSEM_FLAGS	   3UL

static __always_inline struct entrain_page *vcpu__page(void)
{
	__u32 cpu = bpf_get_smp_processor_id();

	return bpf_map_lookup_elem(&entrain_pages, &cpu);
}

/* What runs here spins for the vCPU `number` - 1; 0 = it does not spin. */
static __always_inline void vcpu__spins_for(__u64 number)
{
	struct entrain_page *page = vcpu__page();

	if (page)
		WRITE_ONCE(page->guest.spins_for, number);
}

/* The last one in the queue is the one before it; the head of an empty one is told of the owner as it looks for him. */
SEC("fentry/osq_lock")
int BPF_PROG(spin_begins, struct optimistic_spin_queue *queue)
{
	int last = READ_ONCE(queue->tail.counter);

	vcpu__spins_for(last > 0 ? last : 1 + bpf_get_smp_processor_id());
	return 0;
}

/* It has left the queue without having been at its head. (Of a `bool` that is returned one byte has a meaning.) */
SEC("fexit/osq_lock")
int BPF_PROG(spin_is_left, struct optimistic_spin_queue *queue, __u64 head)
{
	if (!(__u8)head)
		vcpu__spins_for(0);
	return 0;
}

SEC("fentry/osq_unlock")
int BPF_PROG(spin_ends, struct optimistic_spin_queue *queue)
{
	vcpu__spins_for(0);
	return 0;
}

/* Asked again for each new owner. */
SEC("?fentry/mutex_spin_on_owner")
int BPF_PROG(mutex_spin_begins, void *lock, struct task_struct *owner)
{
	vcpu__spins_for(1 + owner->thread_info.cpu);
	return 0;
}

/* `waiter`: of one that has slept, and is in no queue of spinners. */
SEC("?fexit/mutex_spin_on_owner")
int BPF_PROG(mutex_spin_ends, void *lock, struct task_struct *owner, void *ww, void *waiter)
{
	if (waiter)
		vcpu__spins_for(0);
	return 0;
}

/*
 * Readers own it together: which of them it waits for the kernel does not know either. One that has slept is not at the
 * head of the queue, and nothing tells the end of its spin.
 */
SEC("?fentry/rwsem_spin_on_owner")
int BPF_PROG(rwsem_spin_begins, struct rw_semaphore *lock)
{
	__u64 owner = READ_ONCE(lock->owner.counter);
	struct task_struct *task = (void *)(owner & ~RWSEM_FLAGS);
	struct entrain_page *page = vcpu__page();

	if (page && page->guest.spins_for && task && !(owner & RWSEM_READER_OWNED))
		WRITE_ONCE(page->guest.spins_for, 1 + BPF_CORE_READ(task, thread_info.cpu));
	return 0;
}
