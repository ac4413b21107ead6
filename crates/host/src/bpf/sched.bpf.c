// SPDX-License-Identifier: GPL-2.0-only
/*
 * A scheduler for KVM hosts. Fair by virtual time for every task of the host; for vCPUs it knows what the guest does:
 * it does not take a CPU in the middle of a critical section, follows KVM's directed yields where they help, and lets
 * siblings that depend on one another run together. Each decision stands in a header of crates/policy.
 */
#include "scx.h"
#include "sched_interface.h"
#include "sched_state.h"
#include "sched_class.h"
#include "sched_guest.h"
#include "sched_queue.h"
#include "sched_preempt.h"
#include "sched_yield.h"
#include "sched_kick.h"
#include "sched_perf.h"
#include "sched_together.h"

char LICENSE[] SEC("license") = "GPL";

#define RUNTIME_INF   (~0ULL)
#define NUMA_NO_NODE  (-1)
#define TICK_EARLY_NS ENTRAIN_MSEC /* a slice that would end within this time after a tick ends with it */
#define EOPNOTSUPP    95

/* Why the scheduler ended; read by the daemon. */
struct {
	__s64 code;
	__s32 kind;
	__s32 ended;
	char reason[128];
	char message[512];
} sched_exit = {};

/* From here on the task's clock is measured by that of this CPU. */
static __always_inline void measure_by(struct task_ctx *t, const struct cpu_ctx *c, __u32 cpu)
{
	struct cpu_ctx *from = t->of && t->of != cpu + 1 ? cpu_ctx(t->of - 1) : NULL;

	if (from)
		t->pub.vtime = entrain_move_vtime(t->pub.vtime, clock_of(from), clock_of(c), debt_ns);
	t->of = cpu + 1;
}

/* A sleeper's past is bounded; what a task that never slept is owed or owes stays, or a VM that yields much loses it.
 */
static __always_inline void clock_after_sleep(struct task_ctx *t, const struct cpu_ctx *c, __u64 credit)
{
	t->pub.vtime = entrain_wake_vtime(t->pub.vtime, clock_of(c), credit, debt_ns);
}

__s32 SCX_OP(host_select_cpu, struct task_struct *p, __s32 prev_cpu, __u64 wake_flags)
{
	bool idle = false;
	__s32 cpu = use_capacity ? perf_select(p, prev_cpu, slice_max_ns) : -1;
	struct task_ctx *t;
	struct cpu_ctx *c;

	if (cpu < 0) {
		cpu = scx_bpf_select_cpu_dfl(p, prev_cpu, wake_flags, &idle);
		if (!idle)
			return use_follow ? queue_with_kicker(p, cpu) : cpu;
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, slice_max_ns, 0);
	}
	/* It does not come by ops.enqueue; with the clock of long ago it would keep the CPU for as long as it slept. */
	t = task_ctx(p);
	c = cpu_ctx(cpu);
	if (t && c) {
		measure_by(t, c, cpu);
		clock_after_sleep(t, c, credit_ns);
	}
	return cpu;
}

void SCX_OP(host_enqueue, struct task_struct *p, __u64 enq_flags)
{
	struct task_ctx *t = task_ctx(p);
	__u64 now = scx_bpf_now();
	__s32 cpu = scx_bpf_task_cpu(p), victim = -1;
	bool wakeup = enq_flags & SCX_ENQ(WAKEUP), urgent = false;
	bool bound = is_bound(p);
	struct cpu_ctx *c = cpu_ctx(cpu);
	__u64 vtime, clock;

	if (!t || !c) {
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, slice_min_ns, enq_flags);
		return;
	}
	wait_end(t);
	clock = clock_of(c);
	measure_by(t, c, cpu);
	if (wakeup) {
		urgent = wakes_urgently(p, t, now);
		if (urgent)
			COUNT(t, urgent, 1);
		clock_after_sleep(t, c, credit_of(t, urgent));
	} else if (t->fresh) {
		t->pub.vtime = clock;
	}
	t->fresh = 0;
	if (perf_enqueue(p, t, cpu, slice_max_ns, enq_flags))
		return;
	vtime = t->pub.vtime;
	if (t->front == 1) {
		vtime = clock - 2 * credit_ns;
		COUNT(t, fronted, 1);
		boosted(p);
	}
	if (use_wake_preempt && wakeup) {
		struct wanting w;

		wants(&w, vtime, t->pub.vcpu, urgent);
		victim = victim_for(p, &w, cpu, now);
		if (victim >= 0 && victim != cpu) {
			cpu = victim;
			c = cpu_ctx(cpu);
			if (!c)
				return;
		}
	}
	wait_begin(t, c, cpu);
	scx_insert_vtime(p, DSQ_CPU(cpu), slice_now(t, c), vtime, enq_flags);

	/* Not through select_cpu (bound to one CPU, or put back): an idle CPU may still be there for it. */
	if (bound) {
		if (scx_bpf_test_and_clear_cpu_idle(cpu)) {
			scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
			return;
		}
	} else if (!(enq_flags & SCX_ENQ(CPU_SELECTED))) {
		__s32 idle = scx_bpf_pick_idle_cpu(p->cpus_ptr, 0);

		if (idle >= 0) {
			scx_bpf_kick_cpu(idle, SCX_KICK_IDLE);
			return;
		}
	}
	if (victim >= 0) {
		COUNT(t, preempts, 1);
		scx_bpf_kick_cpu(victim, SCX_KICK_PREEMPT);
	}
}

