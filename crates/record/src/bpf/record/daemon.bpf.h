/* SPDX-License-Identifier: GPL-2.0-only */
/* What the daemon knows of a vCPU, where there is a daemon. */
#ifndef ENTRAIN_RECORD_DAEMON_H
#define ENTRAIN_RECORD_DAEMON_H

#include "kernel.h"
#include "entrain.h"
#include "interface.h"
#include "../../../../host/src/bpf/interface.h"

/* The daemon's table, if there is a daemon; else it has one entry that nobody looks at. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, ENTRAIN_HOST_VCPUS);
	__type(key, __u32);
	__type(value, struct entrain_vcpu);
} vcpus SEC(".maps");

/* The daemon's entry of a vCPU thread; NULL when it has none, or has given it to another thread. */
static __always_inline struct entrain_vcpu *daemon__entry(const struct record_target *target, __u32 tid)
{
	__u32 index = target->entry - 1;
	struct entrain_vcpu *vcpu = target->entry ? bpf_map_lookup_elem(&vcpus, &index) : NULL;

	return vcpu && vcpu->tid == tid ? vcpu : NULL;
}

/* As `samples` of struct record_target has it. */
static __always_inline __u32 daemon__samples(const struct entrain_vcpu *vcpu)
{
	return vcpu ? 1 + (__u32)vcpu->samples : 0;
}

/*
 * What the daemon's program has just found at this very switch. It has done so when the vCPU is entered as preempted:
 * programs of one tracepoint run in the order in which they were attached, and the daemon may have come later. That it
 * has read the guest's preempt count shows in its own count of that: a pairing can end, and so can the daemon, whose
 * table then stays as it was.
 */
static __always_inline __u8 daemon__critical_flags(const struct record_target *target, __u32 tid)
{
	struct entrain_vcpu *vcpu = daemon__entry(target, tid);

	if (!vcpu || !target->samples || daemon__samples(vcpu) == target->samples ||
	    READ_ONCE(vcpu->state) != ENTRAIN_VCPU_PREEMPTED)
		return 0;
	return RECORD_F_CS_KNOWN | (vcpu->in_cs ? RECORD_F_CS : 0);
}

#endif /* ENTRAIN_RECORD_DAEMON_H */
