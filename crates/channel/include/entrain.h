/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The page that a KVM host and its guest share: one per vCPU, the only contract between the two.
 *
 * The guest allocates it (an element of a BPF_F_MMAPABLE array map, so always a whole, aligned page of guest RAM); the
 * host maps the same memory. docs/abi.md is the normative description; crates/channel/src/page.rs is the Rust mirror,
 * and a test compares the two field by field.
 *
 * Rules of the layout
 *  - Little-endian. Every word is published by one aligned 64-bit store or one 64-bit compare-and-swap.
 *  - A 64-byte line has one writer; the `link` word alone is written by both, by compare-and-swap only.
 *  - Fields are never moved or re-used; new ones are taken from reserved space and announced by a feature bit.
 *
 * How the host stays off memory that the guest took back
 *  - Every offer has a random 64-bit seed, and every host word is stored xor-ed with it (ENTRAIN_WORD). Before the
 * offer the guest stores the seed itself in all of them: it reads as the value 0.
 *  - The host writes a word only by compare-and-swap from the very 64 bits that it knows to be there: the seed at
 * first, then what it wrote last, which it remembers on its own side (its mirror). Memory that the guest has scrubbed
 * or uses for something else does not hold that value, so the write does not happen, whatever the order of events: the
 * host can never destroy what somebody else has written.
 *  - One writer at a time for each host word: the host orders its own writers (entrain_host.h).
 *  - The guest scrubs a page (stores 0 to the link and to every host word) before it frees it.
 */
#ifndef ENTRAIN_H
#define ENTRAIN_H

#ifdef __bpf__
typedef __u64 entrain_u64;
typedef __u32 entrain_u32;
#else
#include <stdint.h>
typedef uint64_t entrain_u64;
typedef uint32_t entrain_u32;
#endif

#define ENTRAIN_PAGE_SIZE 4096
#define ENTRAIN_LINE_SIZE 64

/* "entrain\0", and a second word that is not text, so that 16 random-looking bytes must match. */
#define ENTRAIN_MAGIC0 0x006e696172746e65ULL
#define ENTRAIN_MAGIC1 0xb5e1f7a90c3d2864ULL

/* A change that an old peer can't ignore raises it; everything else is a feature bit. */
#define ENTRAIN_VERSION 1

/* vCPUs of one guest whose pages the directory of page 0 can name; bounds what the host pins for one guest. */
#define ENTRAIN_MAX_VCPUS 256

/*
 * Rings the doorbell. x86: the number of a hypercall; KVM does not know it and refuses it, after tracing it. arm64: x0
 * of a `wfe` from user mode, the arguments in x1 to x4; KVM traps and traces it. It is made on the vCPU that the page
 * belongs to. Arguments: a0 the GPA of the page, a1 the cookie, a2 ENTRAIN_MAGIC1, a3 ENTRAIN_VERSION. It is repeated
 * every second while a page is offered.
 */
#define ENTRAIN_DOORBELL_NR 0x656e7472ULL /* "entr" */

/* The agent in the guest raises guest.heartbeat with this period; one that stood still for the second has expired. */
#define ENTRAIN_GUEST_BEAT_NS	500000000ULL
#define ENTRAIN_GUEST_EXPIRY_NS 2000000000ULL
/* The same of the host and host_slow.heartbeat. Each side measures the other's silence with its own clock. */
#define ENTRAIN_HOST_BEAT_NS	100000000ULL
#define ENTRAIN_HOST_EXPIRY_NS	1000000000ULL
/* The host works out host_slow.entitlement so often while VMs compete, where that does not take it too long. */
#define ENTRAIN_ENTITLE_NS	20000000ULL

/* What a side can do; a side uses a feature only when both have set it. Unknown bits are ignored. */
enum entrain_feature {
	ENTRAIN_F_PREEMPT_COUNT = 1ULL << 0, /* guest: where its preempt count stands is registered */
	ENTRAIN_F_RQ_LOAD = 1ULL << 1,	     /* guest: where its run-queue load stands is registered */
	ENTRAIN_F_GUEST_WORDS = 1ULL << 2,   /* guest: a scheduler in the guest keeps the guest words current */
	ENTRAIN_F_VCPU_STATE = 1ULL << 3,    /* host: state, since and steal are current */
	ENTRAIN_F_INSTANT = 1ULL << 4,	     /* host: the instant bit is current */
	ENTRAIN_F_CAPACITY = 1ULL << 5,	     /* host: capacity and performance level are current */
	ENTRAIN_F_ENTITLEMENT = 1ULL << 6,   /* host: entitlement is current */
	ENTRAIN_F_HOST_SCHED = 1ULL << 7,    /* host: an Entrain scheduler acts on the guest words */
	ENTRAIN_F_SELFTEST = 1ULL << 8,	     /* both: started for the self-test, lines 6-8 are in use */
	ENTRAIN_F_SPINS = 1ULL << 9,	     /* guest: its agent keeps spins_for current */
};

