/* SPDX-License-Identifier: GPL-2.0-only */
/* What the host says: its words in the pages of the channel, and the steal clock, which does without them. */
#ifndef ENTRAIN_GUEST_SCHED_HOST_H
#define ENTRAIN_GUEST_SCHED_HOST_H

#include "mask.bpf.h"
#include "stay.bpf.h"

/* The kernel's account of each CPU; members beyond `cpustat` differ between versions and do not matter. */
struct kernel_cpustat {
	__u64 cpustat[8];
} __attribute__((preserve_access_index));

extern struct kernel_cpustat kernel_cpustat __ksym;

#define CPUTIME_STEAL 7

/* The host's features while it is alive, else 0: written by the controller, read by everyone, the loader too. */
__u64 host_features;
struct guest_heartbeat host_heartbeat;

static __always_inline struct entrain_page *page__of(__s32 cpu)
{
	__u32 key = cpu;

	return bpf_map_lookup_elem(&entrain_pages, &key);
}

/* Looks whether the host is there; by the controller, for all. Page 0 speaks for the host as a whole. */
static __always_inline void host__look(__u64 now)
{
	struct entrain_page *page = page__of(0);
	__u64 features = 0, seed;

	if (page && ENTRAIN_LINK_STATE(READ_ONCE(page->link.link)) == ENTRAIN_LINK_PAIRED) {
		seed = READ_ONCE(page->link.seed);
		if (guest_host_alive(&host_heartbeat, entrain_read(&page->host_slow.heartbeat, seed), now))
			features = entrain_read(&page->host_slow.features, seed);
	}
	host_features = features;
}

/* What the host says of a vCPU. */
static __always_inline struct guest_vcpu_view host__vcpu_view(__s32 cpu)
{
	struct guest_vcpu_view none = {};
	__u64 features = host_features, seed;
	struct entrain_page *page;

	if (!features)
		return none;
	page = page__of(cpu);
	if (!page)
		return none;
	seed = READ_ONCE(page->link.seed);
	return guest_vcpu_view(features, entrain_read(&page->host_fast.state, seed),
			       entrain_read(&page->host_fast.instant, seed));
}

static __always_inline __u32 host__capacity(__s32 cpu, __u32 *perf)
{
	struct entrain_page *page = page__of(cpu);
	__u64 features = host_features, seed;

	*perf = ENTRAIN_CAPACITY_SCALE;
	if (!page || !features)
		return ENTRAIN_CAPACITY_SCALE;
	seed = READ_ONCE(page->link.seed);
	*perf = guest_scale(features, entrain_read(&page->host_slow.perf, seed));
	return guest_scale(features, entrain_read(&page->host_slow.capacity, seed));
}

static __always_inline __s64 host__entitlement(void)
{
	struct entrain_page *page = page__of(0);
	__u64 features = host_features;

	if (!page || !features)
		return -1;
	return guest_entitlement(features, entrain_read(&page->host_slow.entitlement, READ_ONCE(page->link.seed)),
				 nr_vcpus);
}

/*
 * Time withheld from a vCPU, ns, since some start that depends on the clock: the host's word is exact at every moment,
 * the kernel's own account (paravirtual steal time) is only brought up to date at ticks.
 */
static __always_inline __u64 steal_clock__read(__s32 cpu, __u64 *which)
{
	struct kernel_cpustat *stat;
	struct entrain_page *page;

	if (host_features & ENTRAIN_F_VCPU_STATE) {
		page = page__of(cpu);
		if (page) {
			*which = 1;
			return entrain_read(&page->host_fast.steal, READ_ONCE(page->link.seed)) << ENTRAIN_TIME_SHIFT;
		}
	}
	*which = 0;
	stat = bpf_per_cpu_ptr(&kernel_cpustat, cpu);
	return stat ? stat->cpustat[CPUTIME_STEAL] : 0;
}

#endif /* ENTRAIN_GUEST_SCHED_HOST_H */
