/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The helpers and kernel functions that the schedulers call, each under its own name. What decides anything is in the
 * simulated kernel (src/kernel/); here are the arguments' way there, and what needs no kernel.
 */
#ifndef ENTRAIN_SIM_HELPERS_H
#define ENTRAIN_SIM_HELPERS_H

#include "cpumasks.h"
#include "idle.h"
#include "maps.h"

/* Plain loads and stores of shared memory, as far as the schedulers mark them. */
#undef READ_ONCE
#undef WRITE_ONCE
#define READ_ONCE(x)                                                                                                   \
	(*({                                                                                                           \
		sim_gap();                                                                                             \
		(const volatile typeof(x) *)&(x);                                                                      \
	}))
#define WRITE_ONCE(x, v)                                                                                               \
	(*({                                                                                                           \
		sim_gap();                                                                                             \
		(volatile typeof(x) *)&(x);                                                                            \
	}) = (v))

__s32 scx_bpf_create_dsq(__u64 dsq_id, __s32 node)
{
	return SIM_CALL(create_dsq, dsq_id, node);
}

void scx_bpf_dsq_insert(struct task_struct *p, __u64 dsq_id, __u64 slice, __u64 enq_flags)
{
	SIM_CALL(dsq_insert, sim_id(p), dsq_id, slice, 0, enq_flags, false);
}

bool __scx_bpf_dsq_insert_vtime(struct task_struct *p, struct scx_bpf_dsq_insert_vtime_args *args)
{
	SIM_CALL(dsq_insert, sim_id(p), args->dsq_id, args->slice, args->vtime, args->enq_flags, true);
	return true;
}

void scx_bpf_dsq_insert_vtime(struct task_struct *p, __u64 dsq_id, __u64 slice, __u64 vtime, __u64 enq_flags)
{
	SIM_CALL(dsq_insert, sim_id(p), dsq_id, slice, vtime, enq_flags, true);
}

bool scx_bpf_dsq_move_to_local(__u64 dsq_id)
{
	return SIM_CALL(dsq_move_to_local, dsq_id, 0);
}

bool scx_bpf_dsq_move_to_local___v2___compat(__u64 dsq_id, __u64 enq_flags)
{
	return SIM_CALL(dsq_move_to_local, dsq_id, enq_flags);
}

__s32 scx_bpf_dsq_nr_queued(__u64 dsq_id)
{
	return SIM_CALL(dsq_nr_queued, dsq_id);
}

struct task_struct *scx_bpf_dsq_peek(__u64 dsq_id)
{
	return SIM_CALL(dsq_peek, dsq_id);
}

int bpf_iter_scx_dsq_new(struct bpf_iter_scx_dsq *it, __u64 dsq_id, __u64 flags)
{
	return SIM_CALL(iter_new, it->opaque, dsq_id, flags);
}

struct task_struct *bpf_iter_scx_dsq_next(struct bpf_iter_scx_dsq *it)
{
	return SIM_CALL(iter_next, it->opaque);
}

void bpf_iter_scx_dsq_destroy(struct bpf_iter_scx_dsq *it)
{
	SIM_CALL(iter_destroy, it->opaque);
}

bool scx_bpf_dsq_move(struct bpf_iter_scx_dsq *it, struct task_struct *p, __u64 dsq_id, __u64 enq_flags)
{
	return SIM_CALL(dsq_move, it->opaque, sim_id(p), dsq_id, enq_flags, false);
}

void scx_bpf_dsq_move_set_vtime(struct bpf_iter_scx_dsq *it, __u64 vtime)
{
	sim.done.helpers++;
	it->opaque[4] = vtime;
}

/* As set before; what the scheduler has not set stays as it is, which none of ours relies on. */
bool scx_bpf_dsq_move_vtime(struct bpf_iter_scx_dsq *it, struct task_struct *p, __u64 dsq_id, __u64 enq_flags)
{
	return SIM_CALL(dsq_move, it->opaque, sim_id(p), dsq_id, enq_flags, true);
}

void scx_bpf_dsq_reenq(__u64 dsq_id, __u64 reenq_flags)
{
	SIM_CALL(dsq_reenq, dsq_id, reenq_flags);
}

struct task_struct *scx_bpf_tid_to_task(__u64 tid)
{
	return SIM_CALL(tid_to_task, tid);
}

bool scx_bpf_task_set_slice(struct task_struct *p, __u64 slice)
{
	return SIM_CALL(task_set_slice, sim_id(p), slice);
}

bool scx_bpf_task_set_dsq_vtime(struct task_struct *p, __u64 vtime)
{
	sim.done.helpers++;
	p->scx.dsq_vtime = vtime;
	return true;
}

void scx_bpf_kick_cpu(__s32 cpu, __u64 flags)
{
	SIM_CALL(kick_cpu, cpu, flags);
}

__s32 scx_bpf_task_cpu(const struct task_struct *p)
{
	return SIM_CALL(task_cpu, sim_id(p));
}

bool scx_bpf_task_running(const struct task_struct *p)
{
	return SIM_CALL(task_running, sim_id(p));
}

