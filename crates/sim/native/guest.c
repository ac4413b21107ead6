// SPDX-License-Identifier: GPL-2.0-only
/* The guest's scheduler, and its agent's part of pairing as far as a simulated machine needs it. */
#include "helpers.h"

/* The kernel's account of each CPU; the simulated kernel writes the steal time at its ticks. */
__u64 sim_cpustat[4096][8];
#define bpf_per_cpu_ptr(variable, cpu) ((__u32)(cpu) < sim.nr_cpus ? (typeof(variable))sim_cpustat[(__u32)(cpu)] : NULL)

/*
 * Atomic operations on what CPUs share are counted apart. A vCPU's own memory may be written by others, too, but by
 * those who have to do with that vCPU.
 */
static void sim_atomic(const volatile void *at);
#undef __sync_fetch_and_add
#undef __sync_fetch_and_or
#undef __sync_fetch_and_and
#undef __sync_val_compare_and_swap
#undef __sync_lock_test_and_set
#define __sync_fetch_and_add(at, value)		  (sim_atomic(at), __sync_fetch_and_add((at), (value)))
#define __sync_fetch_and_or(at, value)		  (sim_atomic(at), __sync_fetch_and_or((at), (value)))
#define __sync_fetch_and_and(at, value)		  (sim_atomic(at), __sync_fetch_and_and((at), (value)))
#define __sync_val_compare_and_swap(at, old, new) (sim_atomic(at), __sync_val_compare_and_swap((at), (old), (new)))
#define __sync_lock_test_and_set(at, value)	  (sim_atomic(at), __sync_lock_test_and_set((at), (value)))

/* Tunables (const volatile) are set before a machine starts. */
#define const
#include "sched.bpf.c"
#undef const
#include "spins.bpf.c"

/* What the table has room for. */
__u32 sim_max_cpus = GUEST_MAX_CPUS;

static void sim_atomic(const volatile void *at)
{
	const char *byte = (const char *)at;

	sim_gap();
	sim.done.atomics++;
	if (byte < (const char *)vcpus || byte >= (const char *)vcpus + sizeof(vcpus))
		sim.done.shared++;
}

/* The last-level cache of a CPU. */
void sim_topology(__u32 cpu, __u32 llc)
{
	vcpus[cpu].llc = llc;
}

/* A scheduler that stands by keeps its maps, and begins anew by itself when it is attached again (lifecycle.bpf.h). */
void sim_forget(void)
{
}

void sim_forget_task(struct task_struct *p)
{
}

void sim_forget_group(struct cgroup *c)
{
}

/* By the loader, before it attaches: which vCPUs are there. */
void sim_online(__u32 cpu, bool online)
{
	vcpus[cpu].offline = !online;
}

/* The agent's pages: offered, all host words empty. The first call lays the map out. */
struct entrain_page *sim_page(__u32 cpu, __u64 seed)
{
	struct entrain_page *page;
	__u64 *word;

	if (cpu == 0)
		SIM_RESIZE(&entrain_pages, sim.nr_cpus);
	page = bpf_map_lookup_elem(&entrain_pages, &cpu);
	page->header.magic[0] = ENTRAIN_MAGIC0;
	page->header.magic[1] = ENTRAIN_MAGIC1;
	page->header.version = ENTRAIN_VERSION;
	page->header.nr_vcpus = sim.nr_cpus;
	page->header.vcpu = cpu;
	page->header.cookie = 1;
	page->header.boot_id = 1;
	page->header.features = ENTRAIN_F_PREEMPT_COUNT | ENTRAIN_F_GUEST_WORDS | ENTRAIN_F_SPINS;
	page->link.seed = seed;
	page->link.link = ENTRAIN_LINK(1, ENTRAIN_LINK_OFFERED);
	for (word = (__u64 *)&page->host_slow; word < (__u64 *)&page->selftest; word++)
		*word = seed;
	return page;
}

/*
 * A vCPU's task comes to the queue of a sleeping lock, behind a task of the CPU `last` - 1 (0: behind nobody), or
 * leaves it: by osq_lock() returning false, or by osq_unlock().
 */
void sim_spins(__u32 cpu, __u32 in, __u32 head, __u32 last)
{
	struct optimistic_spin_queue queue = {.tail.counter = last};

	sim.cpu = cpu;
	if (in)
		spin_begins(&queue);
	else if (head)
		spin_ends(&queue);
	else
		spin_is_left(&queue, 0);
}

/* It looks for the owner, which is on the CPU `owner`, or has done so; `waiter`: one that has slept. */
void sim_spins_on_owner(__u32 cpu, __u32 begins, __u32 owner, __u32 waiter)
{
	struct task_struct task = {.thread_info.cpu = owner};

	sim.cpu = cpu;
	if (begins)
		mutex_spin_begins(NULL, &task);
	else
		mutex_spin_ends(NULL, &task, NULL, waiter ? &task : NULL);
}

/* A guest that lies: whatever its own words of a page can hold. */
void sim_lie(__u32 cpu, __u64 seed)
{
	struct entrain_page *page = bpf_map_lookup_elem(&entrain_pages, &cpu);
	__u64 *word, kept;

	if (!page)
		return;
	kept = page->guest.heartbeat;
	for (word = (__u64 *)&page->guest; word < (__u64 *)&page->host_slow; word++) {
		seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
		/* Small numbers as often as large ones: most words count something small. */
		*word = seed & 1 ? seed : seed >> 58;
	}
	/* One that holds its breath is heard no more: it lies half of the time only. */
	if (seed & 2)
		page->guest.heartbeat = kept;
}

/* How far a task is ahead of the clock of the queue that it is measured by, for a trace. */
__s64 sim_ahead(struct task_struct *p, __u32 cpu)
{
	struct task_ctx *t = task__of(p);

	return t && !cpu_or_none__is_none(t->home) ? (__s64)(t->vtime - vcpu__of(cpu_or_none__cpu(t->home))->clock) : 0;
}

/* How often a vCPU was parked. */
__u64 sim_parks(void)
{
	__u64 parks = 0;
	__u32 cpu;

	for (cpu = 0; cpu < sim.nr_cpus; cpu++)
		parks += vcpus[cpu].stats.parks;
	return parks;
}

/* How many vCPUs are crowded, and nobody looks at them again. */
__u64 sim_forgotten(void)
{
	__u64 forgotten = 0;
	__u32 cpu;

	for (cpu = 0; cpu < sim.nr_cpus; cpu++)
		forgotten += vcpus[cpu].crowded && !vcpus[cpu].watched;
	return forgotten;
}

/* The agent's heartbeat. */
void sim_agent_beat(void)
{
	__u32 cpu;

	for (cpu = 0; cpu < sim.nr_cpus; cpu++) {
		struct entrain_page *page = bpf_map_lookup_elem(&entrain_pages, &cpu);

		page->guest.heartbeat++;
	}
}

#include "simple.h"

static const struct sched_ext_ops *sim_scheduler(__u32 number)
{
	return number ? &simple_ops : &guest_ops;
}
