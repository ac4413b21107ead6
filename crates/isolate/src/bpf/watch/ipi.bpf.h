/* SPDX-License-Identifier: GPL-2.0-only */
/* Inter-processor interrupts: who sends them to a watched CPU, and which function they call there. */
#ifndef ENTRAIN_ISOLATE_WATCH_IPI_H
#define ENTRAIN_ISOLATE_WATCH_IPI_H

#include "config.h"
#include "sender.bpf.h"

static __always_inline void ipi__note(void *ctx, __u32 cpu, void *callback)
{
	/* A reschedule IPI has no callback. */
	struct ipi ipi = {.cpu = cpu, .kind = callback ? WATCH_CALL : WATCH_RESCHED};
	struct sender sender = {};

	sender__fill(ctx, &sender);
	bpf_map_update_elem(&sent, &ipi, &sender, BPF_ANY);
}

SEC("tp_btf/ipi_send_cpu")
int BPF_PROG(watch_send_cpu, unsigned int cpu, unsigned long callsite, void *callback)
{
	if (enabled && cpu__is_watched(cpu))
		ipi__note(ctx, cpu, callback);
	return 0;
}

SEC("tp_btf/ipi_send_cpumask")
int BPF_PROG(watch_send_cpumask, const struct cpumask *mask, unsigned long callsite, void *callback)
{
	int word, bit, words = (nr_cpus + 63) / 64;

	if (!enabled)
		return 0;
	bpf_for (word, 0, words) {
		__u64 bits = 0;

		if (word < 0 || word >= WATCH_CPU_WORDS || !cpus[word])
			continue;
		bpf_probe_read_kernel(&bits, sizeof(bits), (void *)mask + word * sizeof(bits));
		bits &= cpus[word];
		if (!bits)
			continue;
		bpf_for (bit, 0, 64) {
			if (bits >> bit & 1)
				ipi__note(ctx, word * 64 + bit, callback);
		}
	}
	return 0;
}

/* Raw: the verifier lets no typed program read an argument that points to a function. */
SEC("raw_tp/csd_queue_cpu")
int BPF_PROG(watch_queue_call, unsigned int cpu, unsigned long callsite, void *func, void *csd)
{
	struct sender sender = {};
	__u64 id = (__u64)csd;

	if (!enabled || !cpu__is_watched(cpu))
		return 0;
	sender__fill(ctx, &sender);
	sender.func = (__u64)func;
	bpf_map_update_elem(&calls, &id, &sender, BPF_ANY);
	return 0;
}

/* One interrupt may serve several calls; it counts for the first, without which it would not have come. */
SEC("raw_tp/csd_function_entry")
int BPF_PROG(watch_call, void *func, void *csd)
{
	struct cpu_state *state = cpu_state__here();
	__u64 id = (__u64)csd;
	struct sender *sender;

	if (!state)
		return 0;
	sender = bpf_map_lookup_elem(&calls, &id);
	if (state->irq.start && state->irq.key.kind == WATCH_CALL && !state->irq.key.subject) {
		state->irq.key.subject = (__u64)func;
		if (sender)
			sender__put(&state->irq, sender);
	}
	if (sender)
		bpf_map_delete_elem(&calls, &id);
	return 0;
}

#endif /* ENTRAIN_ISOLATE_WATCH_IPI_H */
