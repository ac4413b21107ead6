/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The host's side of a page: the only code that writes to a guest's memory, in normal service.
 *
 * It is compiled three times: into the host's BPF programs (crates/host/src/bpf/channel.bpf.h), natively, with an
 * address sanitizer and a thread sanitizer in tests and as a stand-in for the kernel in the fuzz targets, and for the
 * model check, which puts accesses of its own in the place of the macros below and runs this code through every order
 * of events (crates/channel-native).
 *
 * Writers, and what keeps two of them from one word:
 *  - the daemon steps the link and closes (entrain_host_step): one thread;
 *  - the tick looks whether the pairing stands and writes the slow line: one call at a time, from whichever thread;
 *  - a switch or a wake-up of the vCPU writes its state (entrain_host_put_state): under the lock of its run queue;
 *  - idle transitions of any pCPU, switches and the tick write the instant word: they take turns by `instant_busy`;
 *  - changes of a pCPU's frequency, switches and the tick write capacity and level: they take turns by `level_busy`.
 * A compare-and-swap from the mirror keeps all of them off memory that the guest took back (entrain.h).
 */
#ifndef ENTRAIN_HOST_H
#define ENTRAIN_HOST_H

#include "entrain.h"

#define ENTRAIN_INLINE static inline __attribute__((always_inline))

/*
 * Accesses to memory that others write at the same time. SWAP and EXCHANGE are full barriers in BPF and here. OWN is
 * for words that the rules above give one writer at a time: a plain access, so that a sanitizer sees where they fail.
 */
#ifndef ENTRAIN_LOAD
#ifdef __bpf__
#define ENTRAIN_LOAD(at)	    (*(const volatile __typeof__(*(at)) *)(at))
#define ENTRAIN_STORE(at, value)    (*(volatile __typeof__(*(at)) *)(at) = (value))
#define ENTRAIN_EXCHANGE(at, value) __sync_lock_test_and_set(at, value)
#else
#define ENTRAIN_LOAD(at)	    __atomic_load_n(at, __ATOMIC_RELAXED)
#define ENTRAIN_STORE(at, value)    __atomic_store_n(at, value, __ATOMIC_RELAXED)
#define ENTRAIN_EXCHANGE(at, value) __atomic_exchange_n(at, value, __ATOMIC_SEQ_CST)
#endif
#define ENTRAIN_SWAP(at, from, to)   __sync_val_compare_and_swap(at, from, to)
#define ENTRAIN_OWN_LOAD(at)	     (*(at))
#define ENTRAIN_OWN_STORE(at, value) (*(at) = (value))
#endif

/* Whether a pairing is open, and if not, why: one word, so that whoever sees that it has ended sees the reason. */
enum entrain_closed {
	ENTRAIN_OPEN = 0,
	ENTRAIN_CLOSED = 1,	 /* by the daemon, or not open yet */
	ENTRAIN_GONE_WORD = 2,	 /* ended by itself: a host word was not what the host had written */
	ENTRAIN_GONE_HEADER = 3, /* magic, cookie or boot id changed */
	ENTRAIN_GONE_LINK = 4,	 /* the link word is no longer "paired" with our generation */
};

/*
 * What the tick tells the daemon: why, and which generation's pairing. A writer that is late ends its own pairing
 * alone: the entry of its vCPU may belong to the next one by then.
 */
#define ENTRAIN_GONE(generation, why) ((entrain_u64)(generation) << 32 | (why))

/* The host's memory of one pairing. It is closed from the start until the offer has been accepted. */
struct entrain_side {
	entrain_u64 seed;
	entrain_u64 cookie;
	entrain_u64 boot_id;
	entrain_u64 gpa;
	entrain_u64 epoch; /* host clock, ns: times in the page count from there, so that they don't tell its uptime */
	entrain_u32 generation;
	entrain_u32 closed;	  /* enum entrain_closed; unless it is open nothing is written any more */
	entrain_u32 instant_busy; /* somebody writes the instant word */
	entrain_u32 level_busy;	  /* somebody writes capacity and level */
	/* What the page holds, word by word; the seed at first. */
	entrain_u64 slow[8];
	entrain_u64 fast[8];
};

/* A moment of the host's clock as the page has it; 0 for whatever was before the pairing. */
ENTRAIN_INLINE entrain_u64 entrain_host_time(const struct entrain_side *side, entrain_u64 ns)
{
	return ns > side->epoch ? (ns - side->epoch) >> ENTRAIN_TIME_SHIFT : 0;
}

ENTRAIN_INLINE int entrain_host_is_closed(const struct entrain_side *side)
{
	return ENTRAIN_LOAD(&side->closed) != ENTRAIN_OPEN;
}

/* Ends a pairing from inside: nothing is written from here on, and the next tick tells the daemon. */
ENTRAIN_INLINE void entrain_host_end(struct entrain_side *side, entrain_u32 why)
{
	ENTRAIN_STORE(&side->closed, why);
}

