/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Load in the guest, counted in the time that a vCPU really ran and scaled by what its pCPU can do: a vCPU that is
 * stolen half of the time, or sits on a slow pCPU, is not half loaded.
 *
 * The shape is the kernel's PELT: a geometric mean with a half-life of 32 ms. It is kept on the scale 0..2^20, so that
 * short periods do not round away; guest_util() gives it on the kernel's scale 0..1024.
 */
#ifndef ENTRAIN_GUEST_LOAD_H
#define ENTRAIN_GUEST_LOAD_H

#include "entrain.h"
#include "policy.h"

#define GUEST_LOAD_ONE (1024ULL * 1024)

/* Periods of 1,024 us; 32 of them halve the past. */
#define GUEST_LOAD_PERIOD_NS 1048576ULL

/* Weight of the past after n periods, 2^(-n/32) in 1/65536; after 8 half-lives nothing is left. */
ENTRAIN_POLICY entrain_u64 guest_load_decay(entrain_u64 periods)
{
	/* 2^(-i/32) for i = 0..31, in 1/65536 */
	static const entrain_u32 table[32] = {
		65536, 64132, 62757, 61413, 60097, 58809, 57549, 56316, 55109, 53928, 52773,
		51642, 50535, 49452, 48393, 47356, 46341, 45348, 44376, 43425, 42495, 41584,
		40693, 39821, 38968, 38133, 37316, 36516, 35734, 34968, 34219, 33486,
	};

	if (periods >= 256)
		return 0;
	return table[periods & 31] >> (periods >> 5);
}

/* Time of `ran` ns that the host did not take away: 0..ran. */
ENTRAIN_POLICY entrain_u64 guest_real_time(entrain_u64 ran, entrain_u64 stolen)
{
	return stolen < ran ? ran - stolen : 0;
}

/*
 * The mean after `elapsed` ns of which the vCPU really worked `worked` ns, at this capacity and performance level
 * (1..1024 each). Stays within 0..GUEST_LOAD_ONE for every input.
 */
ENTRAIN_POLICY entrain_u64 guest_load_update(entrain_u64 load, entrain_u64 worked, entrain_u64 elapsed,
					     entrain_u32 capacity, entrain_u32 perf)
{
	entrain_u64 keep, now, periods = (elapsed + GUEST_LOAD_PERIOD_NS / 2) / GUEST_LOAD_PERIOD_NS;

	if (load > GUEST_LOAD_ONE)
		load = GUEST_LOAD_ONE;
	if (elapsed == 0 || periods == 0)
		return load;
	if (worked > elapsed)
		worked = elapsed;
	if (capacity > ENTRAIN_CAPACITY_SCALE)
		capacity = ENTRAIN_CAPACITY_SCALE;
	if (perf > ENTRAIN_CAPACITY_SCALE)
		perf = ENTRAIN_CAPACITY_SCALE;
	/* Without overflow: elapsed above 2^43 ns is two hours. */
	now = elapsed >> 43 ? 0 : worked * GUEST_LOAD_ONE / elapsed;
	now = now * capacity / ENTRAIN_CAPACITY_SCALE * perf / ENTRAIN_CAPACITY_SCALE;
	keep = guest_load_decay(periods);
	return (load * keep + now * (65536 - keep)) >> 16;
}

/* Utilisation, 0..1024. */
ENTRAIN_POLICY entrain_u32 guest_util(entrain_u64 load)
{
	return (entrain_u32)(entrain_min(load, GUEST_LOAD_ONE) / 1024);
}

/*
 * What a task that has worked so long without a sleep is taken to need, 0..1024, whatever was known of it before: a
 * mean that begins at 0 and has a half-life of 5.3 ms: a sixth of PELT's, a little less than Android's kernels set for
 * phones (sched_pelt_multiplier 4), so that the highest level is wanted after 14 ms of work; and by the time worked,
 * not by capacity and frequency: on a slow CPU those would hold back the very signal that makes it faster.
 */
#define GUEST_RAMP_FASTER 6

ENTRAIN_POLICY entrain_u32 guest_ramp(entrain_u64 worked)
{
	worked = entrain_min(worked, ENTRAIN_SEC);
	return (entrain_u32)(1024 - guest_load_decay(worked * GUEST_RAMP_FASTER / GUEST_LOAD_PERIOD_NS) / 64);
}

