// SPDX-License-Identifier: GPL-2.0-only
/*
 * The guest's scheduler: fair by virtual time, aware that its CPUs are a host's threads.
 *
 * Each vCPU has a queue ordered by virtual time; vCPUs take from one another's queues (sched_place.h), so that nothing
 * waits behind a vCPU that the host holds back. vcpud parks the vCPUs for which there is no pCPU (sched_vcpud.h). What
 * the host publishes is advice: without it, steal time takes its place.
 */
#include "cgroup_share.h"
#include "sched_place.h"
#include "sched_vcpud.h"

char _license[] SEC("license") = "GPL";

/* Why the scheduler was left; read by the loader. */
__s64 exit_kind;
__s64 exit_code;
char exit_reason[128];
char exit_message[256];

static __always_inline void insert(struct task_struct *p, __u64 queue, __u64 vtime, __u64 enq_flags)
{
	scx_insert_vtime(p, queue, guest_slice(scx_bpf_dsq_nr_queued(queue)), vtime, enq_flags);
}

/* The task's place in virtual time when it joins a queue. */
static __always_inline __u64 join(struct task_ctx *t)
{
	__u64 debt = guest_debt(t->share, total_share > 0 ? total_share : 0);

	t->vtime = entrain_wake_vtime(t->joined ? t->vtime : vtime_now, vtime_now, GUEST_CREDIT_NS, debt);
	t->joined = 1;
	return t->vtime;
}

__s32 SCX_OP(guest_select_cpu, struct task_struct *p, __s32 previous, __u64 wake_flags)
{
	struct task_ctx *t = task_of(p);
	__s32 cpu, waker = -1;

	if (!t)
		return previous;
	if (wake_flags & SCX_WAKE(SYNC))
		waker = bpf_get_smp_processor_id();
	cpu = place(p, t->load, previous, waker);
	if (cpu < 0)
		return previous;
	if (vcpu(cpu)->idle && scx_bpf_test_and_clear_cpu_idle(cpu)) {
		count(cpu == previous ? &stats.wake_previous : &stats.wake_idle);
		if (host_view(cpu).instant)
			count(&stats.wake_instant);
		wait_begin(t, cpu, scx_bpf_now());
		publish_wakeup(cpu, p);
		if (may_direct(cpu)) {
			join(t);
			scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, guest_slice(0), 0);
		} else {
			insert(p, QUEUE_OPEN(cpu), join(t), 0);
		}
	}
	return cpu;
}

void SCX_OP(guest_enqueue, struct task_struct *p, __u64 enq_flags)
{
	__s32 cpu = scx_bpf_task_cpu(p), target = cpu;
	struct task_ctx *t = task_of(p);
	__u64 now = scx_bpf_now(), vtime;
	bool wakeup = enq_flags & SCX_ENQ(WAKEUP), last;
	struct vcpu_ctx *v;

	if (!t) {
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, GUEST_SLICE_NS, enq_flags);
		return;
	}
	last = enq_flags & SCX_ENQ(LAST);
	vtime = join(t);

	if (!is_pinned(p) && (vcpu(cpu)->parked || !may_run(p, cpu))) {
		target = place(p, t->load, cpu, -1);
		if (target >= 0 && last)
			count(&stats.migrations);
	}
	v = vcpu(target < 0 ? cpu : target);
	if (wakeup && target == cpu && !v->idle && v->run_at && cpu == bpf_get_smp_processor_id() &&
	    !scx_bpf_dsq_nr_queued(SCX_DSQ_LOCAL) && guest_preempts(vtime, running_vtime(v, now))) {
		/*
		 * It takes the vCPU that wakes it. A kick would do, too, but that is an interrupt to itself, and in a
		 * guest an exit; put into the vCPU's own queue it makes the kernel reschedule as it is. One at a time:
		 * what lies there nobody else can take.
		 */
		count(&stats.wake_queued);
		count(&stats.preempts);
		wait_begin(t, cpu, now);
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, guest_slice(0), enq_flags | SCX_ENQ(PREEMPT));
		return;
	}
	if (is_pinned(p) || target < 0) {
		/* Nowhere else to go: this vCPU serves it, parked or not. */
		target = cpu;
		wait_begin(t, cpu, now);
		insert(p, QUEUE_PINNED(cpu), vtime, enq_flags);
	} else {
		wait_begin(t, target, now);
		insert(p, QUEUE_OPEN(target), vtime, enq_flags);
	}

	/* A vCPU that begins to idle may not show it yet. */
	if (target != cpu && !v->idle)
		scx_bpf_kick_cpu(target, SCX_KICK_IDLE);
	if (v->idle || last) {
		publish_wakeup(target, p);
		scx_bpf_kick_cpu(target, SCX_KICK_IDLE);
		return;
	}
	if (!wakeup) {
		/*
		 * A task whose slice is over makes way for another: an idle vCPU may have it. For one that computes,
		 * any in use: on a busy host none is certain to run at once, but the guest is entitled to each that it
		 * keeps.
		 */
		if (target == cpu)
			wake_helper(p, cpu, t->ran >= GUEST_SLICE_NS);
		return;
	}
	count(&stats.wake_queued);
	if (v->run_at && guest_preempts(vtime, running_vtime(v, now))) {
		count(&stats.preempts);
		scx_bpf_kick_cpu(target, SCX_KICK_PREEMPT);
	}
}

