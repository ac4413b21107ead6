/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The constants of the guest's scheduler. Those of its decisions stand beside each decision in crates/policy/include:
 * slices and preemption in guest_preempt.h, prices of vCPUs in guest_wake.h, load in guest_load.h, parking in
 * guest_vcpud.h, calm and contended in guest_mode.h.
 */
#ifndef ENTRAIN_GUEST_SCHED_TUNABLES_H
#define ENTRAIN_GUEST_SCHED_TUNABLES_H

#include "kernel.h"
#include "entrain.h"
#include "policy.h"

/*
 * Possible CPUs that the scheduler serves; the loader refuses more. A vCPU's own memory is half a KiB. The first
 * ENTRAIN_MAX_VCPUS of them have a page; the host says nothing of the others.
 */
#define GUEST_MAX_CPUS 1024

/* By the loader: possible vCPUs, words of 64 of them, those that are online, and whether vCPUs are parked. */
const volatile __u32 nr_vcpus = 1;
const volatile __u32 nr_words = 1;
const volatile __u32 nr_llcs = 1;
const volatile __u32 nr_online = 1;
const volatile bool use_vcpud = true;
/* Whether a task may wait where that is sooner than a kick (guest_wake_stays); false for measurements. */
const volatile bool use_stays = true;

/* Other vCPUs that a busy vCPU looks at when it picks its next task ... */
#define LOOK_AT_BUSY 4
/* ... and a waking task at most, of those that idle and of those that do not. */
#define LOOK_AT_WAKE 16

/* So often an idle vCPU looks again for a task that is on its way to a queue: a look takes as long as queueing does. */
#define LOOK_AGAIN 8

/* So many vCPUs are tried for a task that waits, of those that are marked idle and may be idle no more. */
#define CLAIM_TRIES 4

/* What a wake-up of an idle vCPU takes counts as at most this, ns: beyond it the host has something else to do. */
#define WAKE_MOST_NS ENTRAIN_MSEC

/* Loads are brought up to date at most this often: two of their periods, and less than a tick. */
#define LOAD_EVERY_NS (2 * ENTRAIN_MSEC)

/* Between two steps of the controller, while the guest is contended and while it is calm: then a tick at HZ=250. */
#define STEP_NS	     ENTRAIN_MSEC
#define STEP_CALM_NS (4 * ENTRAIN_MSEC)

/* A vCPU counts as pinned when pinned tasks had more than half of it in the last window of this length. */
#define PINNED_WINDOW_NS (100 * ENTRAIN_MSEC)

/* The kernel falls back to EEVDF when a runnable task waits so long: far above what any load makes it wait. */
#define WATCHDOG_MS 10000

#endif /* ENTRAIN_GUEST_SCHED_TUNABLES_H */
