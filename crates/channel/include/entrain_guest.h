/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The guest's side of the page for systems without BPF: RTOSes, bootloaders, unikernels. docs/rtos.md is the manual.
 *
 * Free-standing C11 for x86_64 and aarch64: no library, no allocation, no lock, no VM exit on any path but the
 *doorbell. Copy this file and entrain.h. A guest of one CPU needs five lines:
 *
 *	static struct entrain_page pages[1];
 *	static struct entrain_guest_cpu cpus[1];
 *	static struct entrain_guest guest = {.pages = pages, .cpus = cpus, .nr_vcpus = 1};
 *
 *	entrain_guest_init(&guest, (uintptr_t)pages, (uintptr_t)cpus, entropy);   once, before the others
 *	entrain_guest_tick(&guest, 0, now_ns);                                    from each CPU's clock interrupt
 *
 * and entrain_guest_enter() and entrain_guest_leave() around what nobody else can go on without: locks, interrupts off.
 *
 * Rules: both arrays are RAM that stays where it is, adjacent in guest-physical memory as in virtual. What takes the
 * number of a CPU is called on that CPU, with its interrupts masked or from one context only; enter and leave may nest,
 * and interrupt handlers may use them too.
 */
#ifndef ENTRAIN_GUEST_H
#define ENTRAIN_GUEST_H

#include "entrain.h"

/* One per CPU. The host reads `preempt` in place; the rest is the guest's own. */
struct entrain_guest_cpu {
	volatile entrain_u32 preempt; /* levels of critical sections, 0 to 255 */
	entrain_u32 generation;	      /* of the latest offer */
	entrain_u64 seed;	      /* of the latest offer */
	entrain_u64 beat_at;	      /* when the guest's heartbeat was raised, ns */
	entrain_u64 host_beat;	      /* the host's heartbeat ... */
	entrain_u64 host_at;	      /* ... and when it was last seen to change, ns */
	entrain_u64 unused[3];
};

_Static_assert(sizeof(struct entrain_guest_cpu) == ENTRAIN_LINE_SIZE, "CPUs share no cache line");

struct entrain_guest {
	struct entrain_page *pages;	/* nr_vcpus of them, aligned to pages */
	struct entrain_guest_cpu *cpus; /* as many, aligned to cache lines */
	entrain_u32 nr_vcpus;		/* 1 to ENTRAIN_MAX_VCPUS */
	entrain_u32 pad;
	/* Filled by entrain_guest_init(). */
	entrain_u64 pages_gpa, cpus_gpa, cookie, boot_id, random;
};

#define ENTRAIN_GUEST_STORE(word, value) __atomic_store_n(&(word), (value), __ATOMIC_RELEASE)
#define ENTRAIN_GUEST_LOAD(word)	 __atomic_load_n(&(word), __ATOMIC_ACQUIRE)

/* A critical section begins. Costs a load and a store; nothing that the section does may move before it. */
static inline void entrain_guest_enter(struct entrain_guest *guest, unsigned int cpu)
{
	guest->cpus[cpu].preempt++;
	__asm__ volatile("" ::: "memory");
}

/* It ends. */
static inline void entrain_guest_leave(struct entrain_guest *guest, unsigned int cpu)
{
	__asm__ volatile("" ::: "memory");
	guest->cpus[cpu].preempt--;
}

/*
 * What runs on this CPU: `prio` as Linux counts (0 to 99 real-time, 0 the highest; 100 to 139; 140 idle), `latency` 1
 * to 10,000 where it is latency-critical, else 0.
 */
static inline void entrain_guest_priority(struct entrain_guest *guest, unsigned int cpu, unsigned int prio,
					  unsigned int latency)
{
	ENTRAIN_GUEST_STORE(guest->pages[cpu].guest.prio, prio);
	ENTRAIN_GUEST_STORE(guest->pages[cpu].guest.latency, latency);
}

/* What is runnable on this CPU, and what of the biggest pCPU it needs, 0 to 1024; 1 and 1024 until it is told. */
static inline void entrain_guest_load(struct entrain_guest *guest, unsigned int cpu, unsigned int runnable,
				      unsigned int util)
{
	ENTRAIN_GUEST_STORE(guest->pages[cpu].guest.runnable, runnable);
	ENTRAIN_GUEST_STORE(guest->pages[cpu].guest.util, util);
}

/* A word that the host publishes to this CPU, as entrain_guest_read(&guest, 0, host_fast.steal); 0 without a host. */
#define entrain_guest_read(guest, cpu, word) entrain_read(&(guest)->pages[cpu].word, (guest)->cpus[cpu].seed)

/* KVM's vcpu_id of the CPU that this runs on, as the header has it. */
static inline entrain_u32 entrain_guest_hwid(void)
{
#if defined(__aarch64__)
	entrain_u64 mpidr;

	__asm__ volatile("mrs %0, mpidr_el1" : "=r"(mpidr));
	return (mpidr & 0xf) | (mpidr >> 8 & 0xff) << 4 | (mpidr >> 16 & 0xff) << 12;
#elif defined(__x86_64__)
	entrain_u32 a = 1, b, c = 0, d;

	__asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
	return b >> 24;
#else
	return ~0u;
#endif
}

