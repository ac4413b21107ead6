// SPDX-License-Identifier: GPL-2.0-only
/*
 * Tells the host what each vCPU needs, where the guest keeps its own scheduler: follows that scheduler's tracepoints,
 * and counts as ours does (guest_load.h). The kernel's own figure would not do: it takes every pCPU for a full one and
 * time that the host takes away for work, and it remembers the mean of a task and not what it was on its way to.
 */
#include "pages.bpf.h"
#include "policy.h"
#include "guest_load.h"
#include "guest_view.h"

char LICENSE[] SEC("license") = "GPL";

/* A running task is looked at again so soon: about a tick, of which the kernel's account (update_curr) tells. */
#define LOOK_EVERY_NS ENTRAIN_MSEC

/* Kernel priority of an idle CPU in guest.prio. */
#define PRIO_IDLE 140

struct load {
	__u64 mean; /* of GUEST_LOAD_ONE */
	__u64 ran;  /* since `at`, ns */
	__u64 at;
};

/* A task of the guest. Whoever holds the lock of its run queue changes it, and all tracepoints here are under that. */
struct task_load {
	struct load load;
	__u64 worked; /* since it slept last, ns */
	__u64 est_at; /* when `est` was last worked out: as it went to sleep */
	__u32 est;
	__u32 boost;
	__u32 claim;	/* what it adds to the claims of those who wait ... */
	__u32 waits_on; /* ... for this vCPU, plus 1; 0: it does not wait, or did so before we came */
};

struct vcpu_load {
	struct load load;
	__u64 run_at;	/* from when on the running task's work is not yet counted; 0: idle */
	__u64 steal_at; /* the host's count of what it withheld, then */
	__s64 waiting;	/* sum of the claims of those who wait */
	__s64 waiters;
	__u32 claim; /* of the task that runs */
} __attribute__((aligned(64)));

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct task_load);
} task_loads SEC(".maps");

/* The loader makes it as long as the pages' map. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct vcpu_load);
} vcpu_loads SEC(".maps");

static __always_inline struct task_load *load__of(struct task_struct *p)
{
	return bpf_task_storage_get(&task_loads, p, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
}

/* What the host says of a vCPU's pCPU, and how much time it has withheld; of a page without a host, nothing. */
struct host_view {
	__u64 steal;
	__u32 capacity;
	__u32 perf;
};

static __always_inline struct host_view page__host(struct entrain_page *page)
{
	struct host_view view = {.capacity = ENTRAIN_CAPACITY_SCALE, .perf = ENTRAIN_CAPACITY_SCALE};
	__u64 features, seed;

	if (ENTRAIN_LINK_STATE(READ_ONCE(page->link.link)) != ENTRAIN_LINK_PAIRED)
		return view;
	seed = READ_ONCE(page->link.seed);
	features = entrain_read(&page->host_slow.features, seed);
	view.capacity = guest_scale(features, entrain_read(&page->host_slow.capacity, seed));
	view.perf = guest_scale(features, entrain_read(&page->host_slow.perf, seed));
	if (features & ENTRAIN_F_VCPU_STATE)
		view.steal = entrain_read(&page->host_fast.steal, seed) << ENTRAIN_TIME_SHIFT;
	return view;
}

static __always_inline void load__update(struct load *load, const struct host_view *host, __u64 now)
{
	__u64 elapsed = entrain_sub(now, load->at);

	if (elapsed < GUEST_LOAD_PERIOD_NS)
		return;
	load->mean = guest_load_update(load->mean, load->ran, elapsed, host->capacity, host->perf);
	load->ran = 0;
	load->at = now;
}

static __always_inline __u32 task__claim(const struct task_load *t, __u64 worked)
{
	return guest_task_claim(t->load.mean, entrain_max(t->est, t->boost), worked);
}

/* Says what the vCPU needs now; on any vCPU. */
static __always_inline void vcpu__publish(struct vcpu_load *v, struct entrain_page *page, __u64 now)
{
	__u64 run_at = READ_ONCE(v->run_at);
	__s64 waiters = READ_ONCE(v->waiters);
	__u64 util = guest_vcpu_claim(v->load.mean, run_at ? 0 : entrain_sub(now, v->load.at), run_at ? v->claim : 0,
				      READ_ONCE(v->waiting));

	if (READ_ONCE(page->guest.util) != util)
		WRITE_ONCE(page->guest.util, util);
	WRITE_ONCE(page->guest.runnable, (run_at != 0) + (waiters > 0 ? waiters : 0));
}

/* Counts what the running task has worked since it was last looked at. */
static __always_inline void vcpu__settle(struct vcpu_load *v, struct task_load *t, const struct host_view *host,
					 __u64 now)
{
	__u64 worked = guest_real_time(entrain_sub(now, v->run_at), entrain_sub(host->steal, v->steal_at));

	v->load.ran += worked;
	t->load.ran += worked;
	t->worked += worked;
	load__update(&v->load, host, now);
	load__update(&t->load, host, now);
	v->claim = task__claim(t, t->worked);
	v->run_at = now;
	v->steal_at = host->steal;
}

static __always_inline void task__waits(struct task_load *t, struct vcpu_load *v, __u32 cpu)
{
	t->claim = task__claim(t, 0);
	t->waits_on = cpu + 1;
	__sync_fetch_and_add(&v->waiting, t->claim);
	__sync_fetch_and_add(&v->waiters, 1);
}

