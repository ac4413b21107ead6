/* SPDX-License-Identifier: GPL-2.0-only */
/* The doorbells: a guest's agent says that its page is there. */
#ifndef ENTRAIN_OBSERVE_DOORBELL_BPF_H
#define ENTRAIN_OBSERVE_DOORBELL_BPF_H

#include "../channel.bpf.h"
#include "state.bpf.h"

/*
 * Guests can ring as often as they like; the daemon hears each vCPU thread once in this time, and a VMM's process so
 * many times, whatever the number of its vCPUs. An agent rings on all vCPUs from the first one up, and only that one's
 * ring tells the daemon anything.
 */
#define DOORBELL_PERIOD_NS 100000000ULL
#define DOORBELL_RINGS	   8

/* When a thread last rang. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, ENTRAIN_HOST_VCPUS);
	__type(key, __u32);
	__type(value, __u64);
} rings SEC(".maps");

/* Rings of a process that were heard since `since`. */
struct entrain_ringer {
	__u64 since;
	__u64 heard;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, ENTRAIN_HOST_VMS);
	__type(key, __u32);
	__type(value, struct entrain_ringer);
} ringers SEC(".maps");

/* Whether one more ring of a process is heard. Two vCPUs that ring at once may count as one. */
static __always_inline bool doorbell__heard(__u32 tgid, __u64 now)
{
	struct entrain_ringer fresh = {.since = now, .heard = 1}, *ringer = bpf_map_lookup_elem(&ringers, &tgid);

	if (!ringer) {
		bpf_map_update_elem(&ringers, &tgid, &fresh, BPF_ANY);
		return true;
	}
	if (now - ringer->since >= DOORBELL_PERIOD_NS)
		*ringer = fresh;
	else
		ringer->heard++;
	return ringer->heard <= DOORBELL_RINGS;
}

/* The vCPU thread stands in KVM's handler of what rings: who it is, is known, whatever it says. */
static __always_inline void doorbell__ring(__u64 gpa)
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
	if (!doorbell__heard(id >> 32, now))
		return;
	event__report(ENTRAIN_EVENT_DOORBELL, tid, id >> 32, gpa);
}

SEC("tp_btf/kvm_hypercall")
int BPF_PROG(observe_hypercall, unsigned long nr, unsigned long a0, unsigned long a1, unsigned long a2)
{
	if (nr == ENTRAIN_DOORBELL_NR && a2 == ENTRAIN_MAGIC1)
		doorbell__ring(a0);
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
	vcpu = (struct kvm_vcpu *)kvm_vcpu__of(bpf_get_current_task_btf());
	if (!vcpu || !bpf_core_field_exists(vcpu->arch.ctxt.regs.pstate) ||
	    (BPF_CORE_READ(vcpu, arch.ctxt.regs.pstate) & 0xf) ||
	    BPF_CORE_READ(vcpu, arch.ctxt.regs.regs[0]) != ENTRAIN_DOORBELL_NR ||
	    BPF_CORE_READ(vcpu, arch.ctxt.regs.regs[3]) != ENTRAIN_MAGIC1)
		return 0;
	doorbell__ring(BPF_CORE_READ(vcpu, arch.ctxt.regs.regs[1]));
	return 0;
}

#endif /* ENTRAIN_OBSERVE_DOORBELL_BPF_H */
