/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What every policy header shares. A policy header holds one decision as pure functions over plain values: no kernel
 * type, no map, no clock. The same text is compiled into the BPF programs and into native code, where tests reach it.
 *
 * Times are nanoseconds, virtual times are nanoseconds of a task of weight ENTRAIN_WEIGHT_DEFAULT. Virtual times wrap
 * around and are compared by their difference only.
 */
#ifndef ENTRAIN_POLICY_H
#define ENTRAIN_POLICY_H

#ifdef __bpf__
typedef __u64 entrain_u64;
typedef __s64 entrain_s64;
typedef __u32 entrain_u32;
#else
#include <stdint.h>
typedef uint64_t entrain_u64;
typedef int64_t entrain_s64;
typedef uint32_t entrain_u32;
#endif

#define ENTRAIN_POLICY static inline __attribute__((always_inline, unused))

#define ENTRAIN_USEC 1000ULL
#define ENTRAIN_MSEC (1000ULL * ENTRAIN_USEC)
#define ENTRAIN_SEC  (1000ULL * ENTRAIN_MSEC)

/*
 * How surely a vCPU is inside a critical section of its guest, as the host sees it when the vCPU is off the guest (at a
 * tick or at a switch). Ordered: a higher level is a stronger reason not to preempt.
 */
enum entrain_critical {
	ENTRAIN_CRITICAL_UNKNOWN = 0, /* nothing is known: treated as user mode for what it may gain */
	ENTRAIN_CRITICAL_USER = 1,    /* in user mode: holds no lock of its kernel */
	ENTRAIN_CRITICAL_KERNEL = 2,  /* in kernel mode, and no more is known: perhaps inside a section */
	ENTRAIN_CRITICAL_FREE = 3,    /* in kernel mode, with a preempt count of 0: holds no spinning lock */
	ENTRAIN_CRITICAL_MASKED = 4,  /* interrupts masked, as KVM last saw it */
	ENTRAIN_CRITICAL_SECTION = 5, /* preempt count above 0, read in place */
};

/* Whether to be preempted at this level can make a sibling spin. */
ENTRAIN_POLICY int entrain_critical_holds(entrain_u32 level)
{
	return level == ENTRAIN_CRITICAL_KERNEL || level >= ENTRAIN_CRITICAL_MASKED;
}

ENTRAIN_POLICY entrain_u64 entrain_min(entrain_u64 a, entrain_u64 b)
{
	return a < b ? a : b;
}

ENTRAIN_POLICY entrain_u64 entrain_max(entrain_u64 a, entrain_u64 b)
{
	return a > b ? a : b;
}

/* a - b, or 0 where b is the larger. */
ENTRAIN_POLICY entrain_u64 entrain_sub(entrain_u64 a, entrain_u64 b)
{
	return a > b ? a - b : 0;
}

#endif /* ENTRAIN_POLICY_H */
