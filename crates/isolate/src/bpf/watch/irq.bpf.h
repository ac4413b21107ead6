/* SPDX-License-Identifier: GPL-2.0-only */
/* Interrupts of all kinds, from begin to end. */
#ifndef ENTRAIN_ISOLATE_WATCH_IRQ_H
#define ENTRAIN_ISOLATE_WATCH_IRQ_H

#include "config.h"
#include "sender.bpf.h"

static __always_inline struct frame *irq__enter(__u32 kind, __u32 detail)
{
	struct cpu_state *state = cpu_state__here();
	struct sender *sender;
	struct ipi ipi = {.kind = kind};

	if (!state)
		return NULL;
	frame__open(state, &state->irq, kind, bpf_ktime_get_ns());
	state->irq.key.detail = detail;
	if (kind == WATCH_CALL || kind == WATCH_RESCHED) {
		ipi.cpu = state->irq.key.cpu;
		sender = bpf_map_lookup_elem(&sent, &ipi);
		if (sender) {
			sender__put(&state->irq, sender);
			bpf_map_delete_elem(&sent, &ipi);
		}
	}
	return &state->irq;
}

static __always_inline void irq__leave(void)
{
	struct cpu_state *state = cpu_state__here();

	if (!state)
		return;
	if (state->irq.key.kind == WATCH_TIMER && (!tick_handler || state->irq.key.subject == tick_handler))
		state->irq.key.detail = state->dep;
	frame__finish(state, &state->irq);
}

#define VECTOR(name, kind, detail)                                                                                     \
	SEC("tp_btf/" #name "_entry")                                                                                  \
	int BPF_PROG(watch_##name##_entry, int vector)                                                                 \
	{                                                                                                              \
		irq__enter(kind, detail);                                                                              \
		return 0;                                                                                              \
	}                                                                                                              \
	SEC("tp_btf/" #name "_exit")                                                                                   \
	int BPF_PROG(watch_##name##_exit, int vector)                                                                  \
	{                                                                                                              \
		irq__leave();                                                                                          \
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
	irq__enter(first == 'R'	  ? WATCH_RESCHED
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
	irq__leave();
	return 0;
}

SEC("tp_btf/irq_handler_entry")
int BPF_PROG(watch_irq_entry, int irq, struct irqaction *action)
{
	struct frame *frame = irq__enter(WATCH_IRQ, 0);
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
	irq__leave();
	return 0;
}

/* The kernel tells the length of an NMI's handlers itself. Its time stays in whatever it came upon, too: it is rare. */
SEC("tp_btf/nmi_handler")
int BPF_PROG(watch_nmi, void *handler, __s64 ns, int handled)
{
	struct cpu_state *state = cpu_state__here();
	struct frame frame = {};

	if (!state || !handled)
		return 0;
	frame.key.cpu = bpf_get_smp_processor_id();
	frame.key.kind = WATCH_NMI;
	frame.key.subject = (__u64)handler;
	frame.key.stack = -1;
	total__add(state, &frame, bpf_ktime_get_ns() - ns, ns);
	return 0;
}

#endif /* ENTRAIN_ISOLATE_WATCH_IRQ_H */
