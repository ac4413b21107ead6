// SPDX-License-Identifier: GPL-2.0-only
/*
 * Watches the vCPUs from the scheduler's tracepoints, keeps their figures and publishes to their guests.
 *
 * Cost: a context switch between threads that are no vCPUs costs two failed lookups. A vCPU's switch costs a handful of
 * compare-and-swaps on its own page. An idle transition looks at ENTRAIN_PCPU_SLOTS entries, and at
 * ENTRAIN_DOMAIN_SLOTS more when the last idle CPU of a cache domain goes or the first one comes; nothing depends on
 * the number of VMs.
 */
#include "channel.h"

char LICENSE[] SEC("license") = "GPL";

#define EINVAL 22
#define ENOENT 2
#define ESRCH  3

/* Guests can ring as often as they like; the daemon hears each vCPU thread at most this often. */
#define DOORBELL_PERIOD_NS 100000000ULL

/* Host words that this program keeps current. */
#define HOST_FEATURES                                                                                                  \
	(ENTRAIN_F_VCPU_STATE | ENTRAIN_F_INSTANT | ENTRAIN_F_CAPACITY | ENTRAIN_F_ENTITLEMENT | extra_features)

/* More features, set by the daemon before loading: the scheduler's, the self-test's. */
const volatile __u64 extra_features = 0;

/* Set by the daemon while VMs compete: it wants to hear of the next pCPU that goes idle. */
__u32 want_idle = 0;

/* The kernel's own figure of the current performance level where the CPU can count it; 1024 elsewhere. */
extern const unsigned long arch_freq_scale __ksym;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* possible CPUs, by the daemon */
	__type(key, __u32);
	__type(value, struct entrain_pcpu);
} pcpus SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* possible CPUs, by the daemon */
	__type(key, __u32);
	__type(value, struct entrain_domain);
} domains SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 65536);
} events SEC(".maps");

/* When a thread last rang. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, ENTRAIN_HOST_VCPUS);
	__type(key, __u32);
	__type(value, __u64);
} rings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, ENTRAIN_HOST_WAITS);
	__type(key, struct entrain_wait_key);
	__type(value, struct entrain_wait);
} waits SEC(".maps");

/* How the wait of each vCPU began, enum entrain_wait_cause; a wake-up leaves it alone. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, ENTRAIN_HOST_VCPUS);
	__type(key, __u32);
	__type(value, __u32);
} wait_causes SEC(".maps");

/* Set by the daemon while a client wants to know who ran instead. */
__u32 watch_waits = 0;

struct task_struct___comm {
	char comm[16];
} __attribute__((preserve_access_index));

/* Never used: a record of a ring buffer has no BTF of its own, and the Rust mirror is compared with it. */
struct entrain_event entrain_event_layout;

/* Events that found no room, for the metrics. */
__u64 dropped_events = 0;

static __always_inline void report(__u32 kind, int tid, int tgid, __u64 arg)
{
	struct entrain_event *event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);

	if (!event) {
		__sync_fetch_and_add(&dropped_events, 1);
		return;
	}
	event->kind = kind;
	event->tid = tid;
	event->tgid = tgid;
	event->pad = 0;
	event->arg = arg;
	bpf_ringbuf_submit(event, 0);
}

/*
 * Whether a halted vCPU would run at once: the kernel wakes a thread on an idle CPU that shares a cache with its last
 * one if there is any, or on its only CPU.
 */
static __always_inline __u32 would_run(const struct entrain_vcpu *vcpu)
{
	__u32 cpu = vcpu->pcpu, domain;
	struct entrain_pcpu *pcpu = bpf_map_lookup_elem(&pcpus, &cpu);
	struct entrain_domain *dom;

	if (!pcpu)
		return 0;
	if (pcpu->idle)
		return 1;
	if (vcpu->wired)
		return 0;
	domain = pcpu->domain;
	dom = bpf_map_lookup_elem(&domains, &domain);
	return dom && READ_ONCE(dom->idle) > 0;
}

