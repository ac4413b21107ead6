/* SPDX-License-Identifier: GPL-2.0-only */
/* The self-test of the channel: the host's side of experiment `channel`. */
#ifndef ENTRAIN_OBSERVE_SELFTEST_BPF_H
#define ENTRAIN_OBSERVE_SELFTEST_BPF_H

#include "../channel.bpf.h"
#include "state.bpf.h"

/* The self-test of the channel: answers a guest that hammers its page, and adds as it does. Never in normal service. */
static __always_inline void selftest__hammer(__u32 index, struct entrain_selftest_args *args)
{
	struct entrain_vcpu *vcpu = vcpu__by_index(index);
	struct entrain_thread *thread = bpf_map_lookup_elem(&vcpu_threads, &index);
	struct task_struct *task = thread && vcpu && vcpu->used ? thread->task : NULL;
	struct entrain_pairing *pairing = task ? pairing__of(task) : NULL;
	struct entrain_page *page = pairing ? pairing->page : NULL;
	__u64 added = 0;
	__u32 i;

	if (!page || !(extra_features & ENTRAIN_F_SELFTEST) || !(pairing->features & ENTRAIN_F_SELFTEST))
		return;
	bpf_for (i, 0, args->loops) {
		__u64 ping = READ_ONCE(page->selftest_guest.word);

		/* Only a guest that plays is answered. */
		if (!ping)
			break;
		if (READ_ONCE(page->selftest_host.word) != ping) {
			WRITE_ONCE(page->selftest_host.word, ping);
			args->trips++;
		}
		__sync_fetch_and_add(&page->selftest.shared, 1);
		added++;
	}
	WRITE_ONCE(page->selftest_host.added, page->selftest_host.added + added);
	args->added += added;
}

SEC("syscall")
int selftest(struct entrain_selftest_args *args)
{
	__u32 entries = args->entries;
	int i;

	args->trips = args->added = 0;
	if (entries > ENTRAIN_HOST_VCPUS)
		return 0;
	bpf_for (i, 0, entries) {
		bpf_rcu_read_lock();
		selftest__hammer(i, args);
		bpf_rcu_read_unlock();
	}
	return 0;
}

#endif /* ENTRAIN_OBSERVE_SELFTEST_BPF_H */
