// SPDX-License-Identifier: GPL-2.0-only
/*
 * Makes a guest pay a VM exit for each change of what a vCPU needs, as it would if it told its host by a hypercall or
 * by MMIO: reads a register of a device whenever the word in the page has changed by as much as is worth telling.
 */
#include "kernel.h"
#include "perf.h"

char LICENSE[] SEC("license") = "GPL";

/* Kernel virtual address of the register; a read of it changes nothing. */
const volatile __u64 address;
/* The agent's pages. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct entrain_page);
} entrain_pages SEC(".maps");

/* What was told last of each vCPU. */
__u64 told[ENTRAIN_MAX_VCPUS];
__u64 exits;

static __always_inline void vcpu__tell(__u32 cpu)
{
	struct entrain_page *page = bpf_map_lookup_elem(&entrain_pages, &cpu);
	__u64 util, before;
	__u32 value;

	if (!page || cpu >= ENTRAIN_MAX_VCPUS)
		return;
	util = READ_ONCE(page->guest.util);
	before = told[cpu];
	/* Less is no change that Entrain's host would ask its frequency driver for. */
	if (util + ENTRAIN_PERF_STEP_UP > before && before + ENTRAIN_PERF_STEP_UP > util)
		return;
	told[cpu] = util;
	/* SAFETY: a read that may fault is bounded by the kernel; what is there was looked up by the loader. */
	bpf_probe_read_kernel(&value, sizeof(value), (void *)address);
	__sync_fetch_and_add(&exits, 1);
}

SEC("tp_btf/sched_switch")
int BPF_PROG(exits_switch)
{
	vcpu__tell(bpf_get_smp_processor_id());
	return 0;
}

SEC("tp_btf/sched_wakeup")
int BPF_PROG(exits_wakeup, struct task_struct *p)
{
	vcpu__tell(p->thread_info.cpu);
	return 0;
}

/* At ticks. */
SEC("tp_btf/sched_stat_runtime")
int BPF_PROG(exits_runtime)
{
	vcpu__tell(bpf_get_smp_processor_id());
	return 0;
}
