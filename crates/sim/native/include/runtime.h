/* SPDX-License-Identifier: GPL-2.0-only */
/* The tasks, cgroups and timers that an object's maps hang on, and what the kernel calls in an object. */
#ifndef ENTRAIN_SIM_RUNTIME_H
#define ENTRAIN_SIM_RUNTIME_H

#include <stddef.h>
#include "scx.h"
#include "memory.h"

#define SIM_STORAGES 8

/* A task as the object sees it, and what its storage maps keep of it. */
struct sim_task {
	__u64 id;
	void *storage[SIM_STORAGES];
	struct task_struct task;
};

struct sim_cgroup {
	struct cgroup cgroup;
	struct kernfs_node kn;
	struct sim_cgroup *parent;
	void *storage[SIM_STORAGES];
};

struct sim_timer {
	int (*callback)(void *map, void *key, void *value);
	void *map;
	void *value;
	__u32 key;
	__u32 id;
};

/* Set by the simulated kernel; see sim.h. */
struct sim_context sim = {.abi = SIM_ABI};

/* Counts the call and goes to the kernel. */
#define SIM_CALL(f, args...) (sim_gap(), sim.done.helpers++, sim.calls->f(sim.machine, ##args))

static struct sim_timer **sim_timers;
static struct sim_cgroup **sim_cgroups;
static __u32 sim_nr_timers, sim_nr_cgroups, sim_nr_storages;

static inline struct sim_task *sim_task_of(const struct task_struct *p)
{
	return (struct sim_task *)((char *)p - offsetof(struct sim_task, task));
}

static inline __u64 sim_id(const struct task_struct *p)
{
	return p ? sim_task_of(p)->id : ~0ULL;
}

void sim_task_new(const struct sim_task_args *args, struct sim_task_fields *out)
{
	struct sim_task *t = sim_alloc(sizeof(*t));
	struct task_struct *p = &t->task;

	t->id = args->id;
	p->pid = args->pid;
	p->tgid = args->tgid;
	p->prio = args->prio;
	p->flags = args->flags;
	p->nr_cpus_allowed = args->nr_cpus_allowed;
	p->cpus_ptr = args->allowed;
	p->scx.tid = args->id + 1;
	p->scx.weight = 100;
	if (args->kvm_vcpu)
		p->preempt_notifiers.first = &((struct kvm_vcpu *)args->kvm_vcpu)->preempt_notifier.link;
	out->task = p;
	out->slice = &p->scx.slice;
	out->vtime = &p->scx.dsq_vtime;
	out->tid = &p->scx.tid;
	out->flags = &p->scx.flags;
	out->weight = &p->scx.weight;
	out->sum_exec = &p->se.sum_exec_runtime;
	out->nvcsw = &p->nvcsw;
	out->preempt_count = &p->thread_info.preempt_count;
}

/* The affinity changes: `allowed` itself is the kernel's. */
void sim_task_allow(struct task_struct *p, __s32 nr_cpus_allowed)
{
	p->nr_cpus_allowed = nr_cpus_allowed;
}

/* A cgroup at the next free number; number 0 is the root. The task's group is looked up by number. */
struct cgroup *sim_cgroup_new(__s32 parent)
{
	struct sim_cgroup *c = sim_alloc(sizeof(*c));

	c->parent = parent >= 0 ? sim_cgroups[parent] : NULL;
	c->cgroup.kn = &c->kn;
	c->cgroup.level = c->parent ? c->parent->cgroup.level + 1 : 0;
	c->kn.id = sim_nr_cgroups + 1;
	sim_cgroups = sim_grow(sim_cgroups, sim_nr_cgroups);
	sim_cgroups[sim_nr_cgroups++] = c;
	return &c->cgroup;
}

static void sim_ops_fill(const struct sched_ext_ops *ops, struct sim_ops *out)
{
	out->select_cpu = ops->select_cpu;
	out->enqueue = ops->enqueue;
	out->dequeue = ops->dequeue;
	out->dispatch = ops->dispatch;
	out->tick = ops->tick;
	out->runnable = ops->runnable;
	out->running = ops->running;
	out->stopping = ops->stopping;
	out->quiescent = ops->quiescent;
	out->yield = ops->yield;
	out->set_weight = ops->set_weight;
	out->set_cpumask = ops->set_cpumask;
	out->update_idle = ops->update_idle;
	out->cpu_online = ops->cpu_online;
	out->cpu_offline = ops->cpu_offline;
	out->enable = ops->enable;
	out->cgroup_set_weight = ops->cgroup_set_weight;
	out->cgroup_exit = ops->cgroup_exit;
	out->cgroup_move = ops->cgroup_move;
	out->cgroup_set_bandwidth = ops->cgroup_set_bandwidth;
	out->init = ops->init;
	out->flags = ops->flags;
	out->timeout_ms = ops->timeout_ms;
}

static __s32 sim_init_task_by(const struct sched_ext_ops *ops, struct task_struct *p)
{
	return ops->init_task ? ops->init_task(p, NULL) : 0;
}

static __s32 sim_cgroup_init_by(const struct sched_ext_ops *ops, struct cgroup *c, __u32 weight, __u64 period_us,
				__u64 quota_us, __u64 burst_us)
{
	struct scx_cgroup_init_args args = {
		.weight = weight,
		.bw_period_us = period_us,
		.bw_quota_us = quota_us,
		.bw_burst_us = burst_us,
	};

	return ops->cgroup_init ? ops->cgroup_init(c, &args) : 0;
}

static void sim_exit_task_by(const struct sched_ext_ops *ops, struct task_struct *p)
{
	if (ops->exit_task)
		ops->exit_task(p, NULL);
}

/* The operations of the scheduler that is chosen, and those whose arguments the kernel would have to know the layout
 * of. */
static const struct sched_ext_ops *sim_chosen;

/* An object holds one or more schedulers; 0 is Entrain's. */
static const struct sched_ext_ops *sim_scheduler(__u32 number);

void sim_ops(__u32 scheduler, struct sim_ops *out)
{
	sim_chosen = sim_scheduler(scheduler);
	sim_ops_fill(sim_chosen, out);
}

__s32 sim_init_task(struct task_struct *p)
{
	return sim_init_task_by(sim_chosen, p);
}

void sim_exit_task(struct task_struct *p)
{
	sim_exit_task_by(sim_chosen, p);
}

__s32 sim_cgroup_init(struct cgroup *c, __u32 weight, __u64 period_us, __u64 quota_us, __u64 burst_us)
{
	return sim_cgroup_init_by(sim_chosen, c, weight, period_us, quota_us, burst_us);
}

void sim_exit(void)
{
	struct scx_exit_info info = {};

	if (sim_chosen->exit)
		sim_chosen->exit(&info);
}

/* A timer is due. */
void sim_timer_fire(__u32 id)
{
	struct sim_timer *t = sim_timers[id];
	__u32 key = t->key;

	t->callback(t->map, &key, t->value);
}

#endif /* ENTRAIN_SIM_RUNTIME_H */
