/* SPDX-License-Identifier: GPL-2.0-only */
/* What a vCPU runs next: of its own queues, of others', or what it ran before. */
#ifndef ENTRAIN_GUEST_SCHED_DISPATCH_H
#define ENTRAIN_GUEST_SCHED_DISPATCH_H

#include "account.bpf.h"
#include "helper.bpf.h"
#include "limit.bpf.h"
#include "park.bpf.h"
#include "takeover.bpf.h"

/* A parked vCPU: its pinned tasks, and what no vCPU in use may run. */
static __always_inline void vcpu__dispatch_parked(__s32 cpu, struct task_struct *prev, bool queued)
{
	struct task_struct *head;
	bool stranded = false;

	if (queue__take_first(QUEUE_PINNED(cpu)))
		return;
	bpf_rcu_read_lock();
	head = scx_bpf_dsq_peek(QUEUE_OPEN(cpu));
	if (head) {
		stranded = vcpu__kept_for(head, cpu) < 0;
		/* It came before this vCPU was parked. Were all in use idle, nobody would look for it. */
		if (!stranded)
			helper__wake(head, true);
	}
	bpf_rcu_read_unlock();
	if (stranded && queue__take_first(QUEUE_OPEN(cpu)))
		return;
	if (queued && (task__is_pinned(prev) || vcpu__kept_for(prev, cpu) < 0))
		scx_bpf_task_set_slice(prev, GUEST_SLICE_NS);
}

/* Of the task that ran and those that wait here, the one that has had the least. */
struct best {
	__u64 vtime;
	bool has;
};

static __always_inline void best__take(struct best *b, __u64 vtime)
{
	if (vtime == NO_HEAD || (b->has && !entrain_before(vtime, b->vtime)))
		return;
	b->vtime = vtime;
	b->has = true;
}

/* Whether a task is counted as waiting in a queue of all vCPUs, and is not in it yet, or its vCPU's bit is not there.
 */
static __noinline bool queues__await(void)
{
	int i, j;

	bpf_for (i, 0, nr_words) {
		__u64 bits = mask__word(&mask_waiting, i);
		__s64 seen = 0;

		bpf_for (j, 0, LOOK_AT_WAKE) {
			__s32 other;

			if (!bits)
				break;
			seen++;
			other = i * 64 + bits__lowest(bits);
			bits &= bits - 1;
			if (READ_ONCE(vcpu__of(other)->waiting_open) > scx_bpf_dsq_nr_queued(QUEUE_OPEN(other)))
				return true;
		}
		if (!bits && READ_ONCE(*waiting__counted(i)) > seen)
			return true;
	}
	return false;
}

/*
 * An idle vCPU has found nothing. A task may be on its way: whoever queues it has counted it and has looked for idle
 * vCPUs before this one was one, and the kernel inserts it when ops.enqueue returns. Nobody would look for it then, so
 * this vCPU looks again, a few times: where the other one has lost its pCPU in the midst of it, that may take long. And
 * once more where none is on its way any more, for it may have come since the look.
 */
static __always_inline void vcpu__looks_again(__s32 cpu, struct vcpu_ctx *v)
{
	if (v->again >= LOOK_AGAIN || !queues__await()) {
		v->again = 0;
		takeover__look(cpu, false, 0);
		return;
	}
	v->again++;
	vcpu__kick(cpu, SCX_KICK_IDLE);
}

