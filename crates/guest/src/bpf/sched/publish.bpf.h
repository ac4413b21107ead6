/* SPDX-License-Identifier: GPL-2.0-only */
/* What the guest says to its host: its words in the pages of the channel. */
#ifndef ENTRAIN_GUEST_SCHED_PUBLISH_H
#define ENTRAIN_GUEST_SCHED_PUBLISH_H

#include "host.bpf.h"

/* Kernel priority of an idle CPU in guest.prio. */
#define PRIO_IDLE 140

/* Short bursts and more than the usual weight: what waits for it is a human or another machine. */
static __always_inline __u64 task__latency(struct task_struct *p, __s32 cpu)
{
	return vcpu__of(cpu)->burst < ENTRAIN_MSEC && p->scx.weight > ENTRAIN_WEIGHT_DEFAULT ? p->scx.weight : 0;
}

/* Tells the host for what it will be asked to run an idle vCPU, before it is asked. */
static __always_inline void page__publish_wakeup(__s32 cpu, struct task_struct *p)
{
	struct entrain_page *page = page__of(cpu);

	if (page)
		WRITE_ONCE(page->guest.latency, task__latency(p, cpu));
}

/* Publishes what runs on a vCPU. */
static __always_inline void page__publish_running(__s32 cpu, struct task_struct *p)
{
	struct entrain_page *page = host_features ? page__of(cpu) : NULL;

	if (!page)
		return;
	WRITE_ONCE(page->guest.prio, (__u64)p->prio);
	WRITE_ONCE(page->guest.latency, task__latency(p, cpu));
}

/*
 * Nothing of ours runs on a vCPU, and a host that runs it for an interrupt needs no more than it measures itself. It
 * keeps the word of what ran last: a timer or a device wakes it without asking any scheduler of the guest, and most
 * often for the task that it slept for.
 */
static __always_inline void page__publish_idle(__s32 cpu)
{
	struct entrain_page *page = host_features ? page__of(cpu) : NULL;

	if (!page)
		return;
	WRITE_ONCE(page->guest.prio, PRIO_IDLE);
	WRITE_ONCE(page->guest.runnable, 0);
	WRITE_ONCE(page->guest.util, 0);
}

/* Tasks that want this vCPU, the running one counted; at ticks. */
static __always_inline void page__publish_runnable(__s32 cpu)
{
	struct entrain_page *page = page__of(cpu);
	__s64 waiting = READ_ONCE(vcpu__of(cpu)->waiting);

	if (page)
		WRITE_ONCE(page->guest.runnable, 1 + (waiting > 0 ? waiting : 0));
}

/*
 * Tells the host what a vCPU needs; on any vCPU, whenever that changes. A wake-up tells it before the host is asked to
 * run the vCPU, so that the CPU is at its level when the task begins.
 */
static __always_inline void page__publish_util(__s32 cpu, __u64 now)
{
	struct entrain_page *page = page__of(cpu);
	struct vcpu_ctx *v = vcpu__of(cpu);
	__u64 util;

	if (!page)
		return;
	util = guest_vcpu_claim(v->load.mean, v->run_at ? 0 : entrain_sub(now, v->load.at), v->claim, v->waiting_claim);
	if (READ_ONCE(page->guest.util) != util)
		WRITE_ONCE(page->guest.util, util);
}

/* A task with this claim is about to begin on an idle vCPU. */
static __always_inline void page__raise_util(__s32 cpu, __u64 claim)
{
	struct entrain_page *page = page__of(cpu);

	if (page && READ_ONCE(page->guest.util) < claim)
		WRITE_ONCE(page->guest.util, claim);
}

/* vCPUs that the guest could use, in a vCPU's own page; page 0 speaks for the guest. */
static __always_inline void page__publish_wants(struct entrain_page *page, __u64 wants)
{
	wants = entrain_min(wants, nr_online);
	if (READ_ONCE(page->guest.wants) != wants)
		WRITE_ONCE(page->guest.wants, wants);
}

#endif /* ENTRAIN_GUEST_SCHED_PUBLISH_H */