/*
 * The state of the pairing, in bits 0-31 of `link`; bits 32-63 hold the generation, which the guest raises with every
 * offer, starting from a random number. crates/channel/src/protocol.rs is the state machine, and its test checks every
 * order of events.
 *
 *   none, released, withdrawn --guest--> offered (generation + 1, new seed)
 *   offered --host--> paired --guest--> releasing --host--> released
 *      |                 |                  \--guest, host silent--> withdrawn (after a scrub)
 *      |                 \--host, leaves--> released
 *      \--guest--> withdrawn
 */
enum entrain_link {
	ENTRAIN_LINK_NONE = 0,
	ENTRAIN_LINK_OFFERED = 1,   /* guest: the page is complete, a host may pair */
	ENTRAIN_LINK_PAIRED = 2,    /* host: publishes */
	ENTRAIN_LINK_RELEASING = 3, /* guest: wants the page back; the host stops and lets go of the memory */
	ENTRAIN_LINK_RELEASED = 4,  /* host: has let go */
	/* guest: took the page back: an offer that nobody had accepted, or the host was silent */
	ENTRAIN_LINK_WITHDRAWN = 5,
};
#define ENTRAIN_LINK(gen, state) (((entrain_u64)(gen) << 32) | (state))
#define ENTRAIN_LINK_STATE(word) ((entrain_u32)(word))
#define ENTRAIN_LINK_GEN(word)	 ((entrain_u32)((word) >> 32))

/*
 * How the guest kernel's preempt count is found and read. Bits 0-7 count preempt_disable levels, 8-15 softirq, in every
 * layout; "new" bits (since 7.x): hardirq-disable 16-23, hardirq 24-27, nmi 28-31; "old" bits: hardirq 16-19, nmi
 * 20-23.
 */
enum entrain_preempt_layout {
	ENTRAIN_PREEMPT_NONE = 0,
	ENTRAIN_PREEMPT_PERCPU32 = 1, /* x86: u32 per CPU at preempt_gpa, old bits, bit 31 = inverted need-resched */
	ENTRAIN_PREEMPT_PERCPU64 = 2, /* x86: u64 per CPU at preempt_gpa, new bits, bit 63 = inverted need-resched */
	ENTRAIN_PREEMPT_TASK32 = 3,   /* arm64: u32 in the running task's thread_info, old bits */
	ENTRAIN_PREEMPT_TASK64 = 4,   /* arm64: u32 in the running task's thread_info, new bits */
};

/* What the host knows of a vCPU; bits 0-3 of the value of host_fast.state. */
enum entrain_vcpu_state {
	ENTRAIN_VCPU_UNKNOWN = 0,
	ENTRAIN_VCPU_RUNNING = 1,   /* on a pCPU */
	ENTRAIN_VCPU_HALTED = 2,    /* blocked: in halt, or in the VMM waiting */
	ENTRAIN_VCPU_PREEMPTED = 3, /* runnable, waiting for a pCPU */
};

/*
 * A host word in memory is (value << 16) xor the seed of the pairing: 48 bits of value, and 16 bits that must come out
 * as 0. A word that does not is not this pairing's: it reads as the value 0.
 */
#define ENTRAIN_VALUE_SHIFT	       16
#define ENTRAIN_VALUE_MAX	       ((1ULL << 48) - 1)
#define ENTRAIN_WORD(seed, value)      (((entrain_u64)(value) << ENTRAIN_VALUE_SHIFT) ^ (seed))
#define ENTRAIN_WORD_VALID(seed, word) ((((entrain_u64)(word) ^ (seed)) & 0xffff) == 0)
#define ENTRAIN_VALUE(seed, word)                                                                                      \
	(ENTRAIN_WORD_VALID(seed, word) ? ((entrain_u64)(word) ^ (seed)) >> ENTRAIN_VALUE_SHIFT : 0)

/* Times in host words are in units of 1,024 ns: 48 bits last nine years. */
#define ENTRAIN_TIME_SHIFT 10