/* An extension or a short stay ends; what was not used of an extension goes back. */
static __always_inline void grant_over(struct task_ctx *t, struct cpu_ctx *c, __u64 now)
{
	if (c->granted && !c->soon) {
		struct entrain_extend_limits limits = extend_limits(t);

		entrain_extend_return(&t->extend, &limits, entrain_sub(c->granted, now));
	}
	c->granted = 0;
	c->soon = 0;
	c->leave = 0;
}

/* Charges the task that runs for its time since it was charged last. */
static __always_inline void settle(struct task_ctx *t, __u64 now)
{
	__u64 ran = entrain_sub(now, t->started);

	t->pub.vtime += entrain_charge_share(ran, t->share);
	COUNT(t, ran, ran);
}

/* The clocks come as far as the task that runs, or as the `first` of those that wait. */
static __always_inline void clocks_move(struct cpu_ctx *c, struct task_ctx *t, bool waits, __u64 first)
{
	struct queue_ctx *q = queue_of(c->llc);

	if (!waits)
		t->pub.vtime = entrain_alone_vtime(t->pub.vtime, q->vtime, debt_ns);
	q->vtime = entrain_queue_vtime(q->vtime, t->pub.vtime, waits, first);
	c->clock = entrain_queue_vtime(c->clock, t->pub.vtime, waits, first);
}

/*
 * The one that ran goes on, by its clock or for want of others: whatever it was let in for or should leave for is over.
 * One that never leaves its CPU is charged here, and the queue's clock goes with it: whoever wakes is owed nothing for
 * the time that it slept.
 */
static __always_inline void new_turn(struct task_struct *prev, struct task_ctx *t, struct cpu_ctx *c, __u32 cpu,
				     __u64 now, bool waits, __u64 first)
{
	grant_over(t, c, now);
	t->leaves = 0;
	stayed(prev);
	if (t->started) {
		settle(t, now);
		together_again(t, now);
		t->started = now;
		c->started = now;
		clocks_move(c, t, waits, first);
		c->vtime = t->pub.vtime;
	}
	c->turn = now;
	tell_extended(prev, t, false);
	scx_bpf_task_set_slice(prev, slice_now(t, c));
	slice_begins(c, cpu);
}

void SCX_OP(host_dispatch, __s32 cpu, struct task_struct *prev)
{
	struct cpu_ctx *c = cpu_ctx(cpu);
	struct task_ctx *t = NULL;
	__u64 now = scx_bpf_now(), first = 0, clock = 0;
	__s32 behind = -1;
	bool waits, stays;

	if (!c || take_next(c, cpu, now))
		return;
	/* The kernel keeps the one that ran when nothing is dispatched and it has a slice. */
	if (prev && (prev->scx.flags & SCX_TASK_QUEUED))
		t = task_ctx(prev);
	if (t && perf_leaves(t))
		t = NULL;
	waits = first_of(c, cpu, &first);
	/* One that yielded makes way even where its clock is behind. */
	stays = t && t->started && !t->leaves;
	if (stays)
		clock = running_vtime(c, now);
	if (waits || stays)
		behind = behind_at(c, cpu, stays && (!waits || entrain_before(clock, first)) ? clock : first);
	if (waits || behind >= 0) {
		if (stays && behind < 0 && entrain_before(clock, first)) {
			new_turn(prev, t, c, cpu, now, true, first);
			return;
		}
		if (stays && t->pub.vcpu && may_stay(prev, t, c, cpu, now))
			return;
		if (behind >= 0 && scx_bpf_dsq_move_to_local(DSQ_CPU(behind)))
			return;
		if (corun_skew_ns && take_sibling(cpu, first, now))
			return;
		if (waits && scx_bpf_dsq_move_to_local(DSQ_CPU(cpu)))
			return;
	}
	/* One that yielded goes on where nobody waits in this queue: to fetch another for each yield costs moves. */
	if (!t && fetch_any(c, cpu))
		return;
	if (t)
		new_turn(prev, t, c, cpu, now, waits, first);
	else
		perf_pull(cpu);
}

