/* SPDX-License-Identifier: GPL-2.0-only */
/* The tables of the vCPUs and of the VMs: what is kept of each on every kernel, with a guest's page or without. */
#ifndef ENTRAIN_HOST_VCPUS_BPF_H
#define ENTRAIN_HOST_VCPUS_BPF_H

#include "kernel.h"
#include "entrain.h"
#include "interface.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, ENTRAIN_HOST_VCPUS);
	__type(key, __u32);
	__type(value, struct entrain_vcpu);
} vcpus SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, ENTRAIN_HOST_VMS);
	__type(key, __u32);
	__type(value, struct entrain_vm);
} vms SEC(".maps");

static __always_inline struct entrain_vcpu *vcpu__by_index(__u32 index)
{
	return bpf_map_lookup_elem(&vcpus, &index);
}

#endif /* ENTRAIN_HOST_VCPUS_BPF_H */
