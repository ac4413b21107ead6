// SPDX-License-Identifier: GPL-2.0-only
/*
 * Records what the scheduler and KVM do with chosen vCPU threads.
 *
 * A context switch is recorded when a vCPU leaves or comes, and also while one waits on that pCPU: so it is known who
 * ran instead. All other switches cost three failed lookups. The programs need no daemon; where one runs, its table of
 * vCPUs tells whether a vCPU was inside a critical section.
 */
#include "kernel.h"
#include "interface.h"
#include "../../../host/src/bpf/interface.h"

char LICENSE[] SEC("license") = "GPL";

#define TASK_DEAD	  0x80
#define VCPU_IS_PREEMPTED 3 /* ENTRAIN_VCPU_PREEMPTED */

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct thread_info___record {
	__u32 cpu;
};

struct task_struct___record {
	struct thread_info___record thread_info;
	char comm[16];
};

#pragma clang attribute pop

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, RECORD_TARGETS);
	__type(key, __u32);
	__type(value, struct record_target);
} targets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, RECORD_CPUS);
	__type(key, __u32);
	__type(value, struct record_cpu);
} cpus SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, RECORD_NAMES);
	__type(key, __u32);
	__type(value, struct record_name);
} named SEC(".maps");

/* The daemon's table, if there is a daemon; else it has one entry that nobody looks at. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, ENTRAIN_HOST_VCPUS);
	__type(key, __u32);
	__type(value, struct entrain_vcpu);
} vcpus SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 8 << 20);
} events SEC(".maps");

/* Never used: records of a ring buffer have no BTF of their own, and the Rust mirror is compared with them. */
struct record_event record_event_layout;

/* Events that found no room in the ring buffer. */
__u64 dropped = 0;

static __always_inline void emit(__u8 kind, __u8 flags, __u32 cpu, __u32 tid, __u32 other, __u64 arg)
{
	struct record_event *event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);

	if (!event) {
		__sync_fetch_and_add(&dropped, 1);
		return;
	}
	event->ns = bpf_ktime_get_ns();
	event->kind = kind;
	event->flags = flags;
	event->cpu = cpu;
	event->tid = tid;
	event->other = other;
	event->pad = 0;
	event->arg = arg;
	/* User space looks every 50 ms; waking it up from here would disturb what is recorded. */
	bpf_ringbuf_submit(event, BPF_RB_NO_WAKEUP);
}

/* Tells a thread's name when it is met first, and again when it has changed: by exec, or as another has its number. */
static __always_inline void introduce(struct task_struct *task, __u32 tid)
{
	struct record_name name = {.tgid = task->tgid, .kind = RECORD_NAME, .tid = tid};
	struct task_struct___record *details = (void *)task;
	const __u64 *new = (const void *)name.comm, *old;
	struct record_name *told;

	if (!tid)
		return;
	BPF_CORE_READ_INTO(&name.comm, details, comm);
	told = bpf_map_lookup_elem(&named, &tid);
	if (told) {
		old = (const void *)told->comm;
		if (told->tgid == name.tgid && old[0] == new[0] && old[1] == new[1])
			return;
	}
	if (!bpf_ringbuf_output(&events, &name, sizeof(name), BPF_RB_NO_WAKEUP))
		bpf_map_update_elem(&named, &tid, &name, BPF_ANY);
}

static __always_inline struct record_target *target_of(__u32 tid)
{
	return tid ? bpf_map_lookup_elem(&targets, &tid) : NULL;
}

static __always_inline void stop_waiting(struct record_target *target)
{
	__u32 cpu = target->waits_on - 1;
	struct record_cpu *queue;

	if (!target->waits_on)
		return;
	target->waits_on = 0;
	queue = bpf_map_lookup_elem(&cpus, &cpu);
	if (queue)
		__sync_fetch_and_add(&queue->waiting, -1);
}

static __always_inline void wait_on(struct record_target *target, __u32 cpu)
{
	struct record_cpu *queue = bpf_map_lookup_elem(&cpus, &cpu);

	stop_waiting(target);
	if (!queue)
		return;
	target->waits_on = cpu + 1;
	__sync_fetch_and_add(&queue->waiting, 1);
}

/* While KVM looks for a sibling to yield to. */
static __always_inline bool gives_way(const struct record_target *target)
{
	struct kvm_vcpu *kvm_vcpu = (struct kvm_vcpu *)target->kvm_vcpu;

	return kvm_vcpu && bpf_core_field_exists(kvm_vcpu->spin_loop.in_spin_loop) &&
	       BPF_CORE_READ(kvm_vcpu, spin_loop.in_spin_loop);
}

static __always_inline struct entrain_vcpu *daemon_entry(const struct record_target *target, __u32 tid)
{
	__u32 index = target->entry - 1;
	struct entrain_vcpu *vcpu = target->entry ? bpf_map_lookup_elem(&vcpus, &index) : NULL;

	return vcpu && vcpu->tid == tid ? vcpu : NULL;
}

/* As `samples` of struct record_target has it. */
static __always_inline __u32 samples(const struct entrain_vcpu *vcpu)
{
	return vcpu ? 1 + (__u32)vcpu->samples : 0;
}

