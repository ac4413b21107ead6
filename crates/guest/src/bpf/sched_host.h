/* SPDX-License-Identifier: GPL-2.0-only */
/* The channel page as the guest's scheduler uses it: the host's words in, the guest's words out, and the steal clock.
 */
#ifndef ENTRAIN_GUEST_SCHED_HOST_H
#define ENTRAIN_GUEST_SCHED_HOST_H

#include "sched_state.h"

/* The kernel's account of each CPU; members beyond `cpustat` differ between versions and do not matter. */
struct kernel_cpustat {
	__u64 cpustat[8];
} __attribute__((preserve_access_index));

extern struct kernel_cpustat kernel_cpustat __ksym;

#define CPUTIME_STEAL 7

/* Kernel priority of an idle CPU in guest.prio. */
#define PRIO_IDLE 140

/* The host's features while it is alive, else 0: written by the controller, read by everyone. */
__u64 host_features;
struct guest_heartbeat host_heartbeat;

static __always_inline struct entrain_page *page_of(__s32 cpu)
{
	__u32 key = cpu;

	return bpf_map_lookup_elem(&entrain_pages, &key);
}

/* Looks whether the host is there; by the controller, for all. Page 0 speaks for the host as a whole. */
static __always_inline void host_look(__u64 now)
{
	struct entrain_page *page = page_of(0);
	__u64 features = 0, seed;

	if (page && ENTRAIN_LINK_STATE(READ_ONCE(page->link.link)) == ENTRAIN_LINK_PAIRED) {
		seed = READ_ONCE(page->link.seed);
		if (guest_host_alive(&host_heartbeat, entrain_read(&page->host_slow.heartbeat, seed), now))
			features = entrain_read(&page->host_slow.features, seed);
	}
	host_features = features;
	stats.host_alive = features != 0;
}

/* What the host says of a vCPU. */
static __always_inline struct guest_vcpu_view host_view(__s32 cpu)
{
	struct guest_vcpu_view none = {};
	__u64 features = host_features, seed;
	struct entrain_page *page;

	if (!features)
		return none;
	page = page_of(cpu);
	if (!page)
		return none;
	seed = READ_ONCE(page->link.seed);
	return guest_vcpu_view(features, entrain_read(&page->host_fast.state, seed),
			       entrain_read(&page->host_fast.instant, seed));
}

static __always_inline __u32 host_capacity(__s32 cpu, __u32 *perf)
{
	struct entrain_page *page = page_of(cpu);
	__u64 features = host_features, seed;

	*perf = ENTRAIN_CAPACITY_SCALE;
	if (!page || !features)
		return ENTRAIN_CAPACITY_SCALE;
	seed = READ_ONCE(page->link.seed);
	*perf = guest_scale(features, entrain_read(&page->host_slow.perf, seed));
	return guest_scale(features, entrain_read(&page->host_slow.capacity, seed));
}

static __always_inline __s64 host_entitlement(void)
{
	struct entrain_page *page = page_of(0);
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
static __always_inline __u64 steal_clock(__s32 cpu, __u64 *which)
{
	struct kernel_cpustat *stat;
	struct entrain_page *page;

	if (host_features & ENTRAIN_F_VCPU_STATE) {
		page = page_of(cpu);
		if (page) {
			*which = 1;
			return entrain_read(&page->host_fast.steal, READ_ONCE(page->link.seed)) << ENTRAIN_TIME_SHIFT;
		}
	}
	*which = 0;
	stat = bpf_per_cpu_ptr(&kernel_cpustat, cpu);
	return stat ? stat->cpustat[CPUTIME_STEAL] : 0;
}

/* Short bursts and more than the usual weight: what waits for it is a human or another machine. */
static __always_inline __u64 latency_of(struct task_struct *p, __s32 cpu)
{
	return vcpu(cpu)->burst < ENTRAIN_MSEC && p->scx.weight > ENTRAIN_WEIGHT_DEFAULT ? p->scx.weight : 0;
}

/* Tells the host for what it will be asked to run an idle vCPU, before it is asked. */
static __always_inline void publish_wakeup(__s32 cpu, struct task_struct *p)
{
	struct entrain_page *page = page_of(cpu);

	if (page)
		WRITE_ONCE(page->guest.latency, latency_of(p, cpu));
}

/*
 * Publishes what runs on a vCPU; `p` is NULL when nothing of ours does. An idle vCPU keeps the word of what ran last: a
 * timer or a device wakes it without asking any scheduler of the guest, and most often for the task that it slept for.
 */
static __always_inline void publish_running(__s32 cpu, struct task_struct *p)
{
	struct entrain_page *page = page_of(cpu);

	if (!page)
		return;
	WRITE_ONCE(page->guest.prio, p ? (__u64)p->prio : PRIO_IDLE);
	if (p)
		WRITE_ONCE(page->guest.latency, latency_of(p, cpu));
	else
		WRITE_ONCE(page->guest.runnable, 0);
}

/* Tasks that want this vCPU, the running one counted; at ticks. */
static __always_inline void publish_runnable(__s32 cpu)
{
	struct entrain_page *page = page_of(cpu);

	if (page)
		WRITE_ONCE(page->guest.runnable, 1 + (__u64)scx_bpf_dsq_nr_queued(QUEUE_OPEN(cpu)) +
							 (__u64)scx_bpf_dsq_nr_queued(QUEUE_PINNED(cpu)));
}

/*
 * Tells the host what a vCPU needs; on any vCPU, whenever that changes. A wake-up tells it before the host is asked to
 * run the vCPU, so that the CPU is at its level when the task begins.
 */
static __always_inline void publish_util(__s32 cpu, __u64 now)
{
	struct entrain_page *page = page_of(cpu);
	struct vcpu_ctx *v = vcpu(cpu);
	__u64 util;

	if (!page)
		return;
	util = guest_vcpu_claim(v->load, v->run_at ? 0 : entrain_sub(now, v->load_at), v->claim, v->waiting);
	if (READ_ONCE(page->guest.util) != util)
		WRITE_ONCE(page->guest.util, util);
}

/* Nothing runs there: a host that runs the vCPU for an interrupt needs no more than it measures itself. */
static __always_inline void publish_util_idle(__s32 cpu)
{
	struct entrain_page *page = page_of(cpu);

	vcpu(cpu)->claim = 0;
	if (page)
		WRITE_ONCE(page->guest.util, 0);
}

/* vCPUs that the guest could use: at once in page 0, which speaks for the guest, and in the vCPU's own. */
static __always_inline void publish_wants(__s32 cpu)
{
	__u64 wants = nr_runnable > 0 ? nr_runnable : 0;
	struct entrain_page *page = page_of(0);

	if (wants > nr_vcpus)
		wants = nr_vcpus;
	if (page && READ_ONCE(page->guest.wants) != wants)
		WRITE_ONCE(page->guest.wants, wants);
	page = page_of(cpu);
	if (page)
		WRITE_ONCE(page->guest.wants, wants);
}

#endif /* ENTRAIN_GUEST_SCHED_HOST_H */
