/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * entrain_host.h under ThreadSanitizer: the writers of the host as threads of a process, and a guest that comes and
 * goes. The guest's words are atomic for whoever looks; what the host takes for its own (the mirrors) is plain memory,
 * and the sanitizer ends the process where two threads reach it without an order between them.
 *
 * Usage: writers SECONDS. Prints the numbers of pairings, of words that the guest read and of writers that met. With
 * NO_RUN_QUEUE or NO_TURNS defined one of the rules of the header is broken, which must be found.
 */
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifdef NO_TURNS
/* Whoever asks for the turn at a word gets it. */
#define ENTRAIN_LOAD(at)	    __atomic_load_n(at, __ATOMIC_RELAXED)
#define ENTRAIN_STORE(at, value)    __atomic_store_n(at, value, __ATOMIC_RELAXED)
#define ENTRAIN_EXCHANGE(at, value) __atomic_exchange_n(at, value, __ATOMIC_RELAXED)
#define ENTRAIN_SWAP(at, from, to)                                                                                     \
	(sizeof(*(at)) == 4 ? (__typeof__(*(at)))0 : (__typeof__(*(at)))__sync_val_compare_and_swap(at, from, to))
#define ENTRAIN_OWN_LOAD(at)	     (*(at))
#define ENTRAIN_OWN_STORE(at, value) (*(at) = (value))
#endif
#include "entrain_host.h"

#define WRITERS 7
#define PATTERN 0x5a5a5a5a5a5a0000ULL

static struct entrain_page page;
/* Two, used in turns: a writer that is late has the one before. */
static struct entrain_side sides[2];
static struct entrain_side *attached;
static entrain_u32 instant, capacity = 1024, perf, withheld, races;
static uint64_t told_gone, pairings, words, ends;
static int done, wanted_back;
__attribute__((unused)) static pthread_mutex_t run_queue = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t one_tick = PTHREAD_MUTEX_INITIALIZER;

/* Sections of readers: odd while one runs. What RCU is to the programs. */
static uint64_t sections[WRITERS];

static void section__enter(int writer)
{
	__atomic_fetch_add(&sections[writer], 1, __ATOMIC_SEQ_CST);
}

static void section__leave(int writer)
{
	__atomic_fetch_add(&sections[writer], 1, __ATOMIC_SEQ_CST);
}

static void grace_period(void)
{
	int i;

	for (i = 0; i < WRITERS; i++) {
		uint64_t then = __atomic_load_n(&sections[i], __ATOMIC_SEQ_CST);

		while (then % 2 && __atomic_load_n(&sections[i], __ATOMIC_SEQ_CST) == then)
			sched_yield();
	}
}

static struct entrain_side *found(void)
{
	return __atomic_load_n(&attached, __ATOMIC_ACQUIRE);
}

static void write__switch(uint64_t n)
{
	struct entrain_side *side = found();
	struct entrain_told told = {.since = n << ENTRAIN_TIME_SHIFT, .steal = n, .state = n};

	if (!side || entrain_host_is_closed(side))
		return;
#ifndef NO_RUN_QUEUE
	pthread_mutex_lock(&run_queue);
#endif
	entrain_host_put_state(side, &page, &told);
#ifndef NO_RUN_QUEUE
	pthread_mutex_unlock(&run_queue);
#endif
}

static void write__idle(uint64_t n)
{
	struct entrain_side *side = found();

	ENTRAIN_STORE(&instant, n % 2);
	if (side && !entrain_host_is_closed(side))
		entrain_host_put_instant(side, &page, &instant, &withheld, &races);
}

static void write__frequency(uint64_t n)
{
	struct entrain_side *side = found();

	ENTRAIN_STORE(&perf, n % 1024);
	if (side && !entrain_host_is_closed(side))
		entrain_host_put_level(side, &page, &capacity, &perf, &withheld, &races);
}