/* Brings the hint of one halted vCPU up to date; `slot` is 1 + its index. Stale slots change nothing. */
static __always_inline bool refresh(__u32 slot)
{
	struct entrain_vcpu *vcpu;
	struct entrain_thread *thread;
	struct entrain_pairing *pairing;
	struct task_struct *task;
	__u32 index = slot - 1, instant;

	if (!slot)
		return false;
	vcpu = entrain_vcpu_by_index(index);
	if (!vcpu || !vcpu->used || READ_ONCE(vcpu->state) != ENTRAIN_VCPU_HALTED)
		return false;
	instant = would_run(vcpu);
	if (instant == vcpu->instant)
		return false;
	vcpu->instant = instant;
	thread = bpf_map_lookup_elem(&vcpu_threads, &index);
	if (!thread)
		return false;
	task = thread->task;
	if (!task)
		return false;
	pairing = entrain_pairing_of(task);
	if (pairing)
		entrain_put_instant(vcpu, pairing);
	return true;
}

static __always_inline void idle_transition(struct entrain_pcpu *pcpu, bool idle)
{
	__u32 id = pcpu->domain;
	struct entrain_domain *dom = bpf_map_lookup_elem(&domains, &id);
	int i, before;

	if (pcpu->idle == idle)
		return;
	pcpu->idle = idle;
	pcpu->idles++;
	if (idle && READ_ONCE(want_idle)) {
		WRITE_ONCE(want_idle, 0);
		report(ENTRAIN_EVENT_IDLE, 0, 0, 0);
	}
	for (i = 0; i < ENTRAIN_PCPU_SLOTS; i++)
		pcpu->instants += refresh(pcpu->slots[i]);
	if (!dom)
		return;
	before = __sync_fetch_and_add(&dom->idle, idle ? 1 : -1);
	if (before != (idle ? 0 : 1))
		return;
	bpf_for (i, 0, ENTRAIN_DOMAIN_SLOTS) {
		if (i >= 0 && i < ENTRAIN_DOMAIN_SLOTS)
			pcpu->instants += refresh(dom->slots[i]);
	}
}

/* Remembers a vCPU that halts here, so that idle transitions find it. Direct-mapped: a newer one displaces an older. */
static __always_inline void remember(struct entrain_pcpu *pcpu, const struct entrain_vcpu *vcpu, __u32 index)
{
	__u32 id = pcpu->domain;
	struct entrain_domain *dom;

	if (vcpu->wired) {
		pcpu->slots[index % ENTRAIN_PCPU_SLOTS] = index + 1;
		return;
	}
	dom = bpf_map_lookup_elem(&domains, &id);
	if (dom)
		dom->slots[index % ENTRAIN_DOMAIN_SLOTS] = index + 1;
}

/* Closes the books on the state that ends now, and begins the next one. */
static __always_inline void enter(struct entrain_vcpu *vcpu, __u32 state, __u64 now)
{
	__u64 spent = now > vcpu->since ? now - vcpu->since : 0;

	if (vcpu->state == ENTRAIN_VCPU_RUNNING)
		vcpu->run_ns += spent;
	else if (vcpu->state == ENTRAIN_VCPU_PREEMPTED)
		vcpu->ready_ns += spent;
	else if (vcpu->state == ENTRAIN_VCPU_HALTED)
		vcpu->halted_ns += spent;
	vcpu->since = now;
	vcpu->seq++;
	WRITE_ONCE(vcpu->state, state);
}

static __always_inline void publish(struct entrain_vcpu *vcpu, struct task_struct *task, __u32 instant)
{
	struct entrain_pairing *pairing = entrain_pairing_of(task);

	vcpu->instant = instant;
	if (!pairing)
		return;
	entrain_put_state(vcpu, pairing);
	entrain_put_instant(vcpu, pairing);
}

