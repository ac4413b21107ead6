/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * BPF's maps, storages and timers. A map is the variable that the program declares; its first member, `type`, holds
 * the address of the map's memory from the first use on. Sizes are those of the declaration's types, worked out by the
 * compiler, so that a look-up in an array is a comparison and an addition.
 */
#ifndef ENTRAIN_SIM_MAPS_H
#define ENTRAIN_SIM_MAPS_H

#include "runtime.h"

/* Before the memory of a map's values. */
struct sim_map {
	__u32 entries;
	__u32 storage; /* which of a task's or cgroup's storages */
	/* Of a hash map: 1 << bits buckets, at least as many as entries. */
	__u32 bits, pad;
	struct sim_node **buckets;
};

/* One entry of a hash map. */
struct sim_node {
	struct sim_node *next;
	__u64 key[2]; /* of at most 16 bytes, the rest 0 */
	char value[] __attribute__((aligned(8)));
};

#define SIM_TYPE(m)    (sizeof(*(m)->type) / sizeof(int))
#define SIM_ENTRIES(m) (sizeof(*(m)->max_entries) / sizeof(int))
#define SIM_HASH(m)    (SIM_TYPE(m) == BPF_MAP_TYPE_HASH || SIM_TYPE(m) == BPF_MAP_TYPE_LRU_HASH)
#define SIM_PERCPU(m)  (SIM_TYPE(m) == BPF_MAP_TYPE_PERCPU_ARRAY || SIM_TYPE(m) == BPF_MAP_TYPE_PERCPU_HASH)

/* map_alloc() of arraymap.c and hashtab.c. */
static struct sim_map *sim_map_make(void **slot, __u32 entries, size_t bytes)
{
	struct sim_map *map = sim_alloc(sizeof(*map) + bytes);

	map->entries = entries;
	*slot = map;
	return map;
}

static inline __attribute__((always_inline)) void *sim_array_lookup(void **slot, const void *key, __u32 entries,
								    size_t size, int percpu)
{
	struct sim_map *map = *slot;
	__u32 index = *(const __u32 *)key;

	sim_gap();
	sim.done.lookups++;
	/* array_map_gen_lookup() of arraymap.c. */
	sim.done.inlined++;
	if (__builtin_expect(!map, 0))
		map = sim_map_make(slot, entries, (size_t)entries * size * (percpu ? sim.nr_cpus : 1));
	if (index >= map->entries)
		return NULL;
	return (char *)(map + 1) + ((percpu ? (size_t)sim.cpu * map->entries : 0) + index) * size;
}

static struct sim_node **sim_hash_bucket(struct sim_map *map, const __u64 *key)
{
	return &map->buckets[((key[0] ^ key[1]) * 0x9e3779b97f4a7c15ULL) >> (64 - map->bits)];
}

/* Twice as many buckets: chains stay short however many entries there are. */
static void sim_hash_grow(struct sim_map *map)
{
	struct sim_node **old = map->buckets;
	__u32 i, before = map->bits ? 1U << map->bits : 0;

	map->bits = map->bits ? map->bits + 1 : 6;
	map->buckets = sim_alloc(sizeof(*map->buckets) << map->bits);
	for (i = 0; i < before; i++) {
		struct sim_node *node = old[i];

		while (node) {
			struct sim_node *next = node->next, **to = sim_hash_bucket(map, node->key);

			node->next = *to;
			*to = node;
			node = next;
		}
	}
}

static struct sim_node **sim_hash_find(struct sim_map *map, const void *key, size_t key_size)
{
	struct sim_node **at;
	__u64 k[2] = {};

	memcpy(k, key, key_size);
	if (!map->bits)
		sim_hash_grow(map);
	at = sim_hash_bucket(map, k);
	while (*at && memcmp((*at)->key, k, sizeof(k)))
		at = &(*at)->next;
	return at;
}

/* Another CPU's copy of an element. */
static inline void *sim_percpu_lookup(void **slot, const void *key, __u32 entries, size_t size, __u32 cpu)
{
	char *here = sim_array_lookup(slot, key, entries, size, 1);

	if (!here || cpu >= sim.nr_cpus)
		return NULL;
	return here + ((long)cpu - (long)sim.cpu) * (long)(entries * size);
}

#define bpf_map_lookup_percpu_elem(m, k, cpu)                                                                          \
	((typeof((m)->value))sim_percpu_lookup((void **)(m), (k), SIM_ENTRIES(m), sizeof(*(m)->value), (cpu)))

/* What is done under a lock is done at once: nobody comes in between, so that nobody ever finds it taken. */
static inline void bpf_spin_lock(struct bpf_spin_lock *lock)
{
	sim_gap();
	sim.spins++;
}

static inline void bpf_spin_unlock(struct bpf_spin_lock *lock)
{
	sim.spins--;
}

/* htab_map_lookup_elem() of hashtab.c. */
static void *sim_hash_lookup(void **slot, const void *key, size_t key_size)
{
	struct sim_node *node;

	sim_gap();
	sim.done.lookups++;
	if (!*slot)
		return NULL;
	node = *sim_hash_find(*slot, key, key_size);
	return node ? node->value : NULL;
}

/* htab_map_update_elem() of hashtab.c. */
static long sim_hash_update(void **slot, const void *key, size_t key_size, const void *value, size_t size,
			    __u32 entries, __u64 flags)
{
	struct sim_map *map;
	struct sim_node **at, *node;

	sim_gap();
	map = *slot ? *slot : sim_map_make(slot, 0, 0);
	at = sim_hash_find(map, key, key_size);
	node = *at;
	sim.done.lookups++;
	if (node && flags == BPF_NOEXIST)
		return -17 /* EEXIST */;
	if (!node && flags == BPF_EXIST)
		return -2 /* ENOENT */;
	if (!node) {
		if (map->entries >= entries)
			return -7 /* E2BIG */;
		if (map->entries >= 1U << map->bits) {
			sim_hash_grow(map);
			at = sim_hash_find(map, key, key_size);
		}
		map->entries++;
		node = *at = sim_alloc(sizeof(*node) + size);
		memcpy(node->key, key, key_size);
	}
	memcpy(node->value, value, size);
	return 0;
}

