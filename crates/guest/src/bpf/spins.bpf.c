// SPDX-License-Identifier: GPL-2.0-only
/*
 * Tells the host while what runs on a vCPU spins for a sleeping lock. Mutexes and semaphores of readers and writers
 * spin as long as the lock's owner runs (kernel/locking/mutex.c, rwsem.c), and have disabled preemption for that: to a
 * host they look like holders of a lock, while the owner, whose preempt count is 0, does not. Where the owner's vCPU is
 * off its pCPU, and the kernel does not know that (arm64), they spin in vain.
 *
 * All of them go through one queue for each lock, and are preemptible neither while they wait in it nor while they
 * stand at its head: what is said here needs no clearing at a switch. The tracepoints of contention would be no
 * substitute: semaphores tell of their spin by none, spinning locks pass them, too, and between a mutex's two a task
 * may be switched away. Only who finds a lock taken comes here.
 */
#include "pages.bpf.h"

char LICENSE[] SEC("license") = "GPL";

static __always_inline void vcpu__spins(bool spins)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct entrain_page *page = bpf_map_lookup_elem(&entrain_pages, &cpu);

	if (page)
		WRITE_ONCE(page->guest.spins_for, spins ? 1 + cpu : 0);
}

SEC("fentry/osq_lock")
int BPF_PROG(spin_begins, void *queue)
{
	vcpu__spins(true);
	return 0;
}

/* It has left the queue without having been at its head. (Of a `bool` that is returned one byte has a meaning.) */
SEC("fexit/osq_lock")
int BPF_PROG(spin_is_left, void *queue, __u64 head)
{
	if (!(__u8)head)
		vcpu__spins(false);
	return 0;
}

SEC("fentry/osq_unlock")
int BPF_PROG(spin_ends, void *queue)
{
	vcpu__spins(false);
	return 0;
}