/* Compares the preempt count with what the guest's self-test says it must be. */
static __always_inline void selftest_sample(struct entrain_pairing *pairing, __u32 count)
{
	struct entrain_page *page = pairing->page;
	__u64 levels;

	if (!(extra_features & ENTRAIN_F_SELFTEST) || !(pairing->features & ENTRAIN_F_SELFTEST) || !page)
		return;
	levels = READ_ONCE(page->selftest_guest.levels);
	/* In the guest's interrupt handlers the count has levels of its own. */
	if (!levels || count & ~0xff)
		return;
	page->selftest_host.samples++;
	if ((count & 0xff) == levels - 1)
		page->selftest_host.matches++;
}

/* It spun, and KVM gave its pCPU to a sibling: it was not taken from it. */
static __always_inline bool gave_up(struct entrain_vcpu *vcpu)
{
	struct kvm_vcpu *kvm_vcpu = (struct kvm_vcpu *)vcpu->kvm_vcpu;

	return kvm_vcpu && bpf_core_field_exists(kvm_vcpu->spin_loop.in_spin_loop) &&
	       BPF_CORE_READ(kvm_vcpu, spin_loop.in_spin_loop);
}

static __always_inline void wait_begins(__u32 index, __u32 cause)
{
	__u32 *kept;

	if (!READ_ONCE(watch_waits))
		return;
	kept = bpf_map_lookup_elem(&wait_causes, &index);
	if (kept)
		*kept = cause;
}

/* The vCPU gets its pCPU back from `prev`, to which its whole wait is charged. */
static __always_inline void wait_ends(const struct entrain_vcpu *vcpu, __u32 index, struct task_struct *prev,
				      bool is_vcpu, __u64 now)
{
	struct task_struct___comm *named = (void *)prev;
	struct entrain_wait_key key = {.index = index, .who = is_vcpu ? prev->pid : prev->tgid};
	struct entrain_wait *sum, fresh = {};
	__u32 *cause;

	if (vcpu->state != ENTRAIN_VCPU_PREEMPTED || now < vcpu->since)
		return;
	cause = bpf_map_lookup_elem(&wait_causes, &index);
	if (cause) {
		key.cause = *cause;
		*cause = ENTRAIN_WAIT_WOKEN;
	}
	sum = bpf_map_lookup_elem(&waits, &key);
	if (sum) {
		sum->ns += now - vcpu->since;
		sum->waits++;
		return;
	}
	fresh.ns = now - vcpu->since;
	fresh.waits = 1;
	BPF_CORE_READ_STR_INTO(&fresh.comm, named, comm);
	bpf_map_update_elem(&waits, &key, &fresh, BPF_ANY);
}

static __always_inline void switch_out(struct entrain_vcpu *vcpu, __u32 index, struct task_struct *task,
				       struct entrain_pcpu *pcpu, bool runnable, __u64 now)
{
	bool involuntary;
	__u32 count = 0;

	vcpu->wired = task->nr_cpus_allowed == 1;
	vcpu->extended = 0;
	vcpu->in_cs = 0;
	if (!runnable) {
		enter(vcpu, ENTRAIN_VCPU_HALTED, now);
		remember(pcpu, vcpu, index);
		publish(vcpu, task, would_run(vcpu));
		return;
	}
	involuntary = !gave_up(vcpu);
	vcpu->preemptions += involuntary;
	if (vcpu->preempt_layout) {
		struct entrain_pairing *pairing = entrain_pairing_of(task);

		if (entrain_preempt_count(vcpu, pairing, &count)) {
			vcpu->samples += involuntary;
			vcpu->preempt_count = count;
			vcpu->in_cs = count != 0;
			vcpu->preemptions_cs += involuntary && count;
			if (pairing)
				selftest_sample(pairing, count);
		}
	}
	wait_begins(index, !involuntary	 ? ENTRAIN_WAIT_GAVE_WAY
			   : vcpu->in_cs ? ENTRAIN_WAIT_CRITICAL
					 : ENTRAIN_WAIT_PREEMPTED);
	enter(vcpu, ENTRAIN_VCPU_PREEMPTED, now);
	publish(vcpu, task, 0);
}

