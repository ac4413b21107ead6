// SPDX-License-Identifier: GPL-2.0-only
/*
 * The guest's scheduler: fair by virtual time, aware that its CPUs are a host's threads.
 *
 * While the host withholds nothing (calm) a waking task goes to an idle vCPU of the kernel's choice, at once and
 * without an account, or waits where it starts sooner than by a kick (sched/watch.bpf.h). Only where tasks have to wait
 * are there queues, ordered by virtual time (sched/clock.bpf.h), and is anybody charged. While the host withholds time
 * (contended) a waking task goes to the vCPU that costs it least (sched/place.bpf.h), and vcpud parks the vCPUs for
 * which there is no pCPU (sched/park.bpf.h). In both vCPUs take from one another's queues (sched/takeover.bpf.h), so
 * that nothing waits behind a vCPU that the host holds back. What the host publishes is advice: without it, steal time
 * takes its place. Constants stand in sched/tunables.h.
 *
 * Functions that are not static are verified on their own, once: what they return is any number to their callers, which
 * keeps the loops around them short for the verifier.
 */
#include "sched/enqueue.bpf.h"
#include "sched/dispatch.bpf.h"
#include "sched/task.bpf.h"
#include "sched/tick.bpf.h"
#include "sched/lifecycle.bpf.h"

char _license[] SEC("license") = "GPL";

__s32 SCX_OP(guest_select_cpu, struct task_struct *p, __s32 previous, __u64 wake_flags)
{
	return task__select_vcpu(p, previous, wake_flags);
}

void SCX_OP(guest_enqueue, struct task_struct *p, __u64 enq_flags)
{
	task__enqueue(p, enq_flags);
}

void SCX_OP(guest_dispatch, __s32 cpu, struct task_struct *prev)
{
	vcpu__dispatch(cpu, prev);
}

void SCX_OP(guest_running, struct task_struct *p)
{
	task__running(p);
}

void SCX_OP(guest_stopping, struct task_struct *p, bool runnable)
{
	task__stopping(p, runnable);
}

void SCX_OP(guest_tick, struct task_struct *p)
{
	vcpu__tick(p);
}

void SCX_OP(guest_quiescent, struct task_struct *p, __u64 deq_flags)
{
	task__quiescent(p);
}

/* A yield to a certain task, as KVM makes it for nested guests, is not followed. */
bool SCX_OP(guest_yield, struct task_struct *from, struct task_struct *to)
{
	if (!to)
		task__yield(from);
	return false;
}

void SCX_OP(guest_update_idle, __s32 cpu, bool idle)
{
	vcpu__update_idle(cpu, idle);
}

__s32 SCX_OP(guest_init_task, struct task_struct *p, struct scx_init_task_args *args)
{
	return task__init(p);
}

__s32 SCX_OP_SLEEPABLE(guest_cgroup_init, struct cgroup *cgrp, struct scx_cgroup_init_args *args)
{
	__s32 error = cgroup__enter(cgrp, args->weight);

	return error ? error : cgroup__limit_to(cgrp, args->bw_period_us, args->bw_quota_us, args->bw_burst_us);
}

void SCX_OP(guest_cgroup_exit, struct cgroup *cgrp)
{
	cgroup__unlimit(cgrp);
	cgroup__end(cgrp);
}

void SCX_OP(guest_cgroup_move, struct task_struct *p, struct cgroup *from, struct cgroup *to)
{
	struct task_ctx *t = task__of(p);

	if (!t)
		return;
	limit__forget(&t->limit);
	cgroup__moved(&t->member);
}

void SCX_OP(guest_cgroup_set_bandwidth, struct cgroup *cgrp, __u64 period_us, __u64 quota_us, __u64 burst_us)
{
	if (cgroup__limit_to(cgrp, period_us, quota_us, burst_us) == -LIMIT_ENOSPC)
		scx_exit(LIMIT_ENOSPC, "more than 255 cgroups have a limit in cpu.max: this scheduler makes way");
}

void SCX_OP(guest_cgroup_set_weight, struct cgroup *cgrp, __u32 weight)
{
	cgroup__reweigh(cgrp, weight);
}

__s32 SCX_OP_SLEEPABLE(guest_init)
{
	return sched__start();
}

void SCX_OP(guest_exit, struct scx_exit_info *info)
{
	exit__note(info);
}

SEC(".struct_ops.link")
struct sched_ext_ops guest_ops = {
	.select_cpu = (void *)guest_select_cpu,
	.enqueue = (void *)guest_enqueue,
	.dispatch = (void *)guest_dispatch,
	.tick = (void *)guest_tick,
	.running = (void *)guest_running,
	.stopping = (void *)guest_stopping,
	.quiescent = (void *)guest_quiescent,
	.yield = (void *)guest_yield,
	.update_idle = (void *)guest_update_idle,
	.init_task = (void *)guest_init_task,
	.cgroup_init = (void *)guest_cgroup_init,
	.cgroup_exit = (void *)guest_cgroup_exit,
	.cgroup_move = (void *)guest_cgroup_move,
	.cgroup_set_weight = (void *)guest_cgroup_set_weight,
	.cgroup_set_bandwidth = (void *)guest_cgroup_set_bandwidth,
	.init = (void *)guest_init,
	.exit = (void *)guest_exit,
	/* A parked vCPU must get the chance to give its last task away. */
	.flags = SCX_OPS_ENQ_LAST | SCX_OPS_KEEP_BUILTIN_IDLE,
	.timeout_ms = WATCHDOG_MS,
	.name = "entrain_guest",
};
