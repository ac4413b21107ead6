/* SPDX-License-Identifier: GPL-2.0-only */
/* What a timer interrupt or softirq was for, and why the tick could not be stopped. */
#ifndef ENTRAIN_ISOLATE_WATCH_TIMER_H
#define ENTRAIN_ISOLATE_WATCH_TIMER_H

#include "config.h"
#include "state.bpf.h"

SEC("tp_btf/hrtimer_expire_entry")
int BPF_PROG(watch_hrtimer, struct hrtimer *timer)
{
	struct cpu_state *state = cpu_state__here();
	__u64 func;

	if (!state || !state->irq.start || state->irq.key.kind != WATCH_TIMER)
		return 0;
	func = (__u64)BPF_CORE_READ(timer, function);
	/* The tick is told even where it comes together with another timer. */
	if (!state->irq.key.subject || func == tick_handler)
		state->irq.key.subject = func;
	return 0;
}

SEC("tp_btf/tick_stop")
int BPF_PROG(watch_tick_stop, int success, int dependency)
{
	struct cpu_state *state = cpu_state__here();

	if (state)
		state->dep = success ? 0 : dependency;
	return 0;
}

SEC("tp_btf/timer_expire_entry")
int BPF_PROG(watch_timer, struct timer_list *timer)
{
	struct cpu_state *state = cpu_state__here();

	if (state && state->soft.start && !state->soft.key.subject)
		state->soft.key.subject = (__u64)BPF_CORE_READ(timer, function);
	return 0;
}

#endif /* ENTRAIN_ISOLATE_WATCH_TIMER_H */
