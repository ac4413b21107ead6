/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * CPUs that come and go while the scheduler runs. The kernel itself moves the tasks of a CPU that goes; what is left to
 * do are tasks of other CPUs that wait in its queue, since whoever wakes may be queued where it wants to preempt.
 */
#ifndef ENTRAIN_SCHED_HOTPLUG_BPF_H
#define ENTRAIN_SCHED_HOTPLUG_BPF_H

#include "look.bpf.h"

/* ops.cpu_offline. */
static __always_inline void cpu__goes(__u32 cpu)
{
	struct entry_timer *r = bpf_map_lookup_elem(&sched_alarms, &cpu);
	struct cpu_ctx *c = cpu__ctx(cpu);

	c->offline = 1;
	__sync_fetch_and_add(&cpu_changes, 1);
	cpu__send_away(cpu);
	/* Whoever has just chosen this CPU may not have inserted its task yet. */
	if (r)
		bpf_timer_start(&r->timer, STRAY_NS, 0);
}

/* ops.cpu_online. What it last ran it has left. */
static __always_inline void cpu__comes(__u32 cpu)
{
	struct cpu_ctx *c = cpu__ctx(cpu);

	c->started = 0;
	c->tgid = 0;
	c->granted = 0;
	c->next = 0;
	c->stay = STAY_FULL;
	c->clock = llc__queue(c->llc)->vtime;
	c->offline = 0;
	__sync_fetch_and_add(&cpu_changes, 1);
}

#endif /* ENTRAIN_SCHED_HOTPLUG_BPF_H */