/* A parked vCPU: its pinned tasks, and what no vCPU in use may run. */
static __always_inline void dispatch_parked(__s32 cpu, struct task_struct *prev, bool queued)
{
	struct task_struct *head;
	bool stranded = false;

	if (scx_bpf_dsq_move_to_local(QUEUE_PINNED(cpu)))
		return;
	bpf_rcu_read_lock();
	head = scx_bpf_dsq_peek(QUEUE_OPEN(cpu));
	if (head) {
		stranded = kept_for(head, cpu) < 0;
		/* It came before this vCPU was parked. Those in use may all be idle, and then nobody would look for it.
		 */
		if (!stranded)
			wake_helper(head, cpu, true);
	}
	bpf_rcu_read_unlock();
	if (stranded && scx_bpf_dsq_move_to_local(QUEUE_OPEN(cpu)))
		return;
	if (queued && (is_pinned(prev) || kept_for(prev, cpu) < 0))
		scx_bpf_task_set_slice(prev, GUEST_SLICE_NS);
}

void SCX_OP(guest_dispatch, __s32 cpu, struct task_struct *prev)
{
	bool queued = prev && (prev->scx.flags & SCX_TASK_QUEUED), has = false;
	__u64 now = scx_bpf_now(), open, pinned, vtime = NO_HEAD, own = 0;
	struct task_ctx *t = queued ? task_of(prev) : NULL;

	if (t)
		account_settle(cpu, prev, t, now);
	vcpud_step(now);
	if (vcpu(cpu)->parked) {
		dispatch_parked(cpu, prev, queued);
		return;
	}

	/* Of the task that ran and those that wait here, the one that has had the least. */
	open = head_of(QUEUE_OPEN(cpu));
	pinned = head_of(QUEUE_PINNED(cpu));
	if (t) {
		vtime = own = t->vtime;
		has = true;
	}
	if (open != NO_HEAD && (!has || entrain_before(open, own))) {
		own = open;
		has = true;
	}
	if (pinned != NO_HEAD && (!has || entrain_before(pinned, own))) {
		own = pinned;
		has = true;
	}
	if (has) {
		if (vcpu(cpu)->compare && take_over(cpu, true, own))
			return;
		if (t && own == vtime) {
			scx_bpf_task_set_slice(prev, guest_slice(scx_bpf_dsq_nr_queued(QUEUE_OPEN(cpu))));
			return;
		}
		if (own == pinned && scx_bpf_dsq_move_to_local(QUEUE_PINNED(cpu)))
			return;
	}
	/* The heads may have gone meanwhile, or may not run here. */
	if (scx_bpf_dsq_move_to_local(QUEUE_OPEN(cpu)) || scx_bpf_dsq_move_to_local(QUEUE_PINNED(cpu)))
		return;
	if (queued)
		scx_bpf_task_set_slice(prev, GUEST_SLICE_NS);
	else
		take_over(cpu, false, 0);
}

/* Others of its group came and went: what a running task is charged by follows. */
static __always_inline void share_refresh(struct task_struct *p, struct task_ctx *t, __u64 now)
{
	__u64 share = task_share(p, now);

	__sync_fetch_and_add(&total_share, (__s64)(share - t->share));
	t->share = share;
}

void SCX_OP(guest_running, struct task_struct *p)
{
	__s32 cpu = scx_bpf_task_cpu(p);
	struct task_ctx *t = task_of(p);
	__u64 now = scx_bpf_now();

	if (!t)
		return;
	account_start(cpu, t, now);
	publish_running(cpu, p);
}

void SCX_OP(guest_stopping, struct task_struct *p, bool runnable)
{
	__s32 cpu = scx_bpf_task_cpu(p);
	struct task_ctx *t = task_of(p);
	struct vcpu_ctx *v = vcpu(cpu);
	__u64 now = scx_bpf_now();

	if (t)
		account_settle(cpu, p, t, now);
	v->run_at = 0;
	if (t && !runnable) {
		v->burst = guest_mean(v->burst, t->ran);
		t->est = guest_task_est(t->est, t->load, t->ran, entrain_sub(now, t->est_at));
		t->boost = guest_io_boost(t->boost, waits_for_io(p), entrain_sub(now, t->est_at));
		t->est_at = now;
		t->ran = 0;
	}
}