/* The value of host_fast.state. */
#define ENTRAIN_STATE(vcpu, flags, pcpu, seq)                                                                          \
	((entrain_u64)(vcpu) | (flags) | ((entrain_u64)(pcpu) & 0xffff) << 8 | ((entrain_u64)(seq) & 0xffffff) << 24)
#define ENTRAIN_STATE_VCPU(value) ((entrain_u32)((value) & 0xf))
#define ENTRAIN_STATE_IN_CS	  (1ULL << 5) /* was in a critical section when it was preempted */
#define ENTRAIN_STATE_EXTENDED	  (1ULL << 6) /* runs on an extended slice: yield soon */
#define ENTRAIN_STATE_PCPU(value) ((entrain_u32)(((value) >> 8) & 0xffff))    /* the pCPU it is on or was on last */
#define ENTRAIN_STATE_SEQ(value)  ((entrain_u32)(((value) >> 24) & 0xffffff)) /* counts the changes of state */

/* The value of host_fast.instant. */
#define ENTRAIN_INSTANT_NOW (1ULL << 0) /* if this vCPU were kicked now, it would run at once */

/* Capacity and performance level: as the kernel's capacity scale. */
#define ENTRAIN_CAPACITY_SCALE 1024

/* Lines 0-1, written by the guest before the offer and constant from then on (until the next generation). */
struct entrain_header {
	entrain_u64 magic[2];
	entrain_u32 version;  /* ENTRAIN_VERSION of the guest */
	entrain_u32 nr_vcpus; /* possible CPUs of the guest that have a page: 1..ENTRAIN_MAX_VCPUS */
	entrain_u32 vcpu;     /* the guest's number of this CPU: 0..nr_vcpus-1 */
	/* KVM's vcpu_id. x86: the initial APIC id; arm64: MPIDR's Aff0 (4 bits), Aff1 << 4, Aff2 << 12; ~0: unknown */
	entrain_u32 vcpu_hwid;
	entrain_u64 cookie;   /* random, the same in all pages of one registration, never 0 */
	entrain_u64 gpa;      /* of this page */
	entrain_u64 features; /* ENTRAIN_F_* of the guest */
	entrain_u64 boot_id;  /* first 8 bytes of the guest kernel's boot_id: changes with reboot and kexec */
	/* The guest kernel's own variables, read in place by the host, never written. */
	entrain_u32 preempt_layout; /* enum entrain_preempt_layout */
	entrain_u32 preempt_offset; /* TASK layouts: offset of the count in task_struct, bytes */
	entrain_u64 preempt_gpa;    /* PERCPU layouts: guest-physical address of the count */
	entrain_u64 linear_base;    /* TASK layouts: virtual address of the linear map's start ... */
	entrain_u64 linear_size;    /* ... its length in bytes ... */
	entrain_u64 linear_gpa;	    /* ... and the guest-physical address that it maps */
	entrain_u64 util_gpa;	    /* of the run queue's PELT utilisation (unsigned long, 0..1024 and a little over) */
	entrain_u64 nr_running_gpa; /* of the run queue's count of runnable tasks (unsigned int) */
	entrain_u64 reserved;
};

/* Line 2: the pairing. Both sides write `link`, by compare-and-swap only. */
struct entrain_link_line {
	entrain_u64 link; /* ENTRAIN_LINK(generation, enum entrain_link) */
	entrain_u64 seed; /* guest, before the offer: random, the low 16 bits not 0; of this page and generation */
	entrain_u64 reserved[6];
};

/* Line 3: guest -> host, plain words, kept current by a scheduler in the guest (ENTRAIN_F_GUEST_WORDS). */
struct entrain_guest_words {
	entrain_u64 util; /* utilisation of this CPU's run queue, 0..1024, of the biggest pCPU at its highest level */
	entrain_u64 runnable; /* tasks runnable on this CPU, the running one included */
	entrain_u64 prio;     /* what runs: kernel priority 0..139 (100 = RT lowest, 120 = nice 0); 140 = idle */
	entrain_u64 wants;    /* vCPUs that this guest could use now, 0..nr_vcpus; the same in all its pages */
	/* ENTRAIN_F_SPINS: 0, or 1 + the number of the vCPU that this one spins for; its own: for whom is not known */
	entrain_u64 spins_for;
	entrain_u64 latency;   /* nonzero: what runs or wakes is latency-critical; weight 1..10000 */
	entrain_u64 heartbeat; /* raised every ENTRAIN_GUEST_BEAT_NS while the guest's agent lives, in every mode */
	entrain_u64 reserved;
};

