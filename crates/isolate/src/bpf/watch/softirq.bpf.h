/* SPDX-License-Identifier: GPL-2.0-only */
/* Softirqs, from begin to end. */
#ifndef ENTRAIN_ISOLATE_WATCH_SOFTIRQ_H
#define ENTRAIN_ISOLATE_WATCH_SOFTIRQ_H

#include "state.bpf.h"

SEC("tp_btf/softirq_entry")
int BPF_PROG(watch_softirq_entry, unsigned int vec)
{
	struct cpu_state *state = cpu_state__here();

	if (state) {
		frame__open(state, &state->soft, WATCH_SOFTIRQ, bpf_ktime_get_ns());
		state->soft.key.detail = vec;
	}
	return 0;
}

SEC("tp_btf/softirq_exit")
int BPF_PROG(watch_softirq_exit, unsigned int vec)
{
	struct cpu_state *state = cpu_state__here();

	if (state)
		frame__finish(state, &state->soft);
	return 0;
}

#endif /* ENTRAIN_ISOLATE_WATCH_SOFTIRQ_H */