/*
 * A slice was measured out when the task began; whoever has come since must not wait for one that nobody waited for.
 * And who woke too early to take the CPU, takes it now.
 */
void SCX_OP(host_tick, struct task_struct *p)
{
	__s32 cpu = scx_bpf_task_cpu(p);
	struct cpu_ctx *c = cpu_ctx(cpu);
	struct wanting w;
	__u64 now, first;

	perf_tick(p);
	if (!c || !c->started || is_excused(c) || c->waiting <= 0)
		return;
	now = scx_bpf_now();
	if (entrain_sub(now, c->turn) + TICK_EARLY_NS < slice_for(c)) {
		if (!first_of(c, cpu, &first))
			return;
		wants(&w, first, true, false);
		if (!takes_cpu(&w, running_vtime(c, now), c, now))
			return;
	}
	scx_bpf_task_set_slice(p, 0);
}

void SCX_OP(host_runnable, struct task_struct *p, __u64 enq_flags)
{
	struct task_ctx *t = task_ctx(p);

	if (!t)
		return;
	cgroup_join(p, &t->member);
	t->waiting = scx_bpf_now();
	if (enq_flags & SCX_ENQ(WAKEUP))
		COUNT(t, wakeups, 1);
}

void SCX_OP(host_quiescent, struct task_struct *p, __u64 deq_flags)
{
	struct task_ctx *t = task_ctx(p);

	if (!t)
		return;
	cgroup_leave(&t->member);
	wait_end(t);
	t->waiting = 0;
	t->pub.queue = 0;
}

void SCX_OP(host_running, struct task_struct *p)
{
	__s32 cpu = scx_bpf_task_cpu(p);
	struct task_ctx *t = task_ctx(p);
	struct cpu_ctx *c = cpu_ctx(cpu);
	__u64 now = scx_bpf_now(), first = 0;
	bool waits;

	if (!t || !c)
		return;
	wait_end(t);
	if (t->waiting)
		COUNT(t, waited, entrain_sub(now, t->waiting));
	t->waiting = 0;
	t->started = now;
	t->boosted = 0;
	t->leaves = 0;
	t->front = t->front == 1 ? 2 : 0; /* 2: has been at the front, not again at once */
	if (!t->share_at || entrain_sub(now, t->share_at) > CGROUP_STALE_NS) {
		t->share = task_share(p, now);
		t->share_at = now;
	}
	COUNT(t, switches, 1);

	t->pub.queue = 1 + (c->llc & 63);
	measure_by(t, c, cpu);
	waits = first_of(c, cpu, &first);
	clocks_move(c, t, waits, first);
	c->vtime = t->pub.vtime;
	c->share = t->share;
	c->granted = 0;
	c->leave = 0;
	c->soon = 0;
	c->tgid = t->pub.vcpu ? t->pub.tgid : 0;
	c->started = now;
	c->came = now;
	if (t->brief)
		leave_soon(c, t->brief, cpu, now);
	t->brief = 0;
	if (!t->heir)
		c->turn = now;
	t->heir = 0;
	slice_begins(c, cpu);
	together_begin(t, now);
	perf_running(p, t, cpu, now);
}

void SCX_OP(host_stopping, struct task_struct *p, bool runnable)
{
	__s32 cpu = scx_bpf_task_cpu(p);
	struct task_ctx *t = task_ctx(p);
	struct cpu_ctx *c = cpu_ctx(cpu);
	__u64 now = scx_bpf_now();

	if (!t || !c || !t->started)
		return;
	settle(t, now);
	t->started = 0;
	t->told = 0;
	perf_stopping(t, cpu, runnable, now);
	together_end(t, now);
	/* A higher class took the CPU: the kernel would go on with what is left of the slice, and nobody would look. */
	if (runnable && c->granted)
		scx_bpf_task_set_slice(p, 0);
	grant_over(t, c, now);
	c->started = 0;
	c->tgid = 0;

	if (runnable || !t->pub.vcpu)
		meet_vcpu(p, t);
	if (!runnable) {
		t->level = ENTRAIN_CRITICAL_UNKNOWN;
		t->front = 0;
		return;
	}
	t->waiting = now;
	if (!t->pub.vcpu)
		return;
	t->level = channel_critical(p, t->kvm_vcpu);
	/* One that yielded was not interrupted, whatever it spins in. */
	if (t->leaves == LEAVES_YIELDED) {
		t->front = 0;
		return;
	}
	COUNT(t, preemptions, 1);
	if (entrain_critical_holds(t->level)) {
		COUNT(t, preemptions_held, 1);
		t->front = use_front && !t->front;
	} else {
		t->front = 0;
	}
}

bool SCX_OP(host_yield, struct task_struct *from, struct task_struct *to)
{
	struct task_ctx *f = task_ctx(from);

	if (!f)
		return false;
	if (!to) {
		f->leaves = LEAVES_YIELDED;
		scx_bpf_task_set_slice(from, 0);
		return false;
	}
	return use_yield && yield_directed(from, f, to);
}

