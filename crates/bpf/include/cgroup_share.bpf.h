/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * cpu.weight without a tree of queues: each cgroup knows the sum of the weights that want to run in it, and a task is
 * charged by its part of its cgroup's part (entrain_share in fair.h). As with EEVDF, a group stands beside the tasks of
 * its parent, weight against weight. Work per event is bounded by the depth of the tree. For the schedulers of host and
 * guest alike.
 */
#ifndef ENTRAIN_CGROUP_SHARE_BPF_H
#define ENTRAIN_CGROUP_SHARE_BPF_H

#include "scx.h"
#include "fair.h"

/* Deeper groups share with their ancestor at this level. */
#define CGROUP_DEPTH 8

/* A group's share is computed anew after so long: the walk up the tree against the error while tasks come and go. */
#define CGROUP_STALE_NS (4 * ENTRAIN_MSEC)

struct cgroup_ctx {
	__u64 weight;  /* cpu.weight, 1..10000 */
	__s64 active;  /* weights of its runnable tasks and active children */
	__s64 counted; /* the weight that its parent counts it with */
	__u64 share;   /* of the machine, 1/1024 of a weight */
	__u64 share_at;
	/* Of cgroup_limit.bpf.h: the group's own limit, and the nearest that it is under, itself or above, ... */
	__u32 limit;
	__u32 nearest;
	__u32 limit_epoch; /* ... as of this epoch */
	__u32 pad;
};

/* What a task keeps of its group; all zero when it is not counted. */
struct cgroup_member {
	__u64 active; /* the weight that its group counts it with */
	__u64 cgroup; /* ... and that group's id */
};

struct {
	__uint(type, BPF_MAP_TYPE_CGRP_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct cgroup_ctx);
} sched_cgroups SEC(".maps");

/* Adds to a group's sum and, when the group wakes up or falls asleep with it, the group's weight to its parent's. */
static void cgroup__add(struct cgroup *cgrp, __s64 delta)
{
	int i, top = cgrp->level < CGROUP_DEPTH ? cgrp->level : CGROUP_DEPTH;

	bpf_for (i, 0, CGROUP_DEPTH) {
		struct cgroup_ctx *ctx;
		struct cgroup *at;
		__s64 before;

		if (top - i < 1)
			break;
		at = bpf_cgroup_ancestor(cgrp, top - i);
		if (!at)
			break;
		ctx = bpf_cgrp_storage_get(&sched_cgroups, at, 0, 0);
		if (!ctx) {
			bpf_cgroup_release(at);
			break;
		}
		before = __sync_fetch_and_add(&ctx->active, delta);
		if (before <= 0 && before + delta > 0) {
			delta = ctx->counted = ctx->weight;
		} else if (before > 0 && before + delta <= 0) {
			delta = -ctx->counted;
		} else {
			bpf_cgroup_release(at);
			break;
		}
		bpf_cgroup_release(at);
	}
}

/* A group's share of the machine. */
static __u64 cgroup__share(struct cgroup *cgrp, struct cgroup_ctx *leaf, __u64 now)
{
	__u64 share = 0, active = 0;
	int i, top = cgrp->level < CGROUP_DEPTH ? cgrp->level : CGROUP_DEPTH;

	if (leaf->share && now - leaf->share_at < CGROUP_STALE_NS)
		return leaf->share;
	bpf_for (i, 1, CGROUP_DEPTH + 1) {
		struct cgroup_ctx *ctx;
		struct cgroup *at;

		if (i > top)
			break;
		at = bpf_cgroup_ancestor(cgrp, i);
		if (!at)
			break;
		ctx = bpf_cgrp_storage_get(&sched_cgroups, at, 0, 0);
		if (!ctx) {
			bpf_cgroup_release(at);
			break;
		}
		share = i == 1 ? ctx->weight << ENTRAIN_SHARE_SHIFT : entrain_share(share, ctx->weight, active);
		active = ctx->active > 0 ? ctx->active : 0;
		bpf_cgroup_release(at);
	}
	leaf->share = share;
	leaf->share_at = now;
	return share;
}