/* Line 4: host -> guest, changes seldom. Host words (ENTRAIN_WORD). */
struct entrain_host_slow {
	entrain_u64 features;  /* ENTRAIN_F_* of the host */
	entrain_u64 version;   /* ENTRAIN_VERSION of the host */
	entrain_u64 heartbeat; /* host clock from the registration on, time units; raised every ENTRAIN_HOST_BEAT_NS */
	entrain_u64 capacity;  /* of the pCPU, 0..1024 */
	entrain_u64 perf;      /* performance level of the pCPU now, 0..1024 */
	entrain_u64 entitlement; /* CPU time that the VM can have now, in 1/1024 pCPU */
	entrain_u64 reserved[2];
};

/* Line 5: host -> guest, changes with every switch of the vCPU. Host words (ENTRAIN_WORD). */
struct entrain_host_fast {
	entrain_u64 state;	    /* ENTRAIN_STATE_* */
	entrain_u64 since;	    /* the last change of state, time units of the same clock; 0: before it */
	entrain_u64 steal;	    /* time spent runnable but not running, since pairing, time units */
	entrain_u64 preemptions;    /* involuntary switch-outs since pairing */
	entrain_u64 preemptions_cs; /* those inside a critical section of the guest */
	entrain_u64 boosts;	    /* yields and extensions that were granted to it */
	entrain_u64 instant;	    /* ENTRAIN_INSTANT_*: a word of its own, as it is written when the pCPU goes idle */
	entrain_u64 reserved;
};

/*
 * Lines 6-8: the self-test of both sides (experiment `channel`), plain words, used only while both sides announce
 * ENTRAIN_F_SELFTEST. Both add to `shared` atomically, and each counts its own additions.
 */
struct entrain_selftest_shared {
	entrain_u64 shared;
	entrain_u64 reserved[7];
};

/* The guest raises its word by one when the host's equals it; the host copies the guest's word: one round trip. */
struct entrain_selftest_guest {
	entrain_u64 word;
	entrain_u64 added;
	/* 1 + the number of preempt_disable levels that this vCPU is known to be in; 0: not known */
	entrain_u64 levels;
	entrain_u64 reserved[5];
};

struct entrain_selftest_host {
	entrain_u64 word;
	entrain_u64 added;
	entrain_u64 samples; /* preempt counts read at an involuntary switch-out while `levels` was known ... */
	entrain_u64 matches; /* ... and those that agreed with it */
	entrain_u64 reserved[4];
};

struct entrain_page {
	struct entrain_header header;		      /* 0x000, 2 lines */
	struct entrain_link_line link;		      /* 0x080 */
	struct entrain_guest_words guest;	      /* 0x0c0 */
	struct entrain_host_slow host_slow;	      /* 0x100 */
	struct entrain_host_fast host_fast;	      /* 0x140 */
	struct entrain_selftest_shared selftest;      /* 0x180 */
	struct entrain_selftest_guest selftest_guest; /* 0x1c0 */
	struct entrain_selftest_host selftest_host;   /* 0x200 */
	entrain_u64 reserved[184];		      /* 0x240 */
	entrain_u64 directory[ENTRAIN_MAX_VCPUS];     /* 0x800: in the page of vCPU 0, the GPA of each vCPU's page */
};

_Static_assert(sizeof(struct entrain_header) == 2 * ENTRAIN_LINE_SIZE, "the header is two lines");
_Static_assert(sizeof(struct entrain_page) == ENTRAIN_PAGE_SIZE, "a page is a page");

/* Reads a host word: its value, 0 when this pairing's host has not written it. */
static inline entrain_u64 entrain_read(const volatile entrain_u64 *word, entrain_u64 seed)
{
	entrain_u64 now = *word;

	return ENTRAIN_VALUE(seed, now);
}

/*
 * Whether the other side is alive: `seen` is when its heartbeat was last seen to change, by the reader's own clock, in
 * ns; `expiry` is ENTRAIN_HOST_EXPIRY_NS or ENTRAIN_GUEST_EXPIRY_NS. 0 for `seen` means never.
 */
static inline int entrain_fresh(entrain_u64 now, entrain_u64 seen, entrain_u64 expiry)
{
	return seen != 0 && (now <= seen || now - seen < expiry);
}

#endif /* ENTRAIN_H */
