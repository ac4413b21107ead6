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

/*
 * Publishes what runs on a vCPU; `p` is NULL when nothing of ours does. An idle vCPU keeps the word of what ran last: a
 * timer or a device wakes it without asking any scheduler of the guest, and most often for the task that it slept for.
 */
static __always_inline void page__publish_running(__s32 cpu, struct task_struct *p)
{
	struct entrain_page *page = page__of(cpu);

	if (!page)
		return;
	WRITE_ONCE(page->guest.prio, p ? (__u64)p->prio : PRIO_IDLE);
	if (p)
		WRITE_ONCE(page->guest.latency, task__latency(p, cpu));
	else
		WRITE_ONCE(page->guest.runnable, 0);
}

/* Tasks that want this vCPU, the running one counted; at ticks. */
static __always_inline void page__publish_runnable(__s32 cpu)
{
	struct entrain_page *page = page__of(cpu);

	if (page)
		WRITE_ONCE(page->guest.runnable, 1 + (__u64)scx_bpf_dsq_nr_queued(QUEUE_OPEN(cpu)) +
							 (__u64)scx_bpf_dsq_nr_queued(QUEUE_PINNED(cpu)));
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
	util = guest_vcpu_claim(v->load.mean, v->run_at ? 0 : entrain_sub(now, v->load.at), v->claim, v->waiting);
	if (READ_ONCE(page->guest.util) != util)
		WRITE_ONCE(page->guest.util, util);
}

/* Nothing runs there: a host that runs the vCPU for an interrupt needs no more than it measures itself. */
static __always_inline void page__publish_util_idle(__s32 cpu)
{
	struct entrain_page *page = page__of(cpu);

	vcpu__of(cpu)->claim = 0;
	if (page)
		WRITE_ONCE(page->guest.util, 0);
}

/* vCPUs that the guest could use: at once in page 0, which speaks for the guest, and in the vCPU's own. */
static __always_inline void page__publish_wants(__s32 cpu)
{
	__u64 wants = nr_runnable > 0 ? nr_runnable : 0;
	struct entrain_page *page = page__of(0);

	if (wants > nr_vcpus)
		wants = nr_vcpus;
	if (page && READ_ONCE(page->guest.wants) != wants)
		WRITE_ONCE(page->guest.wants, wants);
	page = page__of(cpu);
	if (page)
		WRITE_ONCE(page->guest.wants, wants);
}

/* The kernel of a vCPU begins or ends to idle. */
static __always_inline void vcpu__update_idle(__s32 cpu, bool idle)
{
	struct vcpu_ctx *v = vcpu__of(cpu);

	WRITE_ONCE(v->idle, idle);
	if (idle) {
		v->run_at = 0;
		page__publish_running(cpu, NULL);
		page__publish_util_idle(cpu);
	}
	page__publish_wants(cpu);
}

#endif /* ENTRAIN_GUEST_SCHED_PUBLISH_H */