/* What a task is taken to need while it runs, 0..1024: measured, remembered from its last stay, or ramping up. */
ENTRAIN_POLICY entrain_u32 guest_task_claim(entrain_u64 load, entrain_u32 est, entrain_u64 worked)
{
	entrain_u64 known = entrain_max(guest_util(load), entrain_min(est, 1024));

	return (entrain_u32)entrain_max(known, guest_ramp(worked));
}

/*
 * What a task is expected to need when it wakes up, 0..1024: what it was taken to need as it went to sleep (`load`, and
 * `worked` of this stay, as above), and what is left of what it was expected to need before. Unlike the kernel's
 * util_est it remembers the ramp and not only the mean: a thread that works 10 ms for each frame has a mean of a half
 * at most, and would begin every frame at a level that makes it late. It forgets by time (half in 128 ms) and not by
 * stays, of which a task may have many short ones beside the long one; and never more than in 32 ms at once, so that a
 * long sleep does not make a known task an unknown one.
 */
#define GUEST_EST_SLOWER  4
#define GUEST_EST_PERIODS 32

ENTRAIN_POLICY entrain_u32 guest_task_est(entrain_u32 est, entrain_u64 load, entrain_u64 worked, entrain_u64 elapsed)
{
	entrain_u64 periods = entrain_min(elapsed / GUEST_LOAD_PERIOD_NS, GUEST_EST_PERIODS);
	entrain_u64 keep = guest_load_decay(periods / GUEST_EST_SLOWER);

	return guest_task_claim(load, (entrain_u32)(entrain_min(est, 1024) * keep >> 16), worked);
}

/*
 * What a task that waits for a device is taken to need when the device has answered, 0..1024; computed as it goes to
 * sleep, `elapsed` ns after its last sleep began. Its work between two answers is too short for a ramp and its mean is
 * low because of the waiting, yet the device idles while it works slowly. schedutil raises the level for such a task on
 * the CPU that it wakes on (sugov_iowait_boost(): an eighth at first, twice as much each further time, half as much
 * when it slept for another reason), which a host can't do: the guest's waiting looks to it like any other halt. Waits
 * further apart than 16 ms, a disk's seek and what follows it, leave the device idle for other reasons.
 */
#define GUEST_IO_BOOST_MIN 128
#define GUEST_IO_APART_NS  (16 * ENTRAIN_MSEC)

ENTRAIN_POLICY entrain_u32 guest_io_boost(entrain_u32 boost, int waits_for_io, entrain_u64 elapsed)
{
	boost = (entrain_u32)entrain_min(boost, 1024);
	if (!waits_for_io)
		return boost / 2 < GUEST_IO_BOOST_MIN ? 0 : boost / 2;
	if (elapsed > GUEST_IO_APART_NS || boost < GUEST_IO_BOOST_MIN)
		return GUEST_IO_BOOST_MIN;
	return (entrain_u32)entrain_min(boost * 2, 1024);
}

/*
 * What a vCPU tells its host, 0..1024: the mean of what it used, or what the tasks on it are taken to need, whichever
 * is more; as the kernel's own figure of a run queue (util_avg and util_est). `idle_for`: ns since `load` was counted
 * in which nothing ran.
 */
ENTRAIN_POLICY entrain_u32 guest_vcpu_claim(entrain_u64 load, entrain_u64 idle_for, entrain_u32 running,
					    entrain_s64 waiting)
{
	entrain_u64 mean = guest_util(load) * guest_load_decay(idle_for / GUEST_LOAD_PERIOD_NS) >> 16;
	entrain_u64 tasks = running + (waiting > 0 ? entrain_min((entrain_u64)waiting, 1024) : 0);

	return (entrain_u32)entrain_min(entrain_max(mean, tasks), 1024);
}

/* Running mean of a measured duration, an eighth of the new value at a time. */
ENTRAIN_POLICY entrain_u64 guest_mean(entrain_u64 mean, entrain_u64 value)
{
	if (value > 10000000000ULL)
		value = 10000000000ULL;
	if (mean > 10000000000ULL)
		mean = 10000000000ULL;
	return mean - mean / 8 + value / 8;
}

/* Share of `stolen` in the time that was wanted, 1/1024. */
ENTRAIN_POLICY entrain_u32 guest_stolen_share(entrain_u64 worked, entrain_u64 stolen)
{
	entrain_u64 wanted = worked + stolen;

	if (wanted < stolen || wanted >> 50)
		return 1024;
	if (wanted == 0)
		return 0;
	return (entrain_u32)(stolen * 1024 / wanted);
}

#endif /* ENTRAIN_GUEST_LOAD_H */
