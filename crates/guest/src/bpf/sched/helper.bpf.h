/* SPDX-License-Identifier: GPL-2.0-only */
/* Helpers: idle vCPUs that are woken so that they take over what waits behind another one. */
#ifndef ENTRAIN_GUEST_SCHED_HELPER_H
#define ENTRAIN_GUEST_SCHED_HELPER_H

#include "host.bpf.h"

/* Claims an idle vCPU of one word in use and kicks it; only one that the host would run at once, if `certain`. */
static __always_inline bool helper__wake_in(__u64 bits, __u32 word, bool certain)
{
	int i;

	bpf_for (i, 0, LOOK_AT_WAKE) {
		struct guest_vcpu_view view;
		__s32 cpu;

		if (!bits)
			break;
		cpu = word * 64 + bits__lowest(bits);
		bits &= bits - 1;
		view = host__vcpu_view(cpu);
		if (certain && view.state != ENTRAIN_VCPU_UNKNOWN && !view.instant &&
		    view.state != ENTRAIN_VCPU_RUNNING)
			continue;
		if (!scx_bpf_test_and_clear_cpu_idle(cpu))
			continue;
		vcpu__kick(cpu, SCX_KICK_IDLE);
		return true;
	}
	return false;
}

/* The same among all that the task may use. */
static __noinline bool helper__wake_one(struct task_struct *p, bool certain)
{
	const struct cpumask *idle = scx_bpf_get_idle_cpumask();
	bool found = false;
	int i;

	bpf_for (i, 0, nr_words) {
		__u64 bits = cpumask__word(idle, i) & mask__word(&mask_kept, i);

		if (bits)
			bits &= cpumask__word(p->cpus_ptr, i);
		found = bits && helper__wake_in(bits, i, certain);
		if (found)
			break;
	}
	scx_bpf_put_idle_cpumask(idle);
	return found;
}

/*
 * An idle vCPU that may run the task, claimed to look for what waits in the queue of `target`, and for the caller to
 * kick; -1: none. One that has left its idling meanwhile may have begun to run another task without looking at what is
 * said here.
 */
static __noinline __s32 helper__claim(struct task_struct *p, __s32 target)
{
	struct vcpu_ctx *v;
	__s32 cpu;
	int i;

	bpf_for (i, 0, CLAIM_TRIES) {
		cpu = scx_bpf_pick_idle_cpu(p->cpus_ptr, 0);
		if (cpu < 0)
			return -1;
		v = vcpu__of(cpu);
		/* The barrier between the two; its counterpart is in vcpu__update_idle(). */
		__sync_lock_test_and_set(&v->claimed, cpu_or_none__of(target));
		if (READ_ONCE(v->idles))
			return cpu;
		/* One that only begins to idle must look and be marked again, or nobody finds it idle. */
		vcpu__kick(cpu, SCX_KICK_IDLE);
	}
	return -1;
}

/*
 * An idle vCPU, if there is one, takes the first who waits in the OPEN queue of `target`; not for one that may run only
 * where `other` may.
 */
static __noinline void helper__wake_for(__s32 target, struct task_struct *other)
{
	struct task_struct *head;
	__s32 cpu = -1;

	bpf_rcu_read_lock();
	head = scx_bpf_dsq_peek(QUEUE_OPEN(target));
	if (head && !(other && bpf_cpumask_subset(head->cpus_ptr, other->cpus_ptr)))
		cpu = helper__claim(head, target);
	bpf_rcu_read_unlock();
	if (cpu >= 0)
		vcpu__kick(cpu, SCX_KICK_IDLE);
}

/*
 * From ops.running, of a vCPU that was claimed for a task that waits. Either it has looked at no queue: the task that
 * it runs came to its own queue meanwhile, sent there before the vCPU was busy with yet another one. Or it has looked,
 * and has perhaps found another one, whose own claim is left to the task that waits: but where that may run on other
 * vCPUs, the vCPU claimed for the one may be none for the other. The claim goes on to another vCPU.
 */
static __noinline void vcpu__pass_claim(struct vcpu_ctx *v, struct task_struct *runs)
{
	bool looked = !v->claimed;
	__s32 target = cpu_or_none__cpu(looked ? v->served : v->claimed);

	v->claimed = 0;
	v->served = 0;
	helper__wake_for(target, looked ? runs : NULL);
}

/*
 * Wakes an idle vCPU in use that may help with the task. Where the vCPU that has it will run it itself, only one that
 * the host would run at once is of help. Where it will not (`stuck`: it is parked), any is: were all others idle,
 * nobody else would ever look. In a calm guest the kernel's choice is as good as any.
 */
static __noinline void helper__wake(struct task_struct *p, bool stuck)
{
	__s32 cpu;

	if (!mode.contended) {
		cpu = scx_bpf_pick_idle_cpu(p->cpus_ptr, 0);
		if (cpu >= 0)
			vcpu__kick(cpu, SCX_KICK_IDLE);
		return;
	}
	if (!helper__wake_one(p, true) && stuck)
		helper__wake_one(p, false);
}

/*
 * A vCPU was idle, looks for work at this moment or has found none, and idles on: ops.update_idle is not told of that,
 * and it may have looked before the task was there, while its idle bit was still taken. It looks once more.
 */
static __noinline void helper__wake_lookers(struct task_struct *p)
{
	int i, j;

	bpf_for (i, 0, nr_words) {
		__u64 bits = mask__word(&mask_looking, i);

		if (bits)
			bits &= cpumask__word(p->cpus_ptr, i);
		bpf_for (j, 0, LOOK_AT_WAKE) {
			if (!bits)
				break;
			vcpu__kick(i * 64 + bits__lowest(bits), SCX_KICK_IDLE);
			bits &= bits - 1;
		}
	}
}

#endif /* ENTRAIN_GUEST_SCHED_HELPER_H */