/*
 * What the daemon's program has just found at this very switch. It has done so when the vCPU is entered as preempted:
 * programs of one tracepoint run in the order in which they were attached, and the daemon may have come later. That it
 * has read the guest's preempt count shows in its own count of that: a pairing can end, and so can the daemon, whose
 * table then stays as it was.
 */
static __always_inline __u8 critical(const struct record_target *target, __u32 tid)
{
	struct entrain_vcpu *vcpu = daemon_entry(target, tid);

	if (!vcpu || !target->samples || samples(vcpu) == target->samples ||
	    READ_ONCE(vcpu->state) != VCPU_IS_PREEMPTED)
		return 0;
	return RECORD_F_CS_KNOWN | (vcpu->in_cs ? RECORD_F_CS : 0);
}

SEC("tp_btf/sched_switch")
int BPF_PROG(record_switch, bool preempt, struct task_struct *prev, struct task_struct *next, unsigned int prev_state)
{
	__u32 cpu = bpf_get_smp_processor_id(), out_tid = prev->pid, in_tid = next->pid;
	struct record_target *out = target_of(out_tid), *in = target_of(in_tid);
	struct record_cpu *queue = bpf_map_lookup_elem(&cpus, &cpu);
	__u8 flags = 0;

	if (!queue)
		return 0;
	queue->runs = in_tid + 1;
	if (!out) {
		/* Keeps the compiler from joining the two pointers into one condition, which the verifier refuses. */
		barrier_var(in);
		if (!in && READ_ONCE(queue->waiting) <= 0)
			return 0;
	}
	if (out) {
		out->running = 0;
		if (preempt || prev_state == 0) {
			flags = RECORD_F_RUNNABLE | critical(out, out_tid);
			if (gives_way(out))
				flags |= RECORD_F_GAVE_WAY;
			wait_on(out, cpu);
		} else if (prev_state & TASK_DEAD) {
			flags = RECORD_F_EXITED;
		}
	}
	if (in) {
		in->running = 1;
		in->samples = samples(daemon_entry(in, in_tid));
		stop_waiting(in);
	}
	introduce(prev, out_tid);
	introduce(next, in_tid);
	emit(RECORD_SWITCH, flags, cpu, out_tid, in_tid, 0);
	return 0;
}

/* Who runs on a pCPU, as `flags` and `tid`; it may change at any moment, the next switch there tells, also its name. */
static __always_inline __u8 runs_on(__u32 cpu, __u32 *tid)
{
	struct record_cpu *queue = bpf_map_lookup_elem(&cpus, &cpu);

	*tid = queue && queue->runs ? queue->runs - 1 : 0;
	return queue && queue->runs ? RECORD_F_OTHER_KNOWN : 0;
}

SEC("tp_btf/sched_wakeup")
int BPF_PROG(record_wakeup, struct task_struct *task)
{
	struct task_struct___record *details = (void *)task;
	__u32 tid = task->pid, cpu, other;
	struct record_target *target = target_of(tid);
	__u8 flags;

	/* A thread that is woken before it has left its pCPU goes on running. */
	if (!target || target->running || target->waits_on)
		return 0;
	cpu = BPF_CORE_READ(details, thread_info.cpu);
	wait_on(target, cpu);
	flags = runs_on(cpu, &other);
	emit(RECORD_WAKEUP, flags, cpu, tid, other, 0);
	return 0;
}

SEC("tp_btf/sched_migrate_task")
int BPF_PROG(record_migrate, struct task_struct *task, int cpu)
{
	__u32 tid = task->pid, other;
	struct record_target *target = target_of(tid);
	__u8 flags;

	if (!target || !target->waits_on)
		return 0;
	wait_on(target, cpu);
	flags = runs_on(cpu, &other);
	emit(RECORD_MIGRATE, flags, cpu, tid, other, 0);
	return 0;
}

SEC("tp_btf/kvm_vcpu_wakeup")
int BPF_PROG(record_halt, __u64 ns, bool waited, bool valid)
{
	__u32 tid = (__u32)bpf_get_current_pid_tgid();

	if (target_of(tid))
		emit(RECORD_HALT, waited ? RECORD_F_WAITED : 0, bpf_get_smp_processor_id(), tid, 0, ns);
	return 0;
}

/* The two below have no tracepoint; a kernel whose functions can't be followed does without. */
SEC("fentry/kvm_vcpu_on_spin")
int BPF_PROG(record_spin)
{
	__u32 tid = (__u32)bpf_get_current_pid_tgid();

	if (target_of(tid))
		emit(RECORD_SPIN, 0, bpf_get_smp_processor_id(), tid, 0, 0);
	return 0;
}

SEC("fexit/yield_to")
int BPF_PROG(record_yield, struct task_struct *task, bool preempt, int answer)
{
	__u32 tid = (__u32)bpf_get_current_pid_tgid();

	if (target_of(tid))
		emit(RECORD_YIELD, 0, bpf_get_smp_processor_id(), tid, task->pid, answer);
	return 0;
}