static void write__tick(uint64_t n)
{
	struct entrain_side *side = found();
	struct entrain_beat beat = {.now = n << ENTRAIN_TIME_SHIFT, .entitlement = n % 1024};
	uint64_t link;

	pthread_mutex_lock(&one_tick);
	if (side) {
		int open = !entrain_host_is_closed(side) && entrain_host_stands(side, &page, &link);

		__atomic_store_n(&told_gone, entrain_host_gone(side), __ATOMIC_SEQ_CST);
		if (open) {
			entrain_host_put_instant(side, &page, &instant, &withheld, &races);
			entrain_host_put_level(side, &page, &capacity, &perf, &withheld, &races);
			entrain_host_put_beat(side, &page, &beat);
		}
	}
	pthread_mutex_unlock(&one_tick);
}

static void (*const programs[WRITERS])(uint64_t) = {write__switch,    write__switch,	write__idle, write__idle,
						    write__frequency, write__frequency, write__tick};

static void *writer(void *arg)
{
	int number = (int)(intptr_t)arg;
	uint64_t n;

	for (n = 1; !__atomic_load_n(&done, __ATOMIC_RELAXED); n++) {
		section__enter(number);
		programs[number](n);
		section__leave(number);
		if (n % 16 == 0)
			sched_yield();
	}
	return NULL;
}

/* The daemon: pairs with what is on offer, and lets go when it is asked, or of itself. */
static void *daemon_thread(void *arg)
{
	struct entrain_side *side = NULL;
	uint64_t n, was;

	(void)arg;
	for (n = 0; !__atomic_load_n(&done, __ATOMIC_RELAXED); n++) {
		uint64_t link = __atomic_load_n(&page.link.link, __ATOMIC_SEQ_CST);

		if (!side && ENTRAIN_LINK_STATE(link) == ENTRAIN_LINK_OFFERED) {
			struct entrain_side *next = &sides[n % 2];
			int i;

			/* The kernel frees it only when whoever has found it is done. */
			grace_period();
			memset(next, 0, sizeof(*next));
			next->seed = __atomic_load_n(&page.link.seed, __ATOMIC_SEQ_CST);
			next->cookie = __atomic_load_n(&page.header.cookie, __ATOMIC_SEQ_CST);
			next->boot_id = next->gpa = next->cookie;
			next->generation = ENTRAIN_LINK_GEN(link);
			next->closed = 1;
			for (i = 0; i < 8; i++)
				next->slow[i] = next->fast[i] = next->seed;
			__atomic_store_n(&attached, next, __ATOMIC_RELEASE);
			if (entrain_host_step(next, &page, ENTRAIN_LINK_OP_PAIR, link,
					      ENTRAIN_LINK(next->generation, ENTRAIN_LINK_PAIRED), &was) &&
			    was == link) {
				side = next;
				__atomic_fetch_add(&pairings, 1, __ATOMIC_RELAXED);
			} else {
				__atomic_store_n(&attached, (struct entrain_side *)NULL, __ATOMIC_RELEASE);
			}
		} else if (side && (__atomic_load_n(&told_gone, __ATOMIC_SEQ_CST) >> 32 == side->generation ||
				    __atomic_load_n(&wanted_back, __ATOMIC_SEQ_CST) || n % 64 == 0)) {
			uint64_t paired = ENTRAIN_LINK(side->generation, ENTRAIN_LINK_PAIRED);
			uint64_t asked = ENTRAIN_LINK(side->generation, ENTRAIN_LINK_RELEASING);
			uint64_t released = ENTRAIN_LINK(side->generation, ENTRAIN_LINK_RELEASED);

			entrain_host_step(side, &page, ENTRAIN_LINK_OP_CLOSE, 0, 0, &was);
			grace_period();
			if (!entrain_host_step(side, &page, ENTRAIN_LINK_OP_RELEASE, paired, released, &was) ||
			    was != paired)
				entrain_host_step(side, &page, ENTRAIN_LINK_OP_RELEASE, asked, released, &was);
			__atomic_store_n(&attached, (struct entrain_side *)NULL, __ATOMIC_RELEASE);
			side = NULL;
		}
		sched_yield();
	}
	return NULL;
}

static uint64_t *host_word(int i)
{
	return i < 8 ? &((uint64_t *)&page.host_slow)[i] : &((uint64_t *)&page.host_fast)[i - 8];
}

