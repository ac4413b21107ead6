/* SPDX-License-Identifier: GPL-2.0-only */
/* Interrupts of all kinds, who sent them, and what timers and softirqs were for. */
#ifndef ENTRAIN_ISOLATE_WATCH_IRQ_H
#define ENTRAIN_ISOLATE_WATCH_IRQ_H

#include "watch_sender.h"
#include "watch_config.h"

/* ---- Inter-processor interrupts ---- */

static __always_inline void note_ipi(void *ctx, __u32 cpu, void *callback)
{
	/* A reschedule IPI has no callback. */
	struct ipi ipi = {.cpu = cpu, .kind = callback ? WATCH_CALL : WATCH_RESCHED};
	struct sender sender = {};

	sender_fill(ctx, &sender);
	bpf_map_update_elem(&sent, &ipi, &sender, BPF_ANY);
}

SEC("tp_btf/ipi_send_cpu")
int BPF_PROG(watch_send_cpu, unsigned int cpu, unsigned long callsite, void *callback)
{
	if (enabled && watched(cpu))
		note_ipi(ctx, cpu, callback);
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
				note_ipi(ctx, word * 64 + bit, callback);
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

	if (!enabled || !watched(cpu))
		return 0;
	sender_fill(ctx, &sender);
	sender.func = (__u64)func;
	bpf_map_update_elem(&calls, &id, &sender, BPF_ANY);
	return 0;
}

/* One interrupt may serve several calls; it counts for the first, without which it would not have come. */
SEC("raw_tp/csd_function_entry")
int BPF_PROG(watch_call, void *func, void *csd)
{
	struct cpu_state *state = here();
	__u64 id = (__u64)csd;
	struct sender *sender;

	if (!state)
		return 0;
	sender = bpf_map_lookup_elem(&calls, &id);
	if (state->irq.start && state->irq.key.kind == WATCH_CALL && !state->irq.key.subject) {
		state->irq.key.subject = (__u64)func;
		if (sender)
			sender_put(&state->irq, sender);
	}
	if (sender)
		bpf_map_delete_elem(&calls, &id);
	return 0;
}

/* ---- Interrupts ---- */

static __always_inline struct frame *irq_enter(__u32 kind, __u32 detail)
{
	struct cpu_state *state = here();
	struct sender *sender;
	struct ipi ipi = {.kind = kind};

	if (!state)
		return NULL;
	frame_open(state, &state->irq, kind, bpf_ktime_get_ns());
	state->irq.key.detail = detail;
	if (kind == WATCH_CALL || kind == WATCH_RESCHED) {
		ipi.cpu = state->irq.key.cpu;
		sender = bpf_map_lookup_elem(&sent, &ipi);
		if (sender) {
			sender_put(&state->irq, sender);
			bpf_map_delete_elem(&sent, &ipi);
		}
	}
	return &state->irq;
}

static __always_inline void irq_leave(void)
{
	struct cpu_state *state = here();

	if (!state)
		return;
	if (state->irq.key.kind == WATCH_TIMER && (!tick_handler || state->irq.key.subject == tick_handler))
		state->irq.key.detail = state->dep;
	frame_finish(state, &state->irq);
}

