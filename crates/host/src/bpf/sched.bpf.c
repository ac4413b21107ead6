// SPDX-License-Identifier: GPL-2.0-only
/*
 * A scheduler for KVM hosts. Fair by virtual time for every task of the host; for vCPUs it knows what the guest does:
 * it does not take a CPU in the middle of a critical section, follows KVM's directed yields where they help, and lets
 * siblings answer one another. Each decision stands in a header of crates/policy, what is done with it in sched/; here
 * are the operations as the kernel calls them.
 */
#include "scx.h"
#include "sched/interface.h"
#include "sched/wake.bpf.h"
#include "sched/dispatch.bpf.h"
#include "sched/stay.bpf.h"
#include "sched/yield.bpf.h"
#include "sched/let_go.bpf.h"
#include "sched/hotplug.bpf.h"
#include "sched/dump.bpf.h"

char LICENSE[] SEC("license") = "GPL";

#define NUMA_NO_NODE (-1)
#define ENOSPC	     28

_Static_assert(SCHED_MAX_LIMITS == 4096, "the message of limits__are_too_many() says how many there may be");

/* Why the scheduler ended; read by the daemon. */
struct sched_exit sched_exit = {};

/* What was dumped then, as text. */
char sched_dump[SCHED_MAX_DUMP];

__s32 SCX_OP(host_select_cpu, struct task_struct *p, __s32 prev_cpu, __u64 wake_flags)
{
	return task__select_cpu(p, prev_cpu, wake_flags);
}

void SCX_OP(host_enqueue, struct task_struct *p, __u64 enq_flags)
{
	task__enqueue(p, enq_flags);
}

void SCX_OP(host_dispatch, __s32 cpu, struct task_struct *prev)
{
	cpu__dispatch(cpu, prev);
}

void SCX_OP(host_tick, struct task_struct *p)
{
	cpu__tick(p);
}

void SCX_OP(host_quiescent, struct task_struct *p, __u64 deq_flags)
{
	struct task_ctx *t = task__ctx(p);

	if (!t)
		return;
	cgroup__leave(&t->member);
	task__wait_end(t);
	t->waiting = 0;
	t->pub.queue = 0;
}

void SCX_OP(host_running, struct task_struct *p)
{
	stay__begin(p);
}

void SCX_OP(host_stopping, struct task_struct *p, bool runnable)
{
	stay__end(p, runnable);
}

bool SCX_OP(host_yield, struct task_struct *from, struct task_struct *to)
{
	struct task_ctx *f = task__ctx(from);

	if (!f)
		return false;
	if (!to) {
		f->leaving = LEAVING_YIELDED;
		scx_bpf_task_set_slice(from, 0);
		return false;
	}
	return use_yield && spinner__yield(from, f, to);
}

/* arm64: a vCPU waits for an event; with `wfe`, it spins. KVM looks for a sibling to yield to only after this. */
SEC("?tp_btf/kvm_wfx_arm64")
int BPF_PROG(host_wfx, unsigned long pc, bool is_wfe)
{
	struct task_struct *p = bpf_get_current_task_btf();
	struct task_ctx *t;
	__u64 began;

	if (!is_wfe || !use_yield || !answer_ns)
		return 0;
	t = task__ctx(p);
	if (!t || !t->pub.vcpu || !t->started)
		return 0;
	if (use_untrapped)
		task__found_wait(t, pc);
	began = bpf_ktime_get_ns();
	if (!spinner__may_look(t, began))
		return 0;
	spinner__look(p, t);
	spinner__looked(t, began);
	return 0;
}

/* arm64: a vCPU leaves its CPU, and when its guest's timer expires is known from here on. */
SEC("?tp_btf/kvm_timer_save_state")
int BPF_PROG(host_timer, struct arch_timer_context *timer)
{
	if (use_timer)
		stay__timer_saved(timer);
	return 0;
}

void SCX_OP(host_update_idle, __s32 cpu, bool idle)
{
	if (idle)
		cpu__idle(cpu);
	else
		cpu__leaves_idle(cpu);
}

void SCX_OP(host_cpu_online, __s32 cpu)
{
	cpu__comes(cpu);
}

void SCX_OP(host_cpu_offline, __s32 cpu)
{
	cpu__goes(cpu);
}

/* The daemon has written llc_of: before the scheduler starts, and when CPUs have come or gone. */
SEC("syscall")
int host_arrange(struct sched_arrange_args *args)
{
	llc__arrange(args->running);
	return 0;
}

