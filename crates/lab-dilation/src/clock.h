/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The page that the lab and the preloaded clock share: how the machine's time follows the computer's.
 *
 *   machine = machine_ns + (computer - computer_ns) * rate / 2^32      (CLOCK_MONOTONIC of both, ns)
 *
 * Written by the lab alone. `seq` is odd while it writes; readers look again.
 */
#ifndef ENTRAIN_LAB_CLOCK_H
#define ENTRAIN_LAB_CLOCK_H

#include <stdint.h>

#define ENTRAIN_LAB_CLOCK_MAGIC 0x636b636c62616cULL

struct entrain_lab_clock {
	uint64_t magic;
	uint64_t seq;
	int64_t computer_ns;
	int64_t machine_ns;
	uint64_t rate;	     /* 2^32 / N */
	int64_t realtime_ns; /* CLOCK_REALTIME less CLOCK_MONOTONIC, of the computer and of the machine alike */
	uint64_t counted;    /* the emulated CPU has the time stamp counter of the computer's: it is to follow */
};

#endif