struct task_struct *scx_bpf_cpu_curr(__s32 cpu)
{
	return SIM_CALL(cpu_curr, cpu);
}

void scx_bpf_cpuperf_set(__s32 cpu, __u32 perf)
{
	SIM_CALL(cpuperf_set, cpu, perf);
}

/* All CPUs are alike and at their highest level. */
__u32 scx_bpf_cpuperf_cap(__s32 cpu)
{
	return 1024;
}

__u32 scx_bpf_cpuperf_cur(__s32 cpu)
{
	return 1024;
}

/* The run queue's clock: it stands still during an operation, and may after one (Cpu::frozen in src/kernel/mod.rs). */
__u64 scx_bpf_now(void)
{
	sim.done.helpers++;
	sim.frozen += sim.rq_clock != sim.now;
	return sim.rq_clock;
}

static inline __u64 bpf_ktime_get_ns(void)
{
	sim.done.helpers++;
	return sim.now;
}

void scx_bpf_exit_bstr(__s64 exit_code, char *fmt, unsigned long long *data, __u32 data_len)
{
	SIM_CALL(exit, exit_code, fmt, false);
}

void scx_bpf_error_bstr(char *fmt, unsigned long long *data, __u32 data_len)
{
	SIM_CALL(exit, 0, fmt, true);
}

/* Nobody reads a dump. */
void scx_bpf_dump_bstr(char *fmt, unsigned long long *data, __u32 data_len)
{
}

/* The task's group is what stands in a storage of the object's own: sim_task_group() puts it there. */
struct cgroup *scx_bpf_task_cgroup(struct task_struct *p)
{
	struct cgroup *group = sim_task_of(p)->storage[SIM_STORAGES - 1];

	sim.done.helpers++;
	/* scx_kf_arg_task_ok() of ext.c. */
	if (p != sim.subjects[0] && p != sim.subjects[1])
		sim.calls->exit(sim.machine, 0, "called on a task not being operated on", true);
	return group ? group : &sim_cgroups[0]->cgroup;
}

void sim_task_group(struct task_struct *p, struct cgroup *group)
{
	sim_task_of(p)->storage[SIM_STORAGES - 1] = group;
}

struct cgroup *bpf_cgroup_ancestor(struct cgroup *cgrp, int level)
{
	struct sim_cgroup *c = (struct sim_cgroup *)cgrp;

	sim.done.helpers++;
	if (level < 0 || level > cgrp->level)
		return NULL;
	while (c->cgroup.level > level)
		c = c->parent;
	return &c->cgroup;
}

struct cgroup *bpf_cgroup_from_id(__u64 cgid)
{
	sim.done.helpers++;
	return cgid && cgid <= sim_nr_cgroups ? &sim_cgroups[cgid - 1]->cgroup : NULL;
}

/* Groups live as long as the machine. */
void bpf_cgroup_release(struct cgroup *cgrp)
{
	sim.done.helpers++;
}

static inline __u64 bpf_get_current_pid_tgid(void)
{
	return (__u64)sim.current->tgid << 32 | (__u32)sim.current->pid;
}

struct task_struct *bpf_task_from_pid(int pid)
{
	return SIM_CALL(task_from_pid, pid);
}

/* Tasks live as long as the machine, and operations are not interrupted: there is nothing to hold. */
void bpf_task_release(struct task_struct *p)
{
}

void bpf_rcu_read_lock(void)
{
}

void bpf_rcu_read_unlock(void)
{
}

#define bpf_kptr_xchg(slot, value)                                                                                     \
	({                                                                                                             \
		typeof(*(slot)) ___old = *(slot);                                                                      \
		*(slot) = (value);                                                                                     \
		___old;                                                                                                \
	})

/* Probes of the kernel and of the VMM's memory, which is mapped where the guest's is. Address 0 faults. */
static inline long sim_probe_read(void *to, __u32 size, const void *from)
{
	sim.done.helpers++;
	if (!from) {
		memset(to, 0, size);
		return -14 /* EFAULT */;
	}
	memcpy(to, from, size);
	return 0;
}

#define bpf_probe_read_user(to, size, from)   sim_probe_read((to), (size), (from))
#define bpf_probe_read_kernel(to, size, from) sim_probe_read((to), (size), (from))

static inline long bpf_probe_read_kernel_str(void *to, __u32 size, const void *from)
{
	const char *text = from ? from : "";
	__u32 i;

	for (i = 0; i + 1 < size && text[i]; i++)
		((char *)to)[i] = text[i];
	if (size)
		((char *)to)[i] = 0;
	return i;
}

/* The daemon's ear: nobody listens. */
static char sim_ring[256] __attribute__((aligned(8)));

#define bpf_ringbuf_reserve(m, size, flags) ((void *)((size) <= sizeof(sim_ring) ? sim_ring : NULL))
#define bpf_ringbuf_submit(event, flags)    ((void)(event))

/* x86 keeps its preempt count there; a simulated machine's, of whatever architecture, is in thread_info. */
#define bpf_this_cpu_ptr(variable) (variable)

#endif /* ENTRAIN_SIM_HELPERS_H */
