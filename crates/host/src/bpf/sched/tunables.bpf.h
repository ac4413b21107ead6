/* SPDX-License-Identifier: GPL-2.0-only */
/* What can be set before the scheduler is loaded: tunables, and what the loader knows of the host. */
#ifndef ENTRAIN_SCHED_TUNABLES_BPF_H
#define ENTRAIN_SCHED_TUNABLES_BPF_H

#include "kernel.h"
#include "policy.h"

/*
 * Tunables. The defaults need no tuning; each line says what is paid for what. Set by the loader before load.
 *
 * Virtual times (credit, debt, granularity, migrate) are what so long on a CPU costs the task in question: each is
 * scaled by that task's share before it is compared with a clock.
 */

/*
 * Multiples of what a switch costs on the CPU in question, as it is measured there: how long whoever runs is left in
 * peace, the shortest slice, how soon a section is looked at again (and a turn of one that would wait too long). The
 * times of these below are bounds, which an emulator reaches. 0 = the bound itself, always. What is measured is the
 * scheduler's part, about a quarter of a whole switch of vCPUs with exit and entry.
 */
const volatile __u64 protect_costs = 64;
const volatile __u64 slice_costs = 64;
const volatile __u64 look_costs = 16;
/* In which everyone who waits should have run: longer gives throughput, shorter gives latency under full load. */
const volatile __u64 period_ns = 6 * ENTRAIN_MSEC;
/* Shortest slice, at most: what a switch of vCPUs (caches, VM entry) may cost must stay small beside it. */
const volatile __u64 slice_min_ns = 3 * ENTRAIN_MSEC;
/* Longest slice: the wait of a task that comes when all CPUs are taken and nobody's clock is behind. */
const volatile __u64 slice_max_ns = 3 * ENTRAIN_MSEC;
/* The same while a vCPU waits whose class has a target for its wait: what a switch costs counts less there. */
const volatile __u64 slice_hurry_ns = 1 * ENTRAIN_MSEC;
/* Credit of sleepers: more lets a task that sleeps much preempt more often; less delays it. */
const volatile __u64 credit_ns = 6 * ENTRAIN_MSEC;
/* The same of one that wakes urgently; of one whose class has a target for its wait, less that target. */
const volatile __u64 credit_max_ns = 24 * ENTRAIN_MSEC;
/* How far ahead of the queue a clock may be when its task wakes; bounds the wait after a change of queue or weight. */
const volatile __u64 debt_ns = 100 * ENTRAIN_MSEC;
/*
 * A runnable task waits about so long at most, however small its share is beside the others': less gives light tasks
 * more than their share where weights are far apart. The kernel's watchdog ends the scheduler at 10 s.
 */
const volatile __u64 wait_max_ns = 1 * ENTRAIN_SEC;
/* Wake-up preemption: virtual time that a victim must be ahead, and how long it has stayed at least. */
const volatile __u64 granularity_ns = 1 * ENTRAIN_MSEC;
const volatile __u64 min_run_ns = 200 * ENTRAIN_USEC;
/*
 * The same where one vCPU wakes and another would have to go: most of them halt again within this time, and taking the
 * CPU from one costs an exit, two switches and the rest of its work. EEVDF protects what runs for a slice of 2.8 ms.
 */
const volatile __u64 min_run_vcpu_ns = 4 * ENTRAIN_MSEC;
/* Critical sections: look again after at most, most per event, bucket, refill per million (extend.h). */
const volatile __u64 extend_step_ns = 100 * ENTRAIN_USEC;
const volatile __u64 extend_event_ns = 1 * ENTRAIN_MSEC;
const volatile __u64 extend_burst_ns = 10 * ENTRAIN_MSEC;
const volatile __u64 extend_rate_ppm = 50000;
/* A vCPU that was put to the front to take an interrupt has so long for it; 0 = they are not put to the front. */
const volatile __u64 answer_ns = 300 * ENTRAIN_USEC;
/*
 * A vCPU that was put to the front since it holds something is looked at after so long, and leaves when it holds
 * nothing any more: sooner costs exits, later lets it queue for the lock again, behind siblings that are not on a CPU.
 * 0 = it has the rest of the turn.
 */
const volatile __u64 lend_ns = 150 * ENTRAIN_USEC;
/*
 * A vCPU whose guest's timer falls due while it waits is let in for a moment (timer.bpf.h): how far its clock may be
 * ahead for that, and between two times that the same vCPU is, as a multiple of what a switch costs and at most. More
 * often serves faster clocks and takes more from whoever is interrupted. The lead is twice `migrate_ns`: so far ahead
 * is one that comes from a CPU which it had for itself, and it would hear of its timer only with its next turn.
 */
const volatile __u64 timer_lead_ns = 12 * ENTRAIN_MSEC;
const volatile __u64 timer_stay_costs = 32;
const volatile __u64 timer_costs = 512;
const volatile __u64 timer_again_ns = 1 * ENTRAIN_MSEC;
/*
 * Virtual time that a task of another CPU must be behind to be taken from its queue: less is fairer from moment to
 * moment, more keeps vCPUs where their caches, TLB and timers are.
 */
const volatile __u64 migrate_ns = 6 * ENTRAIN_MSEC;
/* Mechanisms that can be switched off, for measurement. */
const volatile bool use_yield = true;
const volatile bool use_extend = true;
const volatile bool use_front = true;
const volatile bool use_wake_preempt = true;
const volatile bool use_follow = true;
const volatile bool use_timer = true;
const volatile bool use_tick = true;
const volatile bool use_spins = true;
const volatile bool use_untrapped = true;
const volatile bool use_energy = true;

/* Set by the loader from the host's topology. */
const volatile __u32 nr_cpus = 1;

#endif /* ENTRAIN_SCHED_TUNABLES_BPF_H */