#define VECTOR(name, kind, detail)                                                                                     \
	SEC("tp_btf/" #name "_entry")                                                                                  \
	int BPF_PROG(watch_##name##_entry, int vector)                                                                 \
	{                                                                                                              \
		irq_enter(kind, detail);                                                                               \
		return 0;                                                                                              \
	}                                                                                                              \
	SEC("tp_btf/" #name "_exit")                                                                                   \
	int BPF_PROG(watch_##name##_exit, int vector)                                                                  \
	{                                                                                                              \
		irq_leave();                                                                                           \
		return 0;                                                                                              \
	}

VECTOR(local_timer, WATCH_TIMER, 0)
VECTOR(reschedule, WATCH_RESCHED, 0)
VECTOR(call_function, WATCH_CALL, 0)
VECTOR(call_function_single, WATCH_CALL, 0)
VECTOR(irq_work, WATCH_IRQWORK, 0)
VECTOR(x86_platform_ipi, WATCH_VECTOR, vector)
VECTOR(thermal_apic, WATCH_VECTOR, vector)
VECTOR(threshold_apic, WATCH_VECTOR, vector)
VECTOR(deferred_error_apic, WATCH_VECTOR, vector)
VECTOR(error_apic, WATCH_VECTOR, vector)
VECTOR(spurious_apic, WATCH_VECTOR, vector)

/* arm64: one pair of events for all IPIs, told apart by their descriptions in arch/arm64/kernel/smp.c. */
SEC("tp_btf/ipi_entry")
int BPF_PROG(watch_ipi_entry, const char *reason)
{
	char first = 0;

	bpf_probe_read_kernel(&first, 1, reason);
	irq_enter(first == 'R'	 ? WATCH_RESCHED
		  : first == 'F' ? WATCH_CALL
		  : first == 'T' ? WATCH_TIMER
		  : first == 'I' ? WATCH_IRQWORK
				 : WATCH_VECTOR,
		  0);
	return 0;
}

SEC("tp_btf/ipi_exit")
int BPF_PROG(watch_ipi_exit, const char *reason)
{
	irq_leave();
	return 0;
}

SEC("tp_btf/irq_handler_entry")
int BPF_PROG(watch_irq_entry, int irq, struct irqaction *action)
{
	struct frame *frame = irq_enter(WATCH_IRQ, 0);
	const char timer[] = "arch_timer";
	int i;

	if (!frame)
		return 0;
	bpf_probe_read_kernel_str(frame->key.what, WATCH_COMM, BPF_CORE_READ(action, name));
	frame->key.subject = irq;
	/* arm64: the local timer is an interrupt like others. */
	for (i = 0; i < sizeof(timer); i++) {
		if (frame->key.what[i] != timer[i])
			return 0;
	}
	frame->key.kind = WATCH_TIMER;
	frame->key.subject = 0;
	__builtin_memset(frame->key.what, 0, WATCH_COMM);
	return 0;
}

SEC("tp_btf/irq_handler_exit")
int BPF_PROG(watch_irq_exit, int irq)
{
	irq_leave();
	return 0;
}

/* The kernel tells the length of an NMI's handlers itself. Its time stays in whatever it came upon, too: it is rare. */
SEC("tp_btf/nmi_handler")
int BPF_PROG(watch_nmi, void *handler, __s64 ns, int handled)
{
	struct cpu_state *state = here();
	struct frame frame = {};

	if (!state || !handled)
		return 0;
	frame.key.cpu = bpf_get_smp_processor_id();
	frame.key.kind = WATCH_NMI;
	frame.key.subject = (__u64)handler;
	frame.key.stack = -1;
	account(state, &frame, bpf_ktime_get_ns() - ns, ns);
	return 0;
}

/* ---- Timers: what for ---- */

SEC("tp_btf/hrtimer_expire_entry")
int BPF_PROG(watch_hrtimer, struct hrtimer *timer)
{
	struct cpu_state *state = here();
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
	struct cpu_state *state = here();

	if (state)
		state->dep = success ? 0 : dependency;
	return 0;
}

/* ---- Softirqs ---- */

SEC("tp_btf/softirq_entry")
int BPF_PROG(watch_softirq_entry, unsigned int vec)
{
	struct cpu_state *state = here();

	if (state) {
		frame_open(state, &state->soft, WATCH_SOFTIRQ, bpf_ktime_get_ns());
		state->soft.key.detail = vec;
	}
	return 0;
}

SEC("tp_btf/softirq_exit")
int BPF_PROG(watch_softirq_exit, unsigned int vec)
{
	struct cpu_state *state = here();

	if (state)
		frame_finish(state, &state->soft);
	return 0;
}

SEC("tp_btf/timer_expire_entry")
int BPF_PROG(watch_timer, struct timer_list *timer)
{
	struct cpu_state *state = here();

	if (state && state->soft.start && !state->soft.key.subject)
		state->soft.key.subject = (__u64)BPF_CORE_READ(timer, function);
	return 0;
}

#endif /* ENTRAIN_ISOLATE_WATCH_IRQ_H */
