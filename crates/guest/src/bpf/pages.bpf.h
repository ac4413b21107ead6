/* SPDX-License-Identifier: GPL-2.0-only */
/* The agent's pages, an element for each vCPU: its map takes the place of this one before a program is loaded. */
#ifndef ENTRAIN_GUEST_PAGES_BPF_H
#define ENTRAIN_GUEST_PAGES_BPF_H

#include "kernel.h"
#include "entrain.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct entrain_page);
} entrain_pages SEC(".maps");

#endif /* ENTRAIN_GUEST_PAGES_BPF_H */
