/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Sets of vCPUs, a bit each, so that work depends on how many are in a set and not on how many are possible. Each word
 * has a cache line of its own: in a big guest they are written far apart.
 */
#ifndef ENTRAIN_GUEST_SCHED_MASK_H
#define ENTRAIN_GUEST_SCHED_MASK_H

#include "state.bpf.h"

#define MASK_WORDS (GUEST_MAX_CPUS / 64)

struct vcpu_mask {
	struct {
		__u64 bits;
		__s64 counted; /* of mask_waiting: its vCPUs, with those on their way into it and out of it */
	} __attribute__((aligned(64))) word[MASK_WORDS];
};

/* vCPUs in whose queues somebody waits; changed with their `waiting`. */
struct vcpu_mask mask_waiting;
/* Idle vCPUs that were woken and have looked for work since they began to idle; each writes its own bit. */
struct vcpu_mask mask_looking;
/* vCPUs in use: online and not parked; written by the controller. */
struct vcpu_mask mask_kept;

static __always_inline __u64 mask__word(const struct vcpu_mask *mask, __u32 word)
{
	return READ_ONCE(mask->word[word & (MASK_WORDS - 1)].bits);
}

static __always_inline void mask__set(struct vcpu_mask *mask, __s32 cpu)
{
	__sync_fetch_and_or(&mask->word[((__u32)cpu / 64) & (MASK_WORDS - 1)].bits, 1ULL << (cpu & 63));
}

static __always_inline void mask__clear(struct vcpu_mask *mask, __s32 cpu)
{
	__sync_fetch_and_and(&mask->word[((__u32)cpu / 64) & (MASK_WORDS - 1)].bits, ~(1ULL << (cpu & 63)));
}

static __always_inline __s64 *waiting__counted(__u32 word)
{
	return &mask_waiting.word[word & (MASK_WORDS - 1)].counted;
}

/* Somebody waits for a vCPU for which nobody did: counted first, so that it is seen wherever the bit is. */
static __always_inline void waiting__begins(__s32 cpu)
{
	__sync_fetch_and_add(waiting__counted((__u32)cpu / 64), 1);
	mask__set(&mask_waiting, cpu);
}

/*
 * The last one waits no more. Somebody may have come to the vCPU since: whichever of both is last sets the bit. Until
 * then it is gone, for as long as the host lets this vCPU wait, and whoever goes idle meanwhile goes by the count.
 */
static __always_inline void waiting__ends(__s32 cpu, __s64 *waiting)
{
	mask__clear(&mask_waiting, cpu);
	if (__sync_fetch_and_add(waiting, 0) > 0)
		mask__set(&mask_waiting, cpu);
	__sync_fetch_and_add(waiting__counted((__u32)cpu / 64), -1);
}

/* Whether anybody waits. A plain loop: there are one or a few words, and an iterator would be calls. */
static __always_inline bool waiting__any(void)
{
	__u64 any = 0;
	__u32 i;

	for (i = 0; i < MASK_WORDS; i++) {
		if (i * 64 >= nr_vcpus)
			break;
		any |= READ_ONCE(*waiting__counted(i));
	}
	return any != 0;
}

/* The words of the kernel's own sets. */
static __always_inline __u64 cpumask__word(const struct cpumask *mask, __u32 word)
{
	__u64 bits = 0;

	bpf_probe_read_kernel(&bits, sizeof(bits), (const char *)mask + word * sizeof(bits));
	return bits;
}

/*
 * The lowest bit of a word that is not 0; BPF has no instruction for it. Verified by itself: with each of its branches
 * known, no loop around it would ever look like one that was seen before.
 */
__noinline __u32 bits__lowest(__u64 bits)
{
	__u32 at = 0;

	if (!(bits & 0xffffffff)) {
		at += 32;
		bits >>= 32;
	}
	if (!(bits & 0xffff)) {
		at += 16;
		bits >>= 16;
	}
	if (!(bits & 0xff)) {
		at += 8;
		bits >>= 8;
	}
	if (!(bits & 0xf)) {
		at += 4;
		bits >>= 4;
	}
	if (!(bits & 3)) {
		at += 2;
		bits >>= 2;
	}
	return at + !(bits & 1);
}

/* The next set bit from `from` on, around the word's end; the word is not 0. */
static __always_inline __u32 bits__next(__u64 bits, __u32 from)
{
	__u64 above = bits & (~0ULL << (from & 63));

	return bits__lowest(above ? above : bits) & 63;
}

/* The bits of a word less that of a vCPU. */
static __always_inline __u64 bits__without(__u64 bits, __u32 word, __s32 cpu)
{
	return cpu >= 0 && (__u32)cpu / 64 == word ? bits & ~(1ULL << (cpu & 63)) : bits;
}

/* Whether another vCPU than this is in use. A plain loop, as that of waiting__any(). */
static __always_inline bool kept__others(__s32 cpu)
{
	__u64 any = 0;
	__u32 i;

	for (i = 0; i < MASK_WORDS; i++) {
		if (i * 64 >= nr_vcpus)
			break;
		any |= bits__without(mask__word(&mask_kept, i), i, cpu);
	}
	return any != 0;
}

/* A vCPU in use that the task may run on, other than `except`; -1 when there is none. */
static __noinline __s32 vcpu__kept_for(struct task_struct *p, __s32 except)
{
	__s32 found = -1;
	__u32 i;

	bpf_for (i, 0, nr_words) {
		__u64 bits = bits__without(mask__word(&mask_kept, i) & cpumask__word(p->cpus_ptr, i), i, except);

		if (bits) {
			found = i * 64 + bits__lowest(bits);
			break;
		}
	}
	return found;
}

#endif /* ENTRAIN_GUEST_SCHED_MASK_H */
