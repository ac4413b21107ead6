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

/* Groups that are counted, a power of two: with more of them, later ones share with their parents. */
#ifndef CGROUP_NODES
#define CGROUP_NODES 4096
#endif

/*
 * A group as it is counted. Nodes name each other by number, so that a task that wakes or sleeps changes the sums of
 * its groups by plain loads and atomics: to ask the kernel for the groups above one, and each for its storage, takes
 * a dozen calls a time, and under libvirt every vCPU is the only task of a group of its own.
 */
struct cgroup_node {
	__s64 active;  /* weights of its runnable tasks and active children */
	__s64 counted; /* the weight that its parent counts it with */
	__u64 weight;  /* cpu.weight, 1..10000 */
	__u64 share;   /* of the machine, 1/1024 of a weight */
	__u64 share_at;
	__u32 parent; /* number of the one above it; 0 = the root, which is not counted */
	__u32 life;   /* odd: in use; each use has another number */
	__u64 pad[2];
};
_Static_assert(sizeof(struct cgroup_node) == 64, "a cache line");

struct cgroup_node cgroup_nodes[CGROUP_NODES] __attribute__((aligned(64)));

/* What is kept with the kernel's own. */
struct cgroup_ctx {
	__u32 node; /* where its tasks are counted: its own node, or that of the nearest ancestor that has one */
	__u32 own;  /* 1: its own */
	/* Of cgroup_limit.bpf.h: the group's own limit, and the nearest that it is under, itself or above, ... */
	__u32 limit;
	__u32 nearest;
	__u32 limit_epoch; /* ... as of this epoch */
	__u32 pad;
};

/* What a task keeps of its group; all zero at first. */
struct cgroup_member {
	__u64 active; /* the weight that a group counts it with; 0: none does */
	__u32 joined; /* ... and that group's node ... */
	__u32 life;   /* ... in that use of it */
	__u32 node;   /* of the group that it is in */
	__u32 known;  /* 1: `node` is that */
};

struct {
	__uint(type, BPF_MAP_TYPE_CGRP_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct cgroup_ctx);
} sched_cgroups SEC(".maps");

static __always_inline struct cgroup_node *cgroup__node(__u32 node)
{
	return &cgroup_nodes[node & (CGROUP_NODES - 1)];
}

/* Adds to a group's sum and, when the group wakes up or falls asleep with it, the group's weight to its parent's. */
static void cgroup__add(__u32 node, __s64 delta)
{
	int i;

	for (i = 0; i < CGROUP_DEPTH && node; i++) {
		struct cgroup_node *n = cgroup__node(node);
		__s64 before = __sync_fetch_and_add(&n->active, delta);

		if (before <= 0 && before + delta > 0)
			delta = n->counted = n->weight;
		else if (before > 0 && before + delta <= 0)
			delta = -n->counted;
		else
			break;
		node = n->parent;
	}
}

/* A group's share of the machine. A function of its own for the verifier. */
__noinline __u64 cgroup__share(__u32 node, __u64 now)
{
	struct cgroup_node *leaf = cgroup__node(node);
	__u32 path[CGROUP_DEPTH] = {};
	__u64 share = 0, active = 0;
	int i;

	if (leaf->share && now - leaf->share_at < CGROUP_STALE_NS)
		return leaf->share;
	for (i = CGROUP_DEPTH - 1; i >= 0 && node; i--) {
		path[i] = node;
		node = cgroup__node(node)->parent;
	}
	for (i = 0; i < CGROUP_DEPTH; i++) {
		struct cgroup_node *n = cgroup__node(path[i]);

		if (!path[i])
			continue;
		share = share ? entrain_share(share, n->weight, active) : n->weight << ENTRAIN_SHARE_SHIFT;
		active = n->active > 0 ? n->active : 0;
	}
	leaf->share = share;
	leaf->share_at = now;
	return share;
}

/* The node of the group that a task is in; 0 = the root. Only from operations on this task. */
static __always_inline __u32 task__node(struct task_struct *p, struct cgroup_member *t)
{
	struct cgroup_ctx *ctx;
	struct cgroup *cgrp;

	if (t->known)
		return t->node;
	cgrp = scx_bpf_task_cgroup(p);
	ctx = cgrp->level > 0 ? bpf_cgrp_storage_get(&sched_cgroups, cgrp, 0, 0) : NULL;
	t->node = ctx ? ctx->node : 0;
	t->known = 1;
	bpf_cgroup_release(cgrp);
	return t->node;
}