__s32 SCX_OP(host_init_task, struct task_struct *p, struct scx_init_task_args *args)
{
	struct task_ctx *t = bpf_task_storage_get(&sched_tasks, p, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (!t)
		return -ENOMEM;
	t->pub.vtime = llc__queue(0)->vtime;
	t->fresh = 1;
	return 0;
}

void SCX_OP(host_enable, struct task_struct *p)
{
	struct task_ctx *t = task__ctx(p);
	struct cpu_ctx *c;

	c = cpu__ctx(scx_bpf_task_cpu(p));
	if (t && c)
		t->pub.vtime = llc__queue(c->llc)->vtime;
	if (t)
		t->fresh = 1;
}

void SCX_OP(host_exit_task, struct task_struct *p, struct scx_exit_task_args *args)
{
	struct task_ctx *t = task__ctx(p);

	if (!t)
		return;
	task__wait_end(t);
	task__forget_vcpu(t);
}

/* The kernel's own scheduler enforces what this one has no room for. */
static void limits__are_too_many(void)
{
	scx_exit(ENOSPC, "more than 4095 cgroups have a limit in cpu.max: this scheduler makes way");
}

__s32 SCX_OP_SLEEPABLE(host_cgroup_init, struct cgroup *cgrp, struct scx_cgroup_init_args *args)
{
	__s32 error = cgroup__enter(cgrp, args->weight);

	if (!error)
		error = cgroup__limit_to(cgrp, args->bw_period_us, args->bw_quota_us, args->bw_burst_us);
	if (error == -LIMIT_ENOSPC)
		limits__are_too_many();
	return error;
}

void SCX_OP(host_cgroup_exit, struct cgroup *cgrp)
{
	cgroup__unlimit(cgrp);
	cgroup__end(cgrp);
}

void SCX_OP(host_cgroup_move, struct task_struct *p, struct cgroup *from, struct cgroup *to)
{
	struct task_ctx *t = task__ctx(p);

	if (!t)
		return;
	limit__forget(&t->limit);
	cgroup__moved(&t->member);
}

void SCX_OP(host_cgroup_set_weight, struct cgroup *cgrp, __u32 weight)
{
	cgroup__reweigh(cgrp, weight);
}

void SCX_OP_SLEEPABLE(host_cgroup_set_bandwidth, struct cgroup *cgrp, __u64 period_us, __u64 quota_us, __u64 burst_us)
{
	if (cgroup__limit_to(cgrp, period_us, quota_us, burst_us) == -LIMIT_ENOSPC)
		limits__are_too_many();
}

__s32 SCX_OP_SLEEPABLE(host_init)
{
	__u32 i;
	__s32 error;

	bpf_for (i, 0, SCHED_MAX_CPUS) {
		if (i >= nr_cpus)
			break;
		error = scx_bpf_create_dsq(DSQ_CPU(i), NUMA_NO_NODE);
		if (error)
			return error;
		error = cpu__init_timer(i);
		if (error)
			return error;
	}
	return perf__init();
}

void SCX_OP(host_dump, struct scx_dump_ctx *dump)
{
	dump__llcs();
}

void SCX_OP(host_dump_cpu, struct scx_dump_ctx *dump, __s32 cpu, bool idle)
{
	dump__cpu(cpu, idle);
}

void SCX_OP(host_dump_task, struct scx_dump_ctx *dump, struct task_struct *p)
{
	dump__task(p);
}

void SCX_OP(host_exit, struct scx_exit_info *info)
{
	sched_exit.kind = info->kind;
	sched_exit.code = info->exit_code;
	bpf_probe_read_kernel_str(sched_exit.reason, sizeof(sched_exit.reason), info->reason);
	bpf_probe_read_kernel_str(sched_exit.message, sizeof(sched_exit.message), info->msg);
	if (bpf_core_field_exists(info->dump))
		bpf_probe_read_kernel_str(sched_dump, sizeof(sched_dump), BPF_CORE_READ(info, dump));
	WRITE_ONCE(sched_exit.ended, 1);
}

SEC(".struct_ops.link")
struct sched_ext_ops entrain_ops = {
	.select_cpu = (void *)host_select_cpu,
	.enqueue = (void *)host_enqueue,
	.dispatch = (void *)host_dispatch,
	.tick = (void *)host_tick,
	.quiescent = (void *)host_quiescent,
	.running = (void *)host_running,
	.stopping = (void *)host_stopping,
	.yield = (void *)host_yield,
	.update_idle = (void *)host_update_idle,
	.cpu_online = (void *)host_cpu_online,
	.cpu_offline = (void *)host_cpu_offline,
	.init_task = (void *)host_init_task,
	.exit_task = (void *)host_exit_task,
	.enable = (void *)host_enable,
	.cgroup_init = (void *)host_cgroup_init,
	.cgroup_exit = (void *)host_cgroup_exit,
	.cgroup_move = (void *)host_cgroup_move,
	.cgroup_set_weight = (void *)host_cgroup_set_weight,
	.cgroup_set_bandwidth = (void *)host_cgroup_set_bandwidth,
	.dump = (void *)host_dump,
	.dump_cpu = (void *)host_dump_cpu,
	.dump_task = (void *)host_dump_task,
	.init = (void *)host_init,
	.exit = (void *)host_exit,
	/* A task whose group has no time left must leave a CPU that has nothing else to run. */
	.flags = SCX_OPS_KEEP_BUILTIN_IDLE | SCX_OPS_ENQ_LAST | SCX_OPS_ENQ_EXITING | SCX_OPS_TID_TO_TASK,
	.timeout_ms = 10000,
	.name = "entrain",
};