/* arm64: a vCPU waits for an event; with `wfe`, it spins. KVM looks for a sibling to yield to only after this. */
SEC("tp_btf/kvm_wfx_arm64")
int BPF_PROG(host_wfx, unsigned long pc, bool is_wfe)
{
	struct task_struct *p = bpf_get_current_task_btf();
	struct task_ctx *t;

	if (!is_wfe || !use_yield || !answer_ns)
		return 0;
	t = task_ctx(p);
	if (t && t->pub.vcpu && t->started)
		spins(p, t);
	return 0;
}

__s32 SCX_OP(host_init_task, struct task_struct *p, struct scx_init_task_args *args)
{
	struct task_ctx *t = bpf_task_storage_get(&sched_tasks, p, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (!t)
		return -ENOMEM;
	t->pub.vtime = queue_of(0)->vtime;
	t->fresh = 1;
	return 0;
}

void SCX_OP(host_enable, struct task_struct *p)
{
	struct task_ctx *t = task_ctx(p);
	struct cpu_ctx *c;

	c = cpu_ctx(scx_bpf_task_cpu(p));
	if (t && c)
		t->pub.vtime = queue_of(c->llc)->vtime;
	if (t)
		t->fresh = 1;
}

void SCX_OP(host_exit_task, struct task_struct *p, struct scx_exit_task_args *args)
{
	struct task_ctx *t = task_ctx(p);

	if (!t)
		return;
	wait_end(t);
	forget_vcpu(t);
}

__s32 SCX_OP_SLEEPABLE(host_cgroup_init, struct cgroup *cgrp, struct scx_cgroup_init_args *args)
{
	if (args->bw_quota_us && args->bw_quota_us != RUNTIME_INF) {
		scx_error("cpu.max is set on a cgroup: this scheduler does not enforce it, so it does not start");
		return -EOPNOTSUPP;
	}
	return cgroup_enter(cgrp, args->weight);
}

void SCX_OP(host_cgroup_set_weight, struct cgroup *cgrp, __u32 weight)
{
	cgroup_reweigh(cgrp, weight);
}

void SCX_OP(host_cgroup_set_bandwidth, struct cgroup *cgrp, __u64 period_us, __u64 quota_us, __u64 burst_us)
{
	if (quota_us && quota_us != RUNTIME_INF)
		scx_exit(EOPNOTSUPP, "cpu.max was set on a cgroup: this scheduler does not enforce it and makes way");
}

__s32 SCX_OP_SLEEPABLE(host_init)
{
	__u32 i;
	__s32 error;

	bpf_for (i, 0, SCHED_MAX_CPUS) {
		struct entry_timer *r;

		if (i >= nr_cpus)
			break;
		error = scx_bpf_create_dsq(DSQ_CPU(i), NUMA_NO_NODE);
		if (error)
			return error;
		r = bpf_map_lookup_elem(&sched_rechecks, &i);
		if (!r)
			return -ENOMEM;
		bpf_timer_init(&r->timer, &sched_rechecks, CLOCK_MONOTONIC);
		bpf_timer_set_callback(&r->timer, recheck);
	}
	return perf_init();
}

void SCX_OP(host_exit, struct scx_exit_info *info)
{
	sched_exit.kind = info->kind;
	sched_exit.code = info->exit_code;
	bpf_probe_read_kernel_str(sched_exit.reason, sizeof(sched_exit.reason), info->reason);
	bpf_probe_read_kernel_str(sched_exit.message, sizeof(sched_exit.message), info->msg);
	WRITE_ONCE(sched_exit.ended, 1);
}

SEC(".struct_ops.link")
struct sched_ext_ops entrain_ops = {
	.select_cpu = (void *)host_select_cpu,
	.enqueue = (void *)host_enqueue,
	.dispatch = (void *)host_dispatch,
	.tick = (void *)host_tick,
	.runnable = (void *)host_runnable,
	.quiescent = (void *)host_quiescent,
	.running = (void *)host_running,
	.stopping = (void *)host_stopping,
	.yield = (void *)host_yield,
	.init_task = (void *)host_init_task,
	.exit_task = (void *)host_exit_task,
	.enable = (void *)host_enable,
	.cgroup_init = (void *)host_cgroup_init,
	.cgroup_set_weight = (void *)host_cgroup_set_weight,
	.cgroup_set_bandwidth = (void *)host_cgroup_set_bandwidth,
	.init = (void *)host_init,
	.exit = (void *)host_exit,
	.flags = SCX_OPS_ENQ_EXITING | SCX_OPS_TID_TO_TASK,
	.timeout_ms = 10000,
	.name = "entrain",
};