/* The group that counts the task: its own, or its ancestor at CGROUP_DEPTH. Must be released. */
static struct cgroup *task__group(struct task_struct *p)
{
	struct cgroup *cgrp = scx_bpf_task_cgroup(p), *at;

	if (cgrp->level <= CGROUP_DEPTH)
		return cgrp;
	at = bpf_cgroup_ancestor(cgrp, CGROUP_DEPTH);
	bpf_cgroup_release(cgrp);
	return at;
}

/* What a task is charged by, in 1/1024 of a weight. */
static __u64 task__share(struct task_struct *p, __u64 now)
{
	__u64 weight = entrain_weight_clamp(p->scx.weight), group;
	struct cgroup *cgrp = task__group(p);
	struct cgroup_ctx *ctx;
	__u64 share = weight << ENTRAIN_SHARE_SHIFT;

	if (!cgrp)
		return share;
	ctx = cgrp->level > 0 ? bpf_cgrp_storage_get(&sched_cgroups, cgrp, 0, 0) : NULL;
	if (ctx) {
		group = cgroup__share(cgrp, ctx, now);
		if (group)
			share = entrain_share(group, weight, ctx->active > 0 ? ctx->active : 0);
	}
	bpf_cgroup_release(cgrp);
	return share;
}

/* The task becomes runnable. */
static void cgroup__join(struct task_struct *p, struct cgroup_member *t)
{
	struct cgroup *cgrp;

	if (t->active)
		return;
	cgrp = task__group(p);
	if (!cgrp)
		return;
	if (cgrp->level > 0) {
		t->active = entrain_weight_clamp(p->scx.weight);
		t->cgroup = cgrp->kn->id;
		cgroup__add(cgrp, t->active);
	}
	bpf_cgroup_release(cgrp);
}

/* It is runnable no more. The group is the one that was joined: a task that moves has left it already. */
static void cgroup__leave(struct cgroup_member *t)
{
	struct cgroup *cgrp;

	if (!t->active)
		return;
	cgrp = bpf_cgroup_from_id(t->cgroup);
	if (cgrp) {
		cgroup__add(cgrp, -(__s64)t->active);
		bpf_cgroup_release(cgrp);
	}
	t->active = 0;
}

/* ops.cgroup_init. Returns 0 or a negative error number. */
static __s32 cgroup__enter(struct cgroup *cgrp, __u64 weight)
{
	struct cgroup_ctx *ctx = bpf_cgrp_storage_get(&sched_cgroups, cgrp, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (!ctx)
		return -12 /* ENOMEM */;
	/* Nobody is counted yet: it may hold what an earlier attachment of the scheduler left. */
	__builtin_memset(ctx, 0, sizeof(*ctx));
	ctx->weight = entrain_weight_clamp(weight);
	return 0;
}

/* ops.cgroup_set_weight. A group that is awake is counted by its parent: with the new weight from now on. */
static void cgroup__reweigh(struct cgroup *cgrp, __u64 weight)
{
	struct cgroup_ctx *ctx = bpf_cgrp_storage_get(&sched_cgroups, cgrp, 0, 0), *up;
	struct cgroup *parent;
	__s64 more;

	if (!ctx)
		return;
	ctx->weight = entrain_weight_clamp(weight);
	ctx->share = 0;
	if (ctx->active <= 0 || cgrp->level < 2 || cgrp->level > CGROUP_DEPTH)
		return;
	parent = bpf_cgroup_ancestor(cgrp, cgrp->level - 1);
	if (!parent)
		return;
	up = bpf_cgrp_storage_get(&sched_cgroups, parent, 0, 0);
	if (up) {
		more = (__s64)ctx->weight - ctx->counted;
		ctx->counted += more;
		__sync_fetch_and_add(&up->active, more);
	}
	bpf_cgroup_release(parent);
}

#endif /* ENTRAIN_CGROUP_SHARE_BPF_H */