/* What is to be told of a pairing: 0 while it stands, or when the daemon itself has closed it. */
ENTRAIN_INLINE entrain_u64 entrain_host_gone(const struct entrain_side *side)
{
	entrain_u32 why = ENTRAIN_LOAD(&side->closed);

	return why > ENTRAIN_CLOSED ? ENTRAIN_GONE(side->generation, why) : 0;
}

/*
 * Publishes a host word: the one way in which the host writes to a page. `mirror` is the host's own memory of what the
 * word holds. Returns 0 when the guest has taken the page back: nothing was written, and the pairing has ended.
 */
ENTRAIN_INLINE int entrain_host_put(struct entrain_side *side, entrain_u64 *word, entrain_u64 *mirror,
				    entrain_u64 value)
{
	entrain_u64 old = ENTRAIN_OWN_LOAD(mirror), new = ENTRAIN_WORD(side->seed, value);

	if (old == new)
		return 1;
	if (ENTRAIN_SWAP(word, old, new) != old) {
		entrain_host_end(side, ENTRAIN_GONE_WORD);
		return 0;
	}
	ENTRAIN_OWN_STORE(mirror, new);
	return 1;
}

#define ENTRAIN_HOST_PUT(side, page, line, field, value)                                                               \
	entrain_host_put(side, &(page)->host_##line.field,                                                             \
			 &(side)->line[__builtin_offsetof(struct entrain_host_##line, field) / 8], value)

/* The values of the words that go with a vCPU's state. */
struct entrain_told {
	entrain_u64 since; /* host clock, ns */
	entrain_u64 steal;
	entrain_u64 preemptions;
	entrain_u64 preemptions_cs;
	entrain_u64 boosts;
	entrain_u64 state;
};

/* Publishes a vCPU's state with its counters; under the lock of its run queue. */
ENTRAIN_INLINE void entrain_host_put_state(struct entrain_side *side, struct entrain_page *page,
					   const struct entrain_told *told)
{
	if (!ENTRAIN_HOST_PUT(side, page, fast, since, entrain_host_time(side, told->since)) ||
	    !ENTRAIN_HOST_PUT(side, page, fast, steal, told->steal) ||
	    !ENTRAIN_HOST_PUT(side, page, fast, preemptions, told->preemptions) ||
	    !ENTRAIN_HOST_PUT(side, page, fast, preemptions_cs, told->preemptions_cs) ||
	    !ENTRAIN_HOST_PUT(side, page, fast, boosts, told->boosts))
		return;
	/* Last: whoever sees the new sequence number sees the words above. */
	ENTRAIN_HOST_PUT(side, page, fast, state, told->state);
}

/*
 * Writers of some words can meet: the first one in writes, the second leaves, and the first looks again. What slips
 * through is put right by the next tick, which writes these words as well. `races` counts those that left. Returns
 * whether the turn is the caller's, who then calls entrain_host_turn_ends().
 */
ENTRAIN_INLINE int entrain_host_takes_turn(const struct entrain_side *side, entrain_u32 *busy, entrain_u32 *races)
{
	if (ENTRAIN_SWAP(busy, 0, 1) != 0) {
		ENTRAIN_STORE(races, ENTRAIN_LOAD(races) + 1);
		return 0;
	}
	/* Whoever comes here looked at the pairing earlier; a word before this one may have ended it. */
	if (!entrain_host_is_closed(side))
		return 1;
	ENTRAIN_EXCHANGE(busy, 0);
	return 0;
}

ENTRAIN_INLINE void entrain_host_turn_ends(entrain_u32 *busy)
{
	ENTRAIN_EXCHANGE(busy, 0);
}

/* Publishes `instant`, 0 where `withheld`. */
ENTRAIN_INLINE void entrain_host_put_instant(struct entrain_side *side, struct entrain_page *page,
					     const entrain_u32 *instant, const entrain_u32 *withheld,
					     entrain_u32 *races)
{
	entrain_u32 value;
	int i;

	for (i = 0; i < 2; i++) {
		if (!entrain_host_takes_turn(side, &side->instant_busy, races))
			return;
		value = ENTRAIN_LOAD(withheld) ? 0 : ENTRAIN_LOAD(instant);
		ENTRAIN_HOST_PUT(side, page, fast, instant, value ? ENTRAIN_INSTANT_NOW : 0);
		entrain_host_turn_ends(&side->instant_busy);
		if (ENTRAIN_LOAD(withheld) || ENTRAIN_LOAD(instant) == value)
			return;
	}
}

/* Publishes what the vCPU's pCPU can do, 0..1024 both: its capacity, and its level now. 0 where `withheld`. */
ENTRAIN_INLINE void entrain_host_put_level(struct entrain_side *side, struct entrain_page *page,
					   const entrain_u32 *capacity, const entrain_u32 *perf,
					   const entrain_u32 *withheld, entrain_u32 *races)
{
	entrain_u32 size, level;
	int i;

	for (i = 0; i < 2; i++) {
		if (!entrain_host_takes_turn(side, &side->level_busy, races))
			return;
		size = ENTRAIN_LOAD(withheld) ? 0 : ENTRAIN_LOAD(capacity);
		level = ENTRAIN_LOAD(withheld) ? 0 : ENTRAIN_LOAD(perf);
		if (ENTRAIN_HOST_PUT(side, page, slow, capacity, size))
			ENTRAIN_HOST_PUT(side, page, slow, perf, level);
		entrain_host_turn_ends(&side->level_busy);
		if (ENTRAIN_LOAD(withheld) || (ENTRAIN_LOAD(capacity) == size && ENTRAIN_LOAD(perf) == level))
			return;
	}
}

/* What a tick publishes beside these. The entitlement: 0 where it is not known, or withheld. */
struct entrain_beat {
	entrain_u64 now; /* host clock, ns */
	entrain_u64 entitlement;
	entrain_u64 features;
};

/* Publishes the slow line; in the tick, of a pairing that stands. */
ENTRAIN_INLINE void entrain_host_put_beat(struct entrain_side *side, struct entrain_page *page,
					  const struct entrain_beat *beat)
{
	if (!ENTRAIN_HOST_PUT(side, page, slow, entitlement, beat->entitlement) ||
	    !ENTRAIN_HOST_PUT(side, page, slow, version, ENTRAIN_VERSION) ||
	    !ENTRAIN_HOST_PUT(side, page, slow, features, beat->features))
		return;
	/* Last: a heartbeat says that the words above hold. */
	ENTRAIN_HOST_PUT(side, page, slow, heartbeat, entrain_host_time(side, beat->now));
}

/*
 * Whether the memory that is pinned is the page that was verified. The daemon has read it by another way, through the
 * VMM's mappings, which the VMM may have changed since; from here on no mapping counts any more.
 */
ENTRAIN_INLINE int entrain_host_is_verified(const struct entrain_side *side, const struct entrain_page *page)
{
	return ENTRAIN_LOAD(&page->header.magic[0]) == ENTRAIN_MAGIC0 &&
	       ENTRAIN_LOAD(&page->header.magic[1]) == ENTRAIN_MAGIC1 &&
	       ENTRAIN_LOAD(&page->header.version) == ENTRAIN_VERSION && ENTRAIN_LOAD(&page->header.gpa) == side->gpa &&
	       ENTRAIN_LOAD(&page->header.cookie) == side->cookie &&
	       ENTRAIN_LOAD(&page->header.boot_id) == side->boot_id && ENTRAIN_LOAD(&page->link.seed) == side->seed;
}

/* Whether the page still is what was paired; ends the pairing where it is not. `link`: the link word as it was. */
ENTRAIN_INLINE int entrain_host_stands(struct entrain_side *side, const struct entrain_page *page, entrain_u64 *link)
{
	*link = ENTRAIN_LOAD(&page->link.link);
	if (ENTRAIN_LOAD(&page->header.magic[0]) != ENTRAIN_MAGIC0 ||
	    ENTRAIN_LOAD(&page->header.magic[1]) != ENTRAIN_MAGIC1 ||
	    ENTRAIN_LOAD(&page->header.cookie) != side->cookie || ENTRAIN_LOAD(&page->header.boot_id) != side->boot_id)
		entrain_host_end(side, ENTRAIN_GONE_HEADER);
	else if (*link != ENTRAIN_LINK(side->generation, ENTRAIN_LINK_PAIRED))
		entrain_host_end(side, ENTRAIN_GONE_LINK);
	else
		return 1;
	return 0;
}

/* The steps that the daemon takes with the link word. */
enum entrain_link_op {
	ENTRAIN_LINK_OP_PAIR = 1,    /* exchange; on success publishing begins */
	ENTRAIN_LINK_OP_CLOSE = 2,   /* no exchange: publishing ends */
	ENTRAIN_LINK_OP_RELEASE = 3, /* exchange, after a close and a grace period */
};

/*
 * One step, on memory that stays pinned whatever the VMM does to its file. Returns 0 when the pinned memory is not the
 * page that was verified: nothing was written. `was`: what the word held; it was exchanged if that is `expected`.
 */
ENTRAIN_INLINE int entrain_host_step(struct entrain_side *side, struct entrain_page *page, entrain_u32 op,
				     entrain_u64 expected, entrain_u64 wanted, entrain_u64 *was)
{
	if (op == ENTRAIN_LINK_OP_CLOSE) {
		ENTRAIN_STORE(&side->closed, ENTRAIN_CLOSED);
		return 1;
	}
	if (op == ENTRAIN_LINK_OP_PAIR && !entrain_host_is_verified(side, page))
		return 0;
	*was = ENTRAIN_SWAP(&page->link.link, expected, wanted);
	/* All else of the pairing has been in place since before it could be found. */
	if (op == ENTRAIN_LINK_OP_PAIR && *was == expected)
		ENTRAIN_STORE(&side->closed, ENTRAIN_OPEN);
	return 1;
}

#endif /* ENTRAIN_HOST_H */
