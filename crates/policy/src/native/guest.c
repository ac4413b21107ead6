/* SPDX-License-Identifier: GPL-2.0-only */
/* The guest's decisions, exported under names of their own for crates/policy/src/guest.rs. */
#include "guest_view.h"
#include "guest_wake.h"
#include "guest_preempt.h"
#include "guest_load.h"
#include "guest_mode.h"
#include "guest_vcpud.h"

void guest_n_vcpu_view(uint64_t features, uint64_t state, uint64_t instant, struct guest_vcpu_view *view)
{
	*view = guest_vcpu_view(features, state, instant);
}

int guest_n_host_alive(struct guest_heartbeat *heartbeat, uint64_t beat, uint64_t now)
{
	return guest_host_alive(heartbeat, beat, now);
}

uint32_t guest_n_scale(uint64_t features, uint64_t value)
{
	return guest_scale(features, value);
}

int64_t guest_n_entitlement(uint64_t features, uint64_t value, uint32_t nr_vcpus)
{
	return guest_entitlement(features, value, nr_vcpus);
}

uint64_t guest_n_wake_price(const struct guest_candidate *candidate, uint32_t util)
{
	return guest_wake_price(candidate, util);
}

int guest_n_wake_direct(const struct guest_candidate *candidate)
{
	return guest_wake_direct(candidate);
}

int guest_n_take_over(const struct guest_takeover *takeover)
{
	return guest_take_over(takeover);
}

int guest_n_wake_stays(uint64_t stay, uint64_t ahead, uint64_t wake)
{
	return guest_wake_stays(stay, ahead, wake);
}

uint64_t guest_n_slice(uint32_t waiting)
{
	return guest_slice(waiting);
}

uint64_t guest_n_debt(uint64_t share, uint64_t total)
{
	return guest_debt(share, total);
}

uint64_t guest_n_peace(uint64_t cost, uint64_t ran)
{
	return guest_peace(cost, ran);
}

int guest_n_preempts(uint64_t waking, uint64_t running)
{
	return guest_preempts(waking, running);
}

uint64_t guest_n_load_update(uint64_t load, uint64_t worked, uint64_t elapsed, uint32_t capacity, uint32_t perf)
{
	return guest_load_update(load, worked, elapsed, capacity, perf);
}

uint32_t guest_n_util(uint64_t load)
{
	return guest_util(load);
}

uint32_t guest_n_ramp(uint64_t worked)
{
	return guest_ramp(worked);
}

uint32_t guest_n_task_claim(uint64_t load, uint32_t est, uint64_t worked)
{
	return guest_task_claim(load, est, worked);
}

uint32_t guest_n_task_est(uint32_t est, uint64_t load, uint64_t worked, uint64_t elapsed)
{
	return guest_task_est(est, load, worked, elapsed);
}

uint32_t guest_n_io_boost(uint32_t boost, int waits_for_io, uint64_t elapsed)
{
	return guest_io_boost(boost, waits_for_io, elapsed);
}

uint32_t guest_n_vcpu_claim(uint64_t load, uint64_t idle_for, uint32_t running, int64_t waiting)
{
	return guest_vcpu_claim(load, idle_for, running, waiting);
}

uint64_t guest_n_real_time(uint64_t ran, uint64_t stolen)
{
	return guest_real_time(ran, stolen);
}

uint64_t guest_n_mean(uint64_t mean, uint64_t value)
{
	return guest_mean(mean, value);
}

uint32_t guest_n_stolen_share(uint64_t worked, uint64_t stolen)
{
	return guest_stolen_share(worked, stolen);
}

uint32_t guest_n_vcpud_step(struct guest_vcpud *vcpud, const struct guest_vcpud_input *input)
{
	return guest_vcpud_step(vcpud, input);
}

int guest_n_vcpud_kept(int pinned, uint32_t pinned_all, uint32_t free_before, uint32_t keep)
{
	return guest_vcpud_kept(pinned, pinned_all, free_before, keep);
}

int guest_n_mode_step(struct guest_mode *mode, const struct guest_mode_input *input)
{
	return guest_mode_step(mode, input);
}

uint64_t guest_n_withheld(uint64_t stolen, uint64_t length)
{
	return guest_withheld(stolen, length);
}

uint64_t guest_n_host_waits(uint64_t changes, uint64_t preemptions)
{
	return guest_host_waits(changes, preemptions);
}

uint64_t guest_n_host_wait_mean(uint64_t mean, uint64_t waited, uint64_t waits)
{
	return guest_host_wait_mean(mean, waited, waits);
}

uint64_t guest_n_yield_charge(uint64_t rest, uint64_t share)
{
	return guest_yield_charge(rest, share);
}