/* 1 + the index of the vCPU that a thread runs; 0 for all other threads. */
static __always_inline __u32 slot_of(struct task_struct *task)
{
	struct entrain_ref *ref = bpf_task_storage_get(&vcpu_refs, task, 0, 0);

	return ref ? ref->index + 1 : 0;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(observe_switch, bool preempt, struct task_struct *prev, struct task_struct *next, unsigned int prev_state)
{
	__u32 out = slot_of(prev), in = slot_of(next);
	bool from_idle = prev->pid == 0, to_idle = next->pid == 0;
	struct entrain_pcpu *pcpu;
	struct entrain_vcpu *vcpu;
	__u32 cpu;
	__u64 now;

	if (!out && !in && from_idle == to_idle)
		return 0;
	cpu = bpf_get_smp_processor_id();
	pcpu = bpf_map_lookup_elem(&pcpus, &cpu);
	if (!pcpu)
		return 0;
	if (from_idle != to_idle)
		idle_transition(pcpu, to_idle);
	if (!out && !in)
		return 0;
	now = bpf_ktime_get_ns();
	if (out) {
		vcpu = entrain_vcpu_by_index(out - 1);
		if (vcpu && vcpu->used)
			switch_out(vcpu, out - 1, prev, pcpu, prev_state == 0, now);
	}
	if (in) {
		vcpu = entrain_vcpu_by_index(in - 1);
		if (vcpu && vcpu->used) {
			if (READ_ONCE(watch_waits))
				wait_ends(vcpu, in - 1, prev, out != 0, now);
			enter(vcpu, ENTRAIN_VCPU_RUNNING, now);
			vcpu->pcpu = cpu;
			vcpu->switches++;
			pcpu->switches++;
			publish(vcpu, next, 1);
		}
	}
	return 0;
}

/* A halted vCPU becomes runnable: from here on it waits for a pCPU. */
SEC("tp_btf/sched_wakeup")
int BPF_PROG(observe_wakeup, struct task_struct *task)
{
	struct entrain_vcpu *vcpu = entrain_vcpu_of(task);
	struct entrain_pcpu *pcpu;
	__u32 cpu;

	/* A thread that is woken before it has left its CPU goes on running. */
	if (!vcpu || !vcpu->used || vcpu->state == ENTRAIN_VCPU_RUNNING || vcpu->state == ENTRAIN_VCPU_PREEMPTED)
		return 0;
	cpu = bpf_get_smp_processor_id();
	pcpu = bpf_map_lookup_elem(&pcpus, &cpu);
	if (pcpu)
		pcpu->wakeups++;
	enter(vcpu, ENTRAIN_VCPU_PREEMPTED, bpf_ktime_get_ns());
	publish(vcpu, task, 0);
	return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(observe_exit, struct task_struct *task)
{
	if (entrain_vcpu_of(task))
		report(ENTRAIN_EVENT_EXIT, task->pid, task->tgid, 0);
	return 0;
}

/* The vCPU thread stands in KVM's handler of what rings: who it is, is known, whatever it says. */
static __always_inline void ring(__u64 gpa)
{
	__u64 id = bpf_get_current_pid_tgid(), now = bpf_ktime_get_ns(), *last;
	__u32 tid = (__u32)id, cpu = bpf_get_smp_processor_id();
	struct entrain_pcpu *pcpu = bpf_map_lookup_elem(&pcpus, &cpu);

	if (pcpu)
		pcpu->doorbells++;
	last = bpf_map_lookup_elem(&rings, &tid);
	if (last && now - *last < DOORBELL_PERIOD_NS)
		return;
	bpf_map_update_elem(&rings, &tid, &now, BPF_ANY);
	report(ENTRAIN_EVENT_DOORBELL, tid, id >> 32, gpa);
}

SEC("tp_btf/kvm_hypercall")
int BPF_PROG(observe_hypercall, unsigned long nr, unsigned long a0, unsigned long a1, unsigned long a2)
{
	if (nr == ENTRAIN_DOORBELL_NR && a2 == ENTRAIN_MAGIC1)
		ring(a0);
	return 0;
}

/*
 * arm64: a `wfe` from the guest's user mode, which few programs make; its registers carry the message. KVM saved them
 * when it left the guest.
 */
SEC("tp_btf/kvm_wfx_arm64")
int BPF_PROG(observe_wfx, unsigned long pc, bool is_wfe)
{
	struct kvm_vcpu *vcpu;

	if (!is_wfe)
		return 0;
	vcpu = (struct kvm_vcpu *)entrain_kvm_vcpu_of(bpf_get_current_task_btf());
	if (!vcpu || !bpf_core_field_exists(vcpu->arch.ctxt.regs.pstate) ||
	    (BPF_CORE_READ(vcpu, arch.ctxt.regs.pstate) & 0xf) ||
	    BPF_CORE_READ(vcpu, arch.ctxt.regs.regs[0]) != ENTRAIN_DOORBELL_NR ||
	    BPF_CORE_READ(vcpu, arch.ctxt.regs.regs[3]) != ENTRAIN_MAGIC1)
		return 0;
	ring(BPF_CORE_READ(vcpu, arch.ctxt.regs.regs[1]));
	return 0;
}

/* Called by the daemon: a vCPU's entry is filled; watch its thread from now on. */
SEC("syscall")
int track(struct entrain_track_args *args)
{
	struct entrain_ref fresh = {.index = args->index}, *ref;
	struct task_struct *task = bpf_task_from_pid(args->tid), *old;
	struct entrain_vcpu *vcpu = entrain_vcpu_by_index(fresh.index);
	struct entrain_thread *thread = bpf_map_lookup_elem(&vcpu_threads, &fresh.index);

	args->error = -ESRCH;
	if (!task)
		return 0;
	if (!vcpu || !thread) {
		bpf_task_release(task);
		args->error = -EINVAL;
		return 0;
	}
	ref = bpf_task_storage_get(&vcpu_refs, task, &fresh, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!ref) {
		bpf_task_release(task);
		return 0;
	}
	ref->index = fresh.index;
	vcpu->since = bpf_ktime_get_ns();
	WRITE_ONCE(vcpu->used, 1);
	old = bpf_kptr_xchg(&thread->task, task);
	if (old)
		bpf_task_release(old);
	args->error = 0;
	return 0;
}

/* Called by the daemon: forget a vCPU and its thread. */
SEC("syscall")
int untrack(struct entrain_track_args *args)
{
	__u32 index = args->index;
	struct entrain_vcpu *vcpu = entrain_vcpu_by_index(index);
	struct entrain_thread *thread = bpf_map_lookup_elem(&vcpu_threads, &index);
	struct task_struct *task;

	args->error = -ENOENT;
	if (!vcpu || !thread)
		return 0;
	WRITE_ONCE(vcpu->used, 0);
	task = bpf_kptr_xchg(&thread->task, NULL);
	if (task) {
		bpf_task_storage_delete(&pairings, task);
		bpf_task_storage_delete(&vcpu_refs, task);
		bpf_task_release(task);
	}
	args->error = 0;
	return 0;
}

/* Begins to publish: the counters in the page start here, every word is written for the first time. */
static __always_inline void begin(struct entrain_vcpu *vcpu, struct entrain_pairing *pairing)
{
	pairing->ready0 = vcpu->ready_ns;
	pairing->preemptions0 = vcpu->preemptions;
	pairing->preemptions_cs0 = vcpu->preemptions_cs;
	pairing->boosts0 = vcpu->boosts;
	vcpu->gone = ENTRAIN_GONE_NOT;
	WRITE_ONCE(pairing->closed, 0);
}

/* Called by the daemon: one step of the link word, on memory that stays pinned whatever the VMM does to its file. */
SEC("syscall")
int link_step(struct entrain_link_args *args)
{
	__u32 index = args->index;
	struct entrain_thread *thread = bpf_map_lookup_elem(&vcpu_threads, &index);
	struct entrain_vcpu *vcpu = entrain_vcpu_by_index(index);
	struct entrain_pairing *pairing;
	struct entrain_page *page;
	struct task_struct *task;

	args->error = -ENOENT;
	if (!thread || !vcpu)
		return 0;
	bpf_rcu_read_lock();
	task = thread->task;
	pairing = task ? bpf_task_storage_get(&pairings, task, 0, 0) : NULL;
	page = pairing ? pairing->page : NULL;
	if (pairing && args->op == ENTRAIN_LINK_OP_CLOSE) {
		WRITE_ONCE(pairing->closed, 1);
		args->error = 0;
	} else if (page) {
		args->was = __sync_val_compare_and_swap(&page->link.link, args->expected, args->wanted);
		args->error = 0;
		if (args->was == args->expected && args->op == ENTRAIN_LINK_OP_PAIR)
			begin(vcpu, pairing);
	}
	bpf_rcu_read_unlock();
	return 0;
}

/* Whether the page still is what was paired. */
static __always_inline __u32 check(struct entrain_vcpu *vcpu, struct entrain_pairing *pairing,
				   struct entrain_page *page)
{
	vcpu->link = READ_ONCE(page->link.link);
	if (READ_ONCE(page->header.magic[0]) != ENTRAIN_MAGIC0 || READ_ONCE(page->header.magic[1]) != ENTRAIN_MAGIC1 ||
	    READ_ONCE(page->header.cookie) != pairing->cookie || READ_ONCE(page->header.boot_id) != pairing->boot_id)
		return ENTRAIN_GONE_HEADER;
	if (vcpu->link != ENTRAIN_LINK(pairing->generation, ENTRAIN_LINK_PAIRED))
		return ENTRAIN_GONE_LINK;
	return ENTRAIN_GONE_NOT;
}

static __always_inline void read_guest(struct entrain_vcpu *vcpu, struct entrain_pairing *pairing,
				       struct entrain_page *page)
{
	vcpu->guest_beat = READ_ONCE(page->guest.heartbeat);
	if (pairing->features & ENTRAIN_F_GUEST_WORDS) {
		vcpu->util = READ_ONCE(page->guest.util);
		vcpu->runnable = READ_ONCE(page->guest.runnable);
		vcpu->wants = READ_ONCE(page->guest.wants);
		return;
	}
	if (pairing->util)
		vcpu->util = READ_ONCE(pairing->util->v);
	if (pairing->nr_running)
		vcpu->runnable = READ_ONCE(pairing->nr_running->v);
}

static __always_inline void tick_one(__u32 index, struct entrain_tick_args *args, __u64 now)
{
	struct entrain_vcpu *vcpu = entrain_vcpu_by_index(index);
	struct entrain_thread *thread = bpf_map_lookup_elem(&vcpu_threads, &index);
	struct entrain_pairing *pairing;
	struct entrain_pcpu *pcpu;
	struct kvm_vcpu *kvm_vcpu;
	struct entrain_page *page;
	struct task_struct *task;
	__u32 cpu, why;

	if (!vcpu || !thread || !vcpu->used)
		return;
	refresh(index + 1);
	task = thread->task;
	pairing = task ? entrain_pairing_of(task) : NULL;
	page = pairing ? pairing->page : NULL;
	if (!page) {
		args->gone += vcpu->gone != 0;
		return;
	}
	why = check(vcpu, pairing, page);
	if (why) {
		entrain_close(vcpu, pairing, why);
		args->gone++;
		return;
	}
	args->paired++;
	/* KVM raises it at every change of a VM's memory slots; so begins a live migration, which is in a hurry. */
	kvm_vcpu = (struct kvm_vcpu *)vcpu->kvm_vcpu;
	args->layouts += BPF_CORE_READ(kvm_vcpu, kvm, memslots[0], generation);
	read_guest(vcpu, pairing, page);
	cpu = vcpu->pcpu;
	pcpu = bpf_map_lookup_elem(&pcpus, &cpu);
	if (pcpu) {
		entrain_put(vcpu, pairing, page, slow, capacity, pcpu->capacity);
		entrain_put(vcpu, pairing, page, slow, perf, pcpu->perf);
	}
	entrain_put(vcpu, pairing, page, slow, entitlement, vcpu->entitlement);
	entrain_put(vcpu, pairing, page, slow, version, ENTRAIN_VERSION);
	entrain_put(vcpu, pairing, page, slow, features, HOST_FEATURES);
	/* Last: a heartbeat says that the words above hold. */
	entrain_put(vcpu, pairing, page, slow, heartbeat, now >> ENTRAIN_TIME_SHIFT);
}

/* Called by the daemon every 100 ms: checks every pairing, reads the guests' words, publishes what changes slowly. */
SEC("syscall")
int tick(struct entrain_tick_args *args)
{
	__u64 now = bpf_ktime_get_ns();
	__u32 entries = args->entries;
	int i;

	args->paired = 0;
	args->gone = 0;
	args->layouts = 0;
	if (entries > ENTRAIN_HOST_VCPUS)
		return 0;
	bpf_for (i, 0, entries) {
		bpf_rcu_read_lock();
		tick_one(i, args, now);
		bpf_rcu_read_unlock();
	}
	return 0;
}

/* The self-test of the channel: answers a guest that hammers its page, and adds as it does. Never in normal service. */
static __always_inline void hammer(__u32 index, struct entrain_selftest_args *args)
{
	struct entrain_vcpu *vcpu = entrain_vcpu_by_index(index);
	struct entrain_thread *thread = bpf_map_lookup_elem(&vcpu_threads, &index);
	struct task_struct *task = thread && vcpu && vcpu->used ? thread->task : NULL;
	struct entrain_pairing *pairing = task ? entrain_pairing_of(task) : NULL;
	struct entrain_page *page = pairing ? pairing->page : NULL;
	__u64 added = 0;
	__u32 i;

	if (!page || !(extra_features & ENTRAIN_F_SELFTEST) || !(pairing->features & ENTRAIN_F_SELFTEST))
		return;
	bpf_for (i, 0, args->loops) {
		__u64 ping = READ_ONCE(page->selftest_guest.word);

		/* Only a guest that plays is answered. */
		if (!ping)
			break;
		if (READ_ONCE(page->selftest_host.word) != ping) {
			WRITE_ONCE(page->selftest_host.word, ping);
			args->trips++;
		}
		__sync_fetch_and_add(&page->selftest.shared, 1);
		added++;
	}
	WRITE_ONCE(page->selftest_host.added, page->selftest_host.added + added);
	args->added += added;
}

SEC("syscall")
int selftest(struct entrain_selftest_args *args)
{
	__u32 entries = args->entries;
	int i;

	args->trips = args->added = 0;
	if (entries > ENTRAIN_HOST_VCPUS)
		return 0;
	bpf_for (i, 0, entries) {
		bpf_rcu_read_lock();
		hammer(i, args);
		bpf_rcu_read_unlock();
	}
	return 0;
}

/*
 * Called by the daemon before the tick, where the kernel knows its performance levels: copies them. A program of its
 * own, as one with an unknown kernel symbol does not load.
 */
SEC("syscall")
int levels(struct entrain_tick_args *args)
{
	__u32 entries = args->entries, cpu;
	int i;

	bpf_for (i, 0, entries) {
		const unsigned long *scale = bpf_per_cpu_ptr(&arch_freq_scale, i);
		struct entrain_pcpu *pcpu;

		cpu = i;
		pcpu = bpf_map_lookup_elem(&pcpus, &cpu);
		if (!scale || !pcpu)
			break;
		pcpu->perf = *scale < ENTRAIN_CAPACITY_SCALE ? *scale : ENTRAIN_CAPACITY_SCALE;
	}
	return 0;
}
