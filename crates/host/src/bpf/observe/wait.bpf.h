/* SPDX-License-Identifier: GPL-2.0-only */
/* Who ran while a vCPU waited for a pCPU, for `entrain top`: summed per vCPU, cause and task. */
#ifndef ENTRAIN_OBSERVE_WAIT_BPF_H
#define ENTRAIN_OBSERVE_WAIT_BPF_H

#include "state.bpf.h"

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

static __always_inline void wait__begin(__u32 index, __u32 cause)
{
	__u32 *kept;

	if (!READ_ONCE(watch_waits))
		return;
	kept = bpf_map_lookup_elem(&wait_causes, &index);
	if (kept)
		*kept = cause;
}

/* The vCPU gets its pCPU back from `prev`, to which its whole wait is charged. */
static __always_inline void wait__end(const struct entrain_vcpu *vcpu, __u32 index, struct task_struct *prev,
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

#endif /* ENTRAIN_OBSERVE_WAIT_BPF_H */
