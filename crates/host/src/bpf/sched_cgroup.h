/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * cgroup v2's cpu.weight without a tree of queues: each cgroup knows the sum of the weights that want to run in it, and
 * a task is charged by its part of its cgroup's part (fair.h). Work per event is bounded by the depth of the tree.
 */
#ifndef ENTRAIN_SCHED_CGROUP_H
#define ENTRAIN_SCHED_CGROUP_H

#include "sched_state.h"

#define CGROUP_DEPTH 8

/* A cgroup's share is computed anew after so long: a balance between the walk up the tree and the error. */
#define CGROUP_STALE_NS (4 * ENTRAIN_MSEC)

struct cgroup_ctx {
	__u64 weight; /* cpu.weight, 1..10000 */
	__s64 active; /* weights of runnable tasks and active children */
	__u64 share;  /* of the host, 1/1024 of a weight */
	__u64 share_at;
};

struct {
	__uint(type, BPF_MAP_TYPE_CGRP_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct cgroup_ctx);
} sched_cgroups SEC(".maps");

/* Adds to a cgroup's active sum and, when it comes to life or falls asleep, its weight to its parent's. */
static __always_inline void cgroup_activate(struct cgroup *cgrp, __s64 delta)
{
	int i, top = cgrp->level;

	bpf_for (i, 0, CGROUP_DEPTH) {
		struct cgroup_ctx *c;
		struct cgroup *at;
		__s64 before, weight;
		int level = top - i;

		if (level < 1)
			break;
		at = bpf_cgroup_ancestor(cgrp, level);
		if (!at)
			break;
		c = bpf_cgrp_storage_get(&sched_cgroups, at, 0, 0);
		if (!c) {
			bpf_cgroup_release(at);
			break;
		}
		before = __sync_fetch_and_add(&c->active, delta);
		weight = c->weight;
		bpf_cgroup_release(at);
		if (delta > 0 && before <= 0)
			delta = weight;
		else if (delta < 0 && before + delta <= 0)
			delta = -weight;
		else
			break;
	}
}

/* A cgroup's share of the host: top-level cgroups stand beside the root's tasks, weight against weight. */
static __always_inline __u64 cgroup_share(struct cgroup *cgrp, __u64 now)
{
	struct cgroup_ctx *leaf = bpf_cgrp_storage_get(&sched_cgroups, cgrp, 0, 0);
	__u64 share = 0, active = 0;
	int i, depth = cgrp->level;

	if (!leaf)
		return 0;
	if (leaf->share && entrain_sub(now, leaf->share_at) < CGROUP_STALE_NS)
		return leaf->share;
	bpf_for (i, 1, CGROUP_DEPTH + 1) {
		struct cgroup_ctx *c;
		struct cgroup *at;

		if (i > depth)
			break;
		at = bpf_cgroup_ancestor(cgrp, i);
		if (!at)
			break;
		c = bpf_cgrp_storage_get(&sched_cgroups, at, 0, 0);
		if (!c) {
			bpf_cgroup_release(at);
			break;
		}
		share = i == 1 ? c->weight << ENTRAIN_SHARE_SHIFT : entrain_share(share, c->weight, active);
		active = c->active > 0 ? c->active : 0;
		bpf_cgroup_release(at);
	}
	leaf->share = share;
	leaf->share_at = now;
	return share;
}

/* What a task is charged by, in 1/1024 of a weight. */
static __always_inline __u64 task_share(struct task_struct *p, __u64 now)
{
	struct cgroup *cgrp = scx_bpf_task_cgroup(p);
	__u64 share = 0, weight = p->scx.weight;
	struct cgroup_ctx *c;

	if (cgrp->level > 0) {
		__u64 group = cgroup_share(cgrp, now);

		c = bpf_cgrp_storage_get(&sched_cgroups, cgrp, 0, 0);
		if (group && c)
			share = entrain_share(group, weight, c->active > 0 ? c->active : 0);
	}
	bpf_cgroup_release(cgrp);
	return share ? share : entrain_weight_clamp(weight) << ENTRAIN_SHARE_SHIFT;
}

static __always_inline void task_activate(struct task_struct *p, struct task_ctx *t)
{
	struct cgroup *cgrp;

	if (t->active)
		return;
	t->active = entrain_weight_clamp(p->scx.weight);
	cgrp = scx_bpf_task_cgroup(p);
	cgroup_activate(cgrp, t->active);
	bpf_cgroup_release(cgrp);
}

static __always_inline void task_deactivate(struct task_struct *p, struct task_ctx *t)
{
	struct cgroup *cgrp;

	if (!t->active)
		return;
	cgrp = scx_bpf_task_cgroup(p);
	cgroup_activate(cgrp, -(__s64)t->active);
	bpf_cgroup_release(cgrp);
	t->active = 0;
}

#endif /* ENTRAIN_SCHED_CGROUP_H */
