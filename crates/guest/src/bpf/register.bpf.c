// SPDX-License-Identifier: GPL-2.0-only
/* Finds the guest kernel's own variables for the registration; each program runs once per question and is then gone. */
#include "kernel.h"
#include "register.h"

char LICENSE[] SEC("license") = "GPL";

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct sched_avg {
	unsigned long util_avg;
};

struct cfs_rq {
	struct sched_avg avg;
};

struct rq {
	unsigned int nr_running;
	struct cfs_rq cfs;
};

/* x86 from 6.2 to 6.14. */
struct pcpu_hot {
	int preempt_count;
};

/* arm64. A flavour, since thread_info holds no count on x86. */
struct thread_info___count {
	__u64 preempt_count;
};

struct task_struct___count {
	struct thread_info___count thread_info;
};

#pragma clang attribute pop

extern const struct rq runqueues __ksym __weak;
extern const unsigned long __preempt_count __ksym __weak;
extern const struct pcpu_hot pcpu_hot __ksym __weak;
extern const unsigned int x86_cpu_to_apicid __ksym __weak;

extern void bpf_preempt_disable(void) __ksym __weak;
extern void bpf_preempt_enable(void) __ksym __weak;

static __always_inline __u64 symbol(const char *name, int size)
{
	__u64 address = 0;

	return bpf_kallsyms_lookup_name(name, size, 0, &address) == 0 ? address : 0;
}

/*
 * Answers go to variables first and to the context at the end: a store in each branch lets the compiler keep a pointer
 * to a field across them, and verifiers before 6.8 refuse a pointer into the context that was computed.
 */
SEC("syscall")
int survey(struct entrain_survey *q)
{
	__u64 preempt_count = 0, util = 0, nr_running = 0, apicid = 0;
	__u32 cpu = q->cpu, preempt_offset = ~0U;

	if (bpf_ksym_exists(&__preempt_count)) {
		preempt_count = (__u64)bpf_per_cpu_ptr(&__preempt_count, cpu);
	} else if (bpf_ksym_exists(&pcpu_hot)) {
		__u64 hot = (__u64)bpf_per_cpu_ptr(&pcpu_hot, cpu);

		preempt_count = hot ? hot + bpf_core_field_offset(struct pcpu_hot, preempt_count) : 0;
	}
	if (bpf_ksym_exists(&runqueues)) {
		__u64 rq = (__u64)bpf_per_cpu_ptr(&runqueues, cpu);

		/* Other types than these are not known here: better no load than a wrong one. */
		if (rq && bpf_core_field_exists(struct rq, cfs.avg.util_avg) &&
		    bpf_core_field_size(struct rq, cfs.avg.util_avg) == 8 &&
		    bpf_core_field_size(struct rq, nr_running) == 4) {
			util = rq + bpf_core_field_offset(struct rq, cfs.avg.util_avg);
			nr_running = rq + bpf_core_field_offset(struct rq, nr_running);
		}
	}
	if (bpf_ksym_exists(&x86_cpu_to_apicid))
		apicid = (__u64)bpf_per_cpu_ptr(&x86_cpu_to_apicid, cpu);
	if (bpf_core_field_exists(struct task_struct___count, thread_info.preempt_count))
		preempt_offset = bpf_core_field_offset(struct task_struct___count, thread_info.preempt_count);
	q->preempt_count = preempt_count;
	q->util = util;
	q->nr_running = nr_running;
	q->apicid = apicid;
	q->preempt_offset = preempt_offset;
	q->page_offset_base = symbol("page_offset_base", sizeof("page_offset_base"));
	q->memstart_addr = symbol("memstart_addr", sizeof("memstart_addr"));
	q->cpu_logical_map = symbol("__cpu_logical_map", sizeof("__cpu_logical_map"));
	return 0;
}

SEC("syscall")
int peek(struct entrain_peek *p)
{
	__u64 value = 0;

	p->error = bpf_probe_read_kernel(&value, sizeof(value), (void *)p->address);
	p->value = value;
	return 0;
}

SEC("syscall")
int depth(struct entrain_depth *d)
{
	void *at = (void *)d->address;
	__u32 outside = 0, inside = 0;
	__s64 error;

	d->levels = 0;
	if (!bpf_ksym_exists(bpf_preempt_disable))
		return 0;
	if (!at)
		at = (void *)bpf_get_current_task() + d->offset;
	error = bpf_probe_read_kernel(&outside, sizeof(outside), at);
	bpf_preempt_disable();
	bpf_preempt_disable();
	bpf_preempt_disable();
	error |= bpf_probe_read_kernel(&inside, sizeof(inside), at);
	bpf_preempt_enable();
	bpf_preempt_enable();
	bpf_preempt_enable();
	d->outside = outside;
	d->inside = inside;
	d->error = error;
	d->levels = 3;
	return 0;
}