void SCX_OP(guest_tick, struct task_struct *p)
{
	__s32 cpu = scx_bpf_task_cpu(p), other;
	struct vcpu_ctx *v = vcpu(cpu);
	struct task_ctx *t = task_of(p);
	__u64 now = scx_bpf_now();

	if (t) {
		account_settle(cpu, p, t, now);
		share_refresh(p, t, now);
	}
	vcpud_step(now);
	publish_wants(cpu);
	publish_runnable(cpu);
	v->compare = 1;
	if (v->parked && !is_pinned(p) && kept_for(p, cpu) >= 0)
		scx_bpf_task_set_slice(p, 0);

	/* One other vCPU a tick: what waits behind a parked or preempted one gets a helper, were all kicks lost. */
	other = ++v->look % nr_vcpus;
	if (other != cpu && scx_bpf_dsq_nr_queued(QUEUE_OPEN(other)) > 0) {
		if (vcpu(other)->parked)
			scx_bpf_kick_cpu(other, SCX_KICK_IDLE);
		if (vcpu(other)->parked || host_view(other).state == ENTRAIN_VCPU_PREEMPTED)
			wake_helper(p, other, vcpu(other)->parked);
	}
}

void SCX_OP(guest_runnable, struct task_struct *p, __u64 enq_flags)
{
	struct task_ctx *t = task_of(p);
	__u64 share;

	if (!t)
		return;
	__sync_fetch_and_add(&nr_runnable, 1);
	cgroup_join(p, &t->member);
	share = task_share(p, scx_bpf_now());
	t->share = share;
	__sync_fetch_and_add(&total_share, share);
}

void SCX_OP(guest_quiescent, struct task_struct *p, __u64 deq_flags)
{
	struct task_ctx *t = task_of(p);

	if (!t)
		return;
	__sync_fetch_and_add(&nr_runnable, -1);
	__sync_fetch_and_add(&total_share, -(__s64)t->share);
	wait_end(t);
	cgroup_leave(&t->member);
}

void SCX_OP(guest_update_idle, __s32 cpu, bool idle)
{
	struct vcpu_ctx *v = vcpu(cpu);

	WRITE_ONCE(v->idle, idle);
	if (idle) {
		v->run_at = 0;
		publish_running(cpu, NULL);
		publish_util_idle(cpu);
	}
	publish_wants(cpu);
}

__s32 SCX_OP(guest_init_task, struct task_struct *p, struct scx_init_task_args *args)
{
	struct task_ctx *t = bpf_task_storage_get(&sched_tasks, p, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (!t)
		return -12 /* ENOMEM */;
	/* It may hold what an earlier attachment left. */
	__builtin_memset(t, 0, sizeof(*t));
	return 0;
}

__s32 SCX_OP_SLEEPABLE(guest_cgroup_init, struct cgroup *cgrp, struct scx_cgroup_init_args *args)
{
	return cgroup_enter(cgrp, args->weight);
}

void SCX_OP(guest_cgroup_set_weight, struct cgroup *cgrp, __u32 weight)
{
	cgroup_reweigh(cgrp, weight);
}

/* The scheduler may be attached more than once (standby): tasks and vCPUs are counted from the beginning each time. */
static void start_anew(void)
{
	int i;

	exit_kind = 0;
	total_share = 0;
	nr_runnable = 0;
	__builtin_memset(&vcpud, 0, sizeof(vcpud));
	bpf_for (i, 0, nr_vcpus) {
		struct vcpu_ctx *v = vcpu(i);
		__u64 offline = v->offline;

		__builtin_memset(v, 0, sizeof(*v));
		v->offline = v->parked = offline;
	}
}

__s32 SCX_OP_SLEEPABLE(guest_init)
{
	__s32 error;
	int i;

	start_anew();
	bpf_for (i, 0, nr_vcpus) {
		error = scx_bpf_create_dsq(QUEUE_OPEN(i), -1);
		if (!error)
			error = scx_bpf_create_dsq(QUEUE_PINNED(i), -1);
		if (error)
			return error;
	}
	return 0;
}

void SCX_OP(guest_exit, struct scx_exit_info *info)
{
	exit_code = info->exit_code;
	bpf_probe_read_kernel_str(exit_reason, sizeof(exit_reason), info->reason);
	bpf_probe_read_kernel_str(exit_message, sizeof(exit_message), info->msg);
	exit_kind = info->kind;
}

SEC(".struct_ops.link")
struct sched_ext_ops guest_ops = {
	.select_cpu = (void *)guest_select_cpu,
	.enqueue = (void *)guest_enqueue,
	.dispatch = (void *)guest_dispatch,
	.tick = (void *)guest_tick,
	.runnable = (void *)guest_runnable,
	.running = (void *)guest_running,
	.stopping = (void *)guest_stopping,
	.quiescent = (void *)guest_quiescent,
	.update_idle = (void *)guest_update_idle,
	.init_task = (void *)guest_init_task,
	.cgroup_init = (void *)guest_cgroup_init,
	.cgroup_set_weight = (void *)guest_cgroup_set_weight,
	.init = (void *)guest_init,
	.exit = (void *)guest_exit,
	/* A parked vCPU must get the chance to give its last task away. */
	.flags = SCX_OPS_ENQ_LAST | SCX_OPS_KEEP_BUILTIN_IDLE,
	/* Fall back to EEVDF when a runnable task waits so long: far above what any load makes it wait. */
	.timeout_ms = 10000,
	.name = "entrain_guest",
};