static void guest__fill(uint64_t value)
{
	int i;

	for (i = 0; i < 16; i++)
		__atomic_store_n(host_word(i), value, __ATOMIC_SEQ_CST);
}

/* Offers, reads for a while, takes the page back without a word, uses the memory, and looks whether it is as it was. */
static void guest(uint64_t n)
{
	uint64_t seed = n * 0x9e3779b97f4a7c15ULL | 1, link = ENTRAIN_LINK((uint32_t)n, ENTRAIN_LINK_OFFERED);
	int i, looks;

	__atomic_store_n(&page.header.magic[0], ENTRAIN_MAGIC0, __ATOMIC_SEQ_CST);
	__atomic_store_n(&page.header.magic[1], ENTRAIN_MAGIC1, __ATOMIC_SEQ_CST);
	__atomic_store_n(&page.header.version, ENTRAIN_VERSION, __ATOMIC_SEQ_CST);
	__atomic_store_n(&page.header.cookie, n, __ATOMIC_SEQ_CST);
	__atomic_store_n(&page.header.gpa, n, __ATOMIC_SEQ_CST);
	__atomic_store_n(&page.header.boot_id, n, __ATOMIC_SEQ_CST);
	__atomic_store_n(&page.link.seed, seed, __ATOMIC_SEQ_CST);
	guest__fill(seed);
	__atomic_store_n(&page.link.link, link, __ATOMIC_SEQ_CST);
	for (looks = 0; looks < 10000 && __atomic_load_n(&page.link.link, __ATOMIC_SEQ_CST) == link; looks++)
		sched_yield();
	for (looks = 0; looks < 64; looks++) {
		for (i = 0; i < 16; i++) {
			if (!ENTRAIN_WORD_VALID(seed, __atomic_load_n(host_word(i), __ATOMIC_SEQ_CST))) {
				fprintf(stderr, "a word of another pairing\n");
				exit(3);
			}
			words++;
		}
		if (looks % 16 == 0)
			sched_yield();
	}
	if (n % 4 == 0) {
		/* As it ought to be: asks, and waits for the answer. */
		__atomic_store_n(&wanted_back, 1, __ATOMIC_SEQ_CST);
		for (;;) {
			link = __atomic_load_n(&page.link.link, __ATOMIC_SEQ_CST);
			if (ENTRAIN_LINK_STATE(link) == ENTRAIN_LINK_RELEASED)
				break;
			if (ENTRAIN_LINK_STATE(link) == ENTRAIN_LINK_OFFERED &&
			    __sync_bool_compare_and_swap(&page.link.link, link,
							 ENTRAIN_LINK((uint32_t)n, ENTRAIN_LINK_WITHDRAWN)))
				break;
			sched_yield();
		}
		__atomic_store_n(&wanted_back, 0, __ATOMIC_SEQ_CST);
		ends++;
	}
	__atomic_store_n(&page.link.link, 0, __ATOMIC_SEQ_CST);
	guest__fill(PATTERN);
	for (looks = 0; looks < 50; looks++) {
		for (i = 0; i < 16; i++) {
			if (__atomic_load_n(host_word(i), __ATOMIC_SEQ_CST) != PATTERN) {
				fprintf(stderr, "the host wrote to memory that the guest took back\n");
				exit(4);
			}
		}
		if (looks % 16 == 0)
			sched_yield();
	}
}

int main(int argc, char **argv)
{
	time_t end = time(NULL) + (argc > 1 ? atoi(argv[1]) : 2);
	pthread_t threads[WRITERS + 1];
	uint64_t n;
	int i;

	for (i = 0; i < WRITERS; i++)
		pthread_create(&threads[i], NULL, writer, (void *)(intptr_t)i);
	pthread_create(&threads[WRITERS], NULL, daemon_thread, NULL);
	for (n = 1; time(NULL) < end; n++)
		guest(n);
	__atomic_store_n(&done, 1, __ATOMIC_RELAXED);
	for (i = 0; i <= WRITERS; i++)
		pthread_join(threads[i], NULL);
	printf("%llu %llu %llu %u\n", (unsigned long long)pairings, (unsigned long long)ends, (unsigned long long)words,
	       races);
	return 0;
}