/* SplitMix64: tells offers apart and keeps stray data from looking like a word; it is no secret. */
static inline entrain_u64 entrain_guest_random(struct entrain_guest *guest)
{
	entrain_u64 z = guest->random += 0x9e3779b97f4a7c15ULL;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ULL;
	z = (z ^ z >> 27) * 0x94d049bb133111ebULL;
	return z ^ z >> 31;
}

/* The 16 words that the host writes: lines 4 and 5. */
static inline void entrain_guest_fill(struct entrain_page *page, entrain_u64 word)
{
	entrain_u64 *slow = (entrain_u64 *)&page->host_slow, *fast = (entrain_u64 *)&page->host_fast;
	int i;

	for (i = 0; i < 8; i++) {
		ENTRAIN_GUEST_STORE(slow[i], word);
		ENTRAIN_GUEST_STORE(fast[i], word);
	}
}

static inline int entrain_guest_step(struct entrain_guest *guest, unsigned int cpu, entrain_u32 from, entrain_u32 to)
{
	entrain_u32 gen = guest->cpus[cpu].generation;

	return __sync_bool_compare_and_swap(&guest->pages[cpu].link.link, ENTRAIN_LINK(gen, from),
					    ENTRAIN_LINK(gen, to));
}

/* Offers this CPU's page, which is the guest's own. The link comes last: with it all of the page is complete. */
static inline void entrain_guest_offer(struct entrain_guest *guest, unsigned int cpu)
{
	struct entrain_guest_cpu *own = &guest->cpus[cpu];
	struct entrain_page *page = &guest->pages[cpu];
	struct entrain_header *h = &page->header;

	h->magic[0] = ENTRAIN_MAGIC0;
	h->magic[1] = ENTRAIN_MAGIC1;
	h->version = ENTRAIN_VERSION;
	h->nr_vcpus = guest->nr_vcpus;
	h->vcpu = cpu;
	h->vcpu_hwid = entrain_guest_hwid();
	h->cookie = guest->cookie;
	h->gpa = guest->pages_gpa + (entrain_u64)cpu * ENTRAIN_PAGE_SIZE;
	h->features = ENTRAIN_F_PREEMPT_COUNT | ENTRAIN_F_GUEST_WORDS;
	h->boot_id = guest->boot_id;
	h->preempt_layout = ENTRAIN_PREEMPT_PERCPU32;
	h->preempt_gpa = guest->cpus_gpa + (entrain_u64)cpu * sizeof(*own);
	own->seed = (entrain_guest_random(guest) + ((entrain_u64)cpu << 32)) | 1;
	own->host_beat = own->host_at = 0;
	own->generation++;
	page->link.seed = own->seed;
	entrain_guest_fill(page, own->seed);
	ENTRAIN_GUEST_STORE(page->link.link, ENTRAIN_LINK(own->generation, ENTRAIN_LINK_OFFERED));
}

/*
 * Once, on one CPU, before any other function: where the two arrays are in guest-physical memory, and something that
 * differs from boot to boot (a random number, the counter of time, a serial number). Returns 0, or -1 if the arrays are
 * not as they must be. What an earlier boot left in the pages may be anything.
 */
static inline int entrain_guest_init(struct entrain_guest *guest, entrain_u64 pages_gpa, entrain_u64 cpus_gpa,
				     entrain_u64 entropy)
{
	entrain_u32 cpu;

	if (!guest->nr_vcpus || guest->nr_vcpus > ENTRAIN_MAX_VCPUS || pages_gpa % ENTRAIN_PAGE_SIZE ||
	    (uintptr_t)guest->pages % ENTRAIN_PAGE_SIZE || cpus_gpa % ENTRAIN_LINE_SIZE)
		return -1;
	guest->pages_gpa = pages_gpa;
	guest->cpus_gpa = cpus_gpa;
	guest->random = entropy;
	guest->cookie = entrain_guest_random(guest) | 1;
	guest->boot_id = entrain_guest_random(guest);
	for (cpu = 0; cpu < guest->nr_vcpus; cpu++) {
		struct entrain_page *page = &guest->pages[cpu];
		entrain_u32 i;

		/* A host that is still paired with what lived here before finds its link gone, and lets go. */
		ENTRAIN_GUEST_STORE(page->link.link, 0);
		entrain_guest_fill(page, 0);
		guest->cpus[cpu] = (struct entrain_guest_cpu){.generation = (entrain_u32)entrain_guest_random(guest)};
		page->guest = (struct entrain_guest_words){
			.util = ENTRAIN_CAPACITY_SCALE, .runnable = 1, .prio = 120, .wants = guest->nr_vcpus};
		for (i = 0; i < guest->nr_vcpus; i++)
			page->directory[i] = cpu ? 0 : pages_gpa + (entrain_u64)i * ENTRAIN_PAGE_SIZE;
	}
	return 0;
}

