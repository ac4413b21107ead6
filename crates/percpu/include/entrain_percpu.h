/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Per-CPU caches of pointers whose remote drain never interrupts an isolated CPU. Link with libentrain_percpu.a.
 *
 * All functions may be called from any thread. Which CPUs are isolated is said once, when a cache is made: there, owner
 * and drainer share a lock; on the others the owner works in a restartable sequence (rseq), and a drain may send an
 * IPI.
 */
#ifndef ENTRAIN_PERCPU_H
#define ENTRAIN_PERCPU_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

struct entrain_percpu;

/*
 * A cache of up to `capacity` objects per CPU. `isolated`: a list such as "2-3,6"; "" for none; NULL for those that
 * the kernel isolates (isolcpus=, nohz_full=). NULL is returned if it is no list.
 */
struct entrain_percpu *entrain_percpu_create(size_t capacity, const char *isolated);

/* Frees the cache, but not the objects in it: drain it before. Nobody may use it any more. */
void entrain_percpu_destroy(struct entrain_percpu *cache);

/* Puts an object (not NULL) into the cache of the current CPU. 1: done; 0: it is full. */
int entrain_percpu_push(const struct entrain_percpu *cache, void *object);

/* Takes the object that was put last into the cache of the current CPU. NULL: it is empty. */
void *entrain_percpu_pop(const struct entrain_percpu *cache);

/*
 * Empties a CPU's cache from anywhere and calls `object` (may be NULL) for each, after the cache is open again. Returns
 * how many there were; 0 also if there is no such CPU.
 */
size_t entrain_percpu_drain_on(const struct entrain_percpu *cache, size_t cpu,
			       void (*object)(void *object, void *context), void *context);

/* CPUs have numbers below this one. */
size_t entrain_percpu_cpus(void);

#ifdef __cplusplus
}
#endif

#endif