static __always_inline void task__waits_no_more(struct task_load *t)
{
	__u32 cpu = t->waits_on - 1;
	struct vcpu_load *v;

	if (!t->waits_on)
		return;
	t->waits_on = 0;
	v = bpf_map_lookup_elem(&vcpu_loads, &cpu);
	if (!v)
		return;
	__sync_fetch_and_add(&v->waiting, -(__s64)t->claim);
	__sync_fetch_and_add(&v->waiters, -1);
}

static __always_inline void task__slept(struct task_struct *task, struct task_load *t, __u64 now)
{
	__u64 elapsed = entrain_sub(now, t->est_at);

	t->est = guest_task_est(t->est, t->load.mean, t->worked, elapsed);
	t->boost = guest_io_boost(t->boost, BPF_CORE_READ_BITFIELD(task, in_iowait), elapsed);
	t->est_at = now;
	t->worked = 0;
}

/* Before 5.18 the kernel did not say what state the task left in. */
SEC("tp_btf/sched_switch")
int BPF_PROG(loads_switch, bool preempt, struct task_struct *prev, struct task_struct *next, unsigned int state)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct entrain_page *page = bpf_map_lookup_elem(&entrain_pages, &cpu);
	struct vcpu_load *v = bpf_map_lookup_elem(&vcpu_loads, &cpu);
	__u64 now = bpf_ktime_get_ns();
	struct host_view host;
	struct task_load *t;

	if (!page || !v)
		return 0;
	host = page__host(page);
	t = prev->pid && v->run_at ? load__of(prev) : NULL;
	if (t) {
		vcpu__settle(v, t, &host, now);
		if (preempt || !state)
			task__waits(t, v, cpu);
		else
			task__slept(prev, t, now);
	}
	v->run_at = 0;
	t = next->pid ? load__of(next) : NULL;
	if (t) {
		task__waits_no_more(t);
		/* The time that it slept; what it did before that was counted when it stopped. */
		load__update(&t->load, &host, now);
		load__update(&v->load, &host, now);
		v->claim = task__claim(t, t->worked);
		v->steal_at = host.steal;
		v->run_at = now;
	}
	WRITE_ONCE(page->guest.prio, next->pid ? (__u64)next->prio : PRIO_IDLE);
	if (next->pid) {
		vcpu__publish(v, page, now);
		return 0;
	}
	/* A host that runs an idle vCPU for an interrupt needs no more than it measures itself. */
	WRITE_ONCE(page->guest.util, 0);
	WRITE_ONCE(page->guest.runnable, 0);
	return 0;
}

/* A task that wakes raises what its vCPU needs, often before the host is asked to run that. */
static __always_inline void task__wakes(struct task_struct *p)
{
	__u32 cpu = p->thread_info.cpu;
	struct entrain_page *page = bpf_map_lookup_elem(&entrain_pages, &cpu);
	struct vcpu_load *v = bpf_map_lookup_elem(&vcpu_loads, &cpu);
	struct task_load *t;

	/* One that is woken on its way to sleep runs still. */
	if (!page || !v || p->on_cpu)
		return;
	t = load__of(p);
	if (!t || t->waits_on)
		return;
	task__waits(t, v, cpu);
	vcpu__publish(v, page, bpf_ktime_get_ns());
}

SEC("tp_btf/sched_wakeup")
int BPF_PROG(loads_wakeup, struct task_struct *p)
{
	task__wakes(p);
	return 0;
}

SEC("tp_btf/sched_wakeup_new")
int BPF_PROG(loads_wakeup_new, struct task_struct *p)
{
	task__wakes(p);
	return 0;
}

/* Before the task is there; it takes its claim along. */
SEC("tp_btf/sched_migrate_task")
int BPF_PROG(loads_migrate, struct task_struct *p, int dest)
{
	__u32 from, to = dest;
	struct vcpu_load *v = bpf_map_lookup_elem(&vcpu_loads, &to);
	struct entrain_page *page;
	struct task_load *t = bpf_task_storage_get(&task_loads, p, 0, 0);
	__u64 now;

	if (!t || !t->waits_on || !v)
		return 0;
	from = t->waits_on - 1;
	task__waits_no_more(t);
	task__waits(t, v, to);
	now = bpf_ktime_get_ns();
	page = bpf_map_lookup_elem(&entrain_pages, &to);
	if (page)
		vcpu__publish(v, page, now);
	v = bpf_map_lookup_elem(&vcpu_loads, &from);
	page = bpf_map_lookup_elem(&entrain_pages, &from);
	if (v && page)
		vcpu__publish(v, page, now);
	return 0;
}

/* The kernel's account of a running task, at its ticks and whenever its run queue changes. */
SEC("tp_btf/sched_stat_runtime")
int BPF_PROG(loads_runtime, struct task_struct *p)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct vcpu_load *v = bpf_map_lookup_elem(&vcpu_loads, &cpu);
	struct entrain_page *page;
	__u64 now = bpf_ktime_get_ns();
	struct host_view host;
	struct task_load *t;

	/* Another vCPU may settle this one's account of the kernel, ours never. */
	if (!v || !v->run_at || entrain_sub(now, v->run_at) < LOOK_EVERY_NS || p != bpf_get_current_task_btf())
		return 0;
	page = bpf_map_lookup_elem(&entrain_pages, &cpu);
	t = load__of(p);
	if (!page || !t)
		return 0;
	host = page__host(page);
	vcpu__settle(v, t, &host, now);
	vcpu__publish(v, page, now);
	return 0;
}