#if defined(__x86_64__) && !defined(ENTRAIN_GUEST_NO_DOORBELL)
static inline entrain_u32 entrain_guest_cpuid(entrain_u32 leaf, entrain_u32 *b, entrain_u32 *c)
{
	entrain_u32 a = leaf, d;

	*c = 0;
	__asm__ volatile("cpuid" : "+a"(a), "=b"(*b), "+c"(*c), "=d"(d));
	return a;
}

#define ENTRAIN_GUEST_CALL(instruction, page, cookie)                                                                  \
	do {                                                                                                           \
		entrain_u64 nr = ENTRAIN_DOORBELL_NR;                                                                  \
                                                                                                                       \
		__asm__ volatile(instruction                                                                           \
				 : "+a"(nr)                                                                            \
				 : "b"((page)->header.gpa), "c"(cookie), "d"(ENTRAIN_MAGIC1),                          \
				   "S"((entrain_u64)ENTRAIN_VERSION)                                                   \
				 : "memory");                                                                          \
	} while (0)
#endif

/*
 * x86 under KVM: rings, so that the host need not search for the page; entrain_guest_tick() does so while the page is
 * on offer. It is an exit. arm64 has no doorbell for kernels: the host finds the page by itself within seconds.
 */
static inline void entrain_guest_ring(struct entrain_guest *guest, unsigned int cpu)
{
#if defined(__x86_64__) && !defined(ENTRAIN_GUEST_NO_DOORBELL)
	entrain_u32 b, c;

	entrain_guest_cpuid(1, &b, &c);
	if (!(c >> 31))
		return;
	entrain_guest_cpuid(0x40000000, &b, &c);
	if (b != 0x4b4d564b) /* "KVMK" */
		return;
	entrain_guest_cpuid(0, &b, &c);
	/* "AuthenticAMD" and "HygonGenuine" have an instruction of their own. */
	if (b == 0x68747541 || b == 0x6f677948)
		ENTRAIN_GUEST_CALL("vmmcall", &guest->pages[cpu], guest->cookie);
	else
		ENTRAIN_GUEST_CALL("vmcall", &guest->pages[cpu], guest->cookie);
#else
	(void)guest;
	(void)cpu;
#endif
}

/*
 * From each CPU's clock interrupt, at least every 500 ms; `now` is the guest's clock in ns, never 0. Offers the page at
 * first, and anew when a host has left or fell silent; keeps the heartbeat. Returns whether a host is paired.
 */
static inline int entrain_guest_tick(struct entrain_guest *guest, unsigned int cpu, entrain_u64 now)
{
	struct entrain_guest_cpu *own = &guest->cpus[cpu];
	struct entrain_page *page = &guest->pages[cpu];
	entrain_u64 link = ENTRAIN_GUEST_LOAD(page->link.link), beat;
	int due = now - own->beat_at >= ENTRAIN_GUEST_BEAT_NS || !own->beat_at;

	if (due) {
		own->beat_at = now;
		ENTRAIN_GUEST_STORE(page->guest.heartbeat, page->guest.heartbeat + 1);
	}
	if (link == ENTRAIN_LINK(own->generation, ENTRAIN_LINK_PAIRED)) {
		beat = entrain_guest_read(guest, cpu, host_slow.heartbeat);
		if (beat != own->host_beat || !own->host_at) {
			own->host_beat = beat;
			own->host_at = now;
		}
		if (entrain_fresh(now, own->host_at, ENTRAIN_HOST_EXPIRY_NS))
			return 1;
	} else if (link == ENTRAIN_LINK(own->generation, ENTRAIN_LINK_OFFERED)) {
		if (due)
			entrain_guest_ring(guest, cpu);
		return 0;
	}
	/* A fresh page, a host that left, one that fell silent, or a link that none of ours wrote: all are offered
	 * anew. */
	ENTRAIN_GUEST_STORE(page->link.link, ENTRAIN_LINK(own->generation, ENTRAIN_LINK_WITHDRAWN));
	entrain_guest_offer(guest, cpu);
	entrain_guest_ring(guest, cpu);
	return 0;
}

/*
 * Takes this CPU's page back: before another kernel is started, or the memory is used for something else. Returns
 * whether it is the guest's own and scrubbed; until then the host has still to answer, so call it again, for 3 s at
 * most; then with `force`, which is safe at any time. entrain_guest_tick() is not to be called any more.
 */
static inline int entrain_guest_take_back(struct entrain_guest *guest, unsigned int cpu, int force)
{
	struct entrain_page *page = &guest->pages[cpu];
	entrain_u64 releasing = ENTRAIN_LINK(guest->cpus[cpu].generation, ENTRAIN_LINK_RELEASING);

	if (!entrain_guest_step(guest, cpu, ENTRAIN_LINK_OFFERED, ENTRAIN_LINK_WITHDRAWN))
		entrain_guest_step(guest, cpu, ENTRAIN_LINK_PAIRED, ENTRAIN_LINK_RELEASING);
	if (!force && ENTRAIN_GUEST_LOAD(page->link.link) == releasing)
		return 0;
	ENTRAIN_GUEST_STORE(page->link.link, 0);
	page->link.seed = 0;
	entrain_guest_fill(page, 0);
	return 1;
}

#endif /* ENTRAIN_GUEST_H */
