// SPDX-License-Identifier: GPL-2.0-only
/* The guest's side of the channel's self-test: adds to the shared word and plays ping-pong with the host's BPF. */
#include <asm-generic/errno.h>
#include "pages.bpf.h"
#include "selftest.h"

char LICENSE[] SEC("license") = "GPL";

extern void bpf_preempt_disable(void) __ksym __weak;
extern void bpf_preempt_enable(void) __ksym __weak;

static __always_inline __u64 play(struct entrain_page *page, __u32 loops)
{
	__u64 trips = 0, added = 0;
	__u32 i;

	bpf_for (i, 0, loops) {
		__u64 ping = READ_ONCE(page->selftest_guest.word);

		if (READ_ONCE(page->selftest_host.word) == ping) {
			WRITE_ONCE(page->selftest_guest.word, ping + 1);
			trips++;
		}
		__sync_fetch_and_add(&page->selftest.shared, 1);
		added++;
	}
	WRITE_ONCE(page->selftest_guest.added, page->selftest_guest.added + added);
	return trips;
}

SEC("syscall")
int hammer(struct entrain_hammer *h)
{
	__u32 vcpu = h->vcpu, levels = h->levels, loops = h->loops;
	struct entrain_page *page = bpf_map_lookup_elem(&entrain_pages, &vcpu);
	__u64 trips = 0;

	h->error = 0;
	if (!page) {
		h->error = -ENOENT;
		return 0;
	}
	if (levels && !bpf_ksym_exists(bpf_preempt_disable)) {
		h->error = -ENOSYS;
		return 0;
	}
/* The levels must be literal: the verifier counts them. `levels` in the page is true from store to store. */
#define AT(n, disable, enable)                                                                                         \
	case n:                                                                                                        \
		disable;                                                                                               \
		WRITE_ONCE(page->selftest_guest.levels, n + 1);                                                        \
		trips = play(page, loops);                                                                             \
		WRITE_ONCE(page->selftest_guest.levels, 0);                                                            \
		enable;                                                                                                \
		break
#define OFF bpf_preempt_disable()
#define ON  bpf_preempt_enable()
	switch (levels) {
		AT(0, , );
		AT(1, OFF, ON);
		AT(2, OFF; OFF, ON; ON);
		AT(3, OFF; OFF; OFF, ON; ON; ON);
		AT(4, OFF; OFF; OFF; OFF, ON; ON; ON; ON);
	}
	h->trips = trips;
	return 0;
}