/* htab_map_delete_elem() of hashtab.c. What was deleted stays readable, as under RCU. */
static long sim_hash_delete(void **slot, const void *key, size_t key_size)
{
	struct sim_node **at;

	sim_gap();
	at = *slot ? sim_hash_find(*slot, key, key_size) : NULL;
	sim.done.lookups++;
	if (!at || !*at)
		return -2 /* ENOENT */;
	*at = (*at)->next;
	((struct sim_map *)*slot)->entries--;
	return 0;
}

#define SIM_LOOKUP(m, k)                                                                                               \
	(SIM_HASH(m) ? sim_hash_lookup((void **)(m), (k), sizeof(*(m)->key))                                           \
		     : sim_array_lookup((void **)(m), (k), SIM_ENTRIES(m), sizeof(*(m)->value), SIM_PERCPU(m)))
/* Ours give what they look up the type that it has. */
#define bpf_map_lookup_elem(m, k) ((typeof((m)->value))SIM_LOOKUP(m, k))
#define bpf_map_update_elem(m, k, v, flags)                                                                            \
	({                                                                                                             \
		_Static_assert(SIM_HASH(m), "only hash maps are updated");                                             \
		sim_hash_update((void **)(m), (k), sizeof(*(m)->key), (v), sizeof(*(m)->value), SIM_ENTRIES(m),        \
				(flags));                                                                              \
	})
#define bpf_map_delete_elem(m, k) sim_hash_delete((void **)(m), (k), sizeof(*(m)->key))

/* Gives a map that the daemon resizes before loading its entries. */
#define SIM_RESIZE(m, n) sim_map_make((void **)(m), (n), (size_t)(n) * sizeof(*(m)->value))

/* The map is gone; the next program that is loaded makes one of its own. */
#define SIM_FORGET(m) (*(void **)(m) = NULL)

/* bpf_task_storage_get() of bpf_task_storage.c, bpf_cgrp_storage_get() of bpf_cgrp_storage.c. */
static void *sim_storage_get(void **slot, void **storages, const void *init, size_t size, __u64 flags)
{
	struct sim_map *map = *slot;
	void **at;

	sim.done.lookups++;
	if (__builtin_expect(!map, 0)) {
		map = sim_map_make(slot, 0, 0);
		map->storage = sim_nr_storages++;
		if (map->storage >= SIM_STORAGES)
			__builtin_trap();
	}
	at = &storages[map->storage];
	if (!*at && (flags & BPF_LOCAL_STORAGE_GET_F_CREATE)) {
		*at = sim_alloc(size);
		if (init)
			memcpy(*at, init, size);
	}
	return *at;
}

#define bpf_task_storage_get(m, p, init, flags)                                                                        \
	((typeof((m)->value))sim_storage_get((void **)(m), sim_task_of(p)->storage, (void *)(init),                    \
					     sizeof(*(m)->value), (flags)))
#define bpf_cgrp_storage_get(m, c, init, flags)                                                                        \
	((typeof((m)->value))sim_storage_get((void **)(m), ((struct sim_cgroup *)(c))->storage, (void *)(init),        \
					     sizeof(*(m)->value), (flags)))

/* bpf_task_storage_delete() of bpf_task_storage.c. */
static inline long sim_storage_delete(void **slot, void **storages)
{
	struct sim_map *map = *slot;

	sim.done.lookups++;
	if (!map || !storages[map->storage])
		return -2 /* ENOENT */;
	storages[map->storage] = NULL;
	return 0;
}

#define bpf_task_storage_delete(m, p) sim_storage_delete((void **)(m), sim_task_of(p)->storage)

/* bpf_timer_init(), bpf_timer_set_callback() and bpf_timer_start() of helpers.c; a timer is an element of an array. */
static long sim_timer_init(struct bpf_timer *timer, void **slot, size_t size)
{
	struct sim_timer *t;

	sim_timers = sim_grow(sim_timers, sim_nr_timers);
	t = sim_timers[sim_nr_timers] = sim_alloc(sizeof(*t));
	t->map = slot;
	t->key = ((char *)timer - ((char *)*slot + sizeof(struct sim_map))) / size;
	t->value = (char *)*slot + sizeof(struct sim_map) + t->key * size;
	*(__u64 *)timer = ++sim_nr_timers;
	return 0;
}

static inline long sim_timer_set(struct bpf_timer *timer, void *callback)
{
	if (!*(__u64 *)timer)
		return -22 /* EINVAL */;
	sim_timers[*(__u64 *)timer - 1]->callback = callback;
	return 0;
}

static inline long bpf_timer_start(struct bpf_timer *timer, __u64 ns, __u64 flags)
{
	sim.done.helpers++;
	if (!*(__u64 *)timer)
		return -22 /* EINVAL */;
	sim.calls->timer_start(sim.machine, *(__u64 *)timer - 1, ns, (flags & BPF_F_TIMER_CPU_PIN) != 0);
	return 0;
}

#define bpf_timer_init(timer, m, clock)	 sim_timer_init((timer), (void **)(m), sizeof(*(m)->value))
#define bpf_timer_set_callback(timer, f) sim_timer_set((timer), (void *)(f))

#endif /* ENTRAIN_SIM_MAPS_H */