/* A vCPU whose queue of the kernel is empty, while somebody waits for a vCPU. */
static __always_inline void vcpu__dispatch_waiting(__s32 cpu, struct vcpu_ctx *v, struct task_struct *prev, bool queued)
{
	struct task_ctx *t = queued ? task__of(prev) : NULL;
	__u64 pinned = NO_HEAD, vtime = NO_HEAD;
	struct best own = {};

	if (t) {
		account__settle(cpu, prev, t, scx_bpf_now());
		vtime = t->vtime;
		best__take(&own, vtime);
	}
	if (READ_ONCE(v->waiting) > 0) {
		pinned = queue__head_vtime(QUEUE_PINNED(cpu));
		best__take(&own, queue__head_vtime(QUEUE_OPEN(cpu)));
		best__take(&own, pinned);
		if (own.has)
			v->clock = vtime__later(v->clock, own.vtime);
	}
	if (own.has) {
		if (v->compare && takeover__look(cpu, true, own.vtime))
			return;
		if (t && own.vtime == vtime) {
			scx_bpf_task_set_slice(prev, vcpu__slice(v));
			return;
		}
		if (own.vtime == pinned && queue__take_first(QUEUE_PINNED(cpu)))
			return;
	}
	/* The heads may have gone meanwhile, or may not run here. */
	if (queue__take_first(QUEUE_OPEN(cpu)) || queue__take_first(QUEUE_PINNED(cpu)))
		return;
	if (queued)
		scx_bpf_task_set_slice(prev, GUEST_SLICE_NS);
	else if (!takeover__look(cpu, false, 0) && !prev)
		vcpu__looks_again(cpu, v);
}

/*
 * An idle vCPU was woken, and looks for work. Its bit comes first, as a barrier: who inserts a task from here on sees
 * it (helper__wake_lookers), or it is seen here. It is idle no more to those who send tasks: one that came to its own
 * queue now would lie behind what is found here, where nobody else could take it. Where nothing is found the kernel
 * marks it idle again.
 */
static __always_inline void vcpu__looks(__s32 cpu, struct vcpu_ctx *v)
{
	if (!v->looks) {
		v->looks = 1;
		mask__set(&mask_looking, cpu);
	}
	scx_bpf_test_and_clear_cpu_idle(cpu);
}

/*
 * A vCPU whose queue of the kernel is empty: what it runs next. Now and then what a switch costs is measured, from here
 * to when the task that was chosen begins.
 */
static __always_inline void vcpu__dispatch(__s32 cpu, struct task_struct *prev)
{
	bool queued = prev && (prev->scx.flags & SCX_TASK_QUEUED);
	struct vcpu_ctx *v = vcpu__of(cpu);

	/* Taken back before the look: a claim that comes after it is for ops.running to see. */
	v->served = v->claimed ? __sync_lock_test_and_set(&v->claimed, 0) : 0;
	v->asked = queued ? 0 : choice__began(v->choices++, &v->behind);
	if (!prev)
		vcpu__looks(cpu, v);
	if (mode.contended)
		vcpud__step(scx_bpf_now());
	/* One whose group has no time left goes by ops.enqueue to where it waits for it. */
	if (queued && !task__limit_goes_on(prev, cpu))
		queued = false;
	if (v->parked)
		vcpu__dispatch_parked(cpu, prev, queued);
	else if (waiting__any())
		vcpu__dispatch_waiting(cpu, v, prev, queued);
	else if (queued)
		scx_bpf_task_set_slice(prev, GUEST_SLICE_NS);
}

/*
 * The kernel of a vCPU begins or ends to idle. Who inserts a task sets the bit of its queue first and looks for idle
 * vCPUs then; the kernel marks this one idle first and looks here then: one of both sees the other. So none waits that
 * was queued while ops.dispatch had dropped the run queue's lock and found nothing, or when its CPU was chosen busy and
 * has gone idle since.
 */
static __always_inline void vcpu__update_idle(__s32 cpu, bool idle)
{
	struct vcpu_ctx *v = vcpu__of(cpu);

	if (!idle) {
		/* From here on a claim is seen by ops.running, or not made. */
		__sync_lock_test_and_set(&v->idles, 0);
		if (v->looks) {
			v->looks = 0;
			mask__clear(&mask_looking, cpu);
		}
		return;
	}
	v->run_at = 0;
	v->asked = 0;
	v->woken = 0;
	v->hands_from = 0;
	v->claim = 0;
	v->claimed = 0;
	v->idles = 1;
	page__publish_idle(cpu);
	/* As an addition it is the barrier that the above needs. */
	if (__sync_fetch_and_add(&v->waiting, 0) > 0 || (!v->parked && waiting__any()))
		vcpu__kick(cpu, SCX_KICK_IDLE);
}

#endif /* ENTRAIN_GUEST_SCHED_DISPATCH_H */
