/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the scheduler knows at the moment when it is dumped: by the kernel when it throws the scheduler out (the daemon
 * logs it), or by SysRq-D (the tracepoint sched_ext_dump).
 */
#ifndef ENTRAIN_SCHED_DUMP_BPF_H
#define ENTRAIN_SCHED_DUMP_BPF_H

#include "balance.bpf.h"

/* Milliseconds since a moment; -1: there was none. */
static __always_inline __s64 dump__since(__u64 at, __u64 now)
{
	return at ? (__s64)(entrain_sub(now, at) / ENTRAIN_MSEC) : -1;
}

/* ops.dump: each LLC. */
static __always_inline void dump__llcs(void)
{
	__u32 l;

	bpf_for (l, 0, SCHED_MAX_LLCS) {
		const struct queue_ctx *q = llc__queue(l);

		if (q->nr)
			scx_dump("LLC %u: %u CPUs, somebody waits for %d, clock %llu, load %llu, to take %lld from LLC "
				 "%u\n",
				 l, q->nr, q->waiting, q->vtime, q->load, q->owed, q->giver);
	}
}

/* ops.dump_cpu. Of one that idles and for which nobody waits there is nothing to say. */
static __always_inline void dump__cpu(__s32 cpu, bool idle)
{
	const struct cpu_ctx *c = cpu__ctx(cpu);
	__u64 now = scx_bpf_now();

	if (idle && c->waiting <= 0)
		return;
	scx_dump("LLC %u, offline %u, %d waiting (%d with a target), clock %llu, load %llu\n", c->llc, c->offline,
		 c->waiting, c->hurried, c->clock, cpu__load(c));
	scx_dump("runs for %lld ms in this turn, share %u, VM %d, extension or short stay %u, next %llu\n",
		 dump__since(c->started ? c->turn : 0, now), c->share, c->tgid, c->granted != 0, c->next);
}

/* ops.dump_task: who waits since when, and how its clock stands to its queue's. */
static __always_inline void dump__task(struct task_struct *p)
{
	const struct task_ctx *t = task__ctx(p);
	const struct cpu_ctx *c = t ? cpu__ctx(t->queued ? t->cpu : scx_bpf_task_cpu(p)) : NULL;
	__u64 now = scx_bpf_now();

	if (!c)
		return;
	scx_dump("waits for %lld ms, queue of CPU %d, clock %llu, lag %lld ns, share %u\n",
		 dump__since(t->waiting, now), t->queued ? (__s32)t->cpu : -1, t->pub.vtime,
		 (__s64)(cpu__clock(c) - t->pub.vtime), t->share);
	if (t->pub.vcpu)
		scx_dump("vCPU of %d: level %u, front %u, leaving %u, short stay %u, owes %lld us\n", t->pub.tgid,
			 t->level, t->front, t->leaving, t->stay, t->extend.debt / 1000);
}

#endif /* ENTRAIN_SCHED_DUMP_BPF_H */