/* ops.cgroup_move: the task is in another group from now on. It has left the one that counted it. */
static __always_inline void cgroup__moved(struct cgroup_member *t)
{
	t->known = 0;
}

/* What a task is charged by, in 1/1024 of a weight. */
static __u64 task__share(struct task_struct *p, struct cgroup_member *t, __u64 now)
{
	__u64 weight = entrain_weight_clamp(p->scx.weight), group;
	__u32 node = task__node(p, t);
	struct cgroup_node *n = cgroup__node(node);

	if (!node)
		return weight << ENTRAIN_SHARE_SHIFT;
	group = cgroup__share(node, now);
	return entrain_share(group, weight, n->active > 0 ? n->active : 0);
}

/* The task becomes runnable. */
static void cgroup__join(struct task_struct *p, struct cgroup_member *t)
{
	__u32 node;

	if (t->active)
		return;
	node = task__node(p, t);
	if (!node)
		return;
	t->active = entrain_weight_clamp(p->scx.weight);
	t->joined = node;
	t->life = cgroup__node(node)->life;
	cgroup__add(node, t->active);
}

/* It is runnable no more. A group that it outlives, as a task that ends may, does not count it any longer. */
static void cgroup__leave(struct cgroup_member *t)
{
	if (t->active && cgroup__node(t->joined)->life == t->life)
		cgroup__add(t->joined, -(__s64)t->active);
	t->active = 0;
}

/* A free node, below `parent`. Returns 0 where there is none left. */
__noinline __u32 cgroup__take_node(__u32 parent, __u64 weight)
{
	__u32 i;

	bpf_for (i, 1, CGROUP_NODES) {
		struct cgroup_node *n = cgroup__node(i);
		__u32 life = n->life;

		if (life & 1 || __sync_val_compare_and_swap(&n->life, life, life + 1) != life)
			continue;
		n->active = n->counted = 0;
		n->share = n->share_at = 0;
		n->weight = entrain_weight_clamp(weight);
		n->parent = parent;
		return i;
	}
	return 0;
}

/* ops.cgroup_init, of parents before their children. Returns 0 or a negative error number. */
static __s32 cgroup__enter(struct cgroup *cgrp, __u64 weight)
{
	struct cgroup_ctx *ctx = bpf_cgrp_storage_get(&sched_cgroups, cgrp, 0, BPF_LOCAL_STORAGE_GET_F_CREATE), *above;
	struct cgroup *parent;
	__u32 node = 0;

	if (!ctx)
		return -12 /* ENOMEM */;
	/* Nobody is counted yet: it may hold what an earlier attachment of the scheduler left. */
	__builtin_memset(ctx, 0, sizeof(*ctx));
	if (cgrp->level < 1)
		return 0;
	parent = bpf_cgroup_ancestor(cgrp, cgrp->level - 1);
	if (parent) {
		above = bpf_cgrp_storage_get(&sched_cgroups, parent, 0, 0);
		node = above ? above->node : 0;
		bpf_cgroup_release(parent);
	}
	ctx->node = cgrp->level <= CGROUP_DEPTH ? cgroup__take_node(node, weight) : 0;
	ctx->own = ctx->node != 0;
	if (!ctx->own)
		ctx->node = node;
	return 0;
}

/* ops.cgroup_exit: its tasks have gone. */
static void cgroup__end(struct cgroup *cgrp)
{
	struct cgroup_ctx *ctx = bpf_cgrp_storage_get(&sched_cgroups, cgrp, 0, 0);

	if (!ctx || !ctx->own)
		return;
	ctx->own = 0;
	__sync_fetch_and_add(&cgroup__node(ctx->node)->life, 1);
}

/* ops.cgroup_set_weight. A group that is awake is counted by its parent: with the new weight from now on. */
static void cgroup__reweigh(struct cgroup *cgrp, __u64 weight)
{
	struct cgroup_ctx *ctx = bpf_cgrp_storage_get(&sched_cgroups, cgrp, 0, 0);
	struct cgroup_node *n;
	__s64 more;

	if (!ctx || !ctx->own)
		return;
	n = cgroup__node(ctx->node);
	n->weight = entrain_weight_clamp(weight);
	n->share = 0;
	if (n->active <= 0 || !n->parent)
		return;
	more = (__s64)n->weight - n->counted;
	n->counted += more;
	__sync_fetch_and_add(&cgroup__node(n->parent)->active, more);
}

#endif /* ENTRAIN_CGROUP_SHARE_BPF_H */
