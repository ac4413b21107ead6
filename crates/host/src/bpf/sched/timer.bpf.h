/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A guest's timer that falls due is a reason to run. A vCPU hears of its timer when it runs: KVM sets a timer of the
 * host's for one that halts, but not for one that was preempted. That one would hear of it when its turn comes, however
 * many turns of others later. So the scheduler reads when the timer of a vCPU that is preempted expires, sets its own,
 * and lets the vCPU in then, for a moment and in its own time, amid the turn of another, which goes on afterwards.
 *
 * Threat model: the guest sets its timers, to any time, always. What that buys is bounded: whoever is let in is charged
 * as ever and only while its clock is at most `timer_lead_ns` ahead of the others', so it gets its share earlier and no
 * more of it; whoever runs has been left in peace for as long as from a wake-up, and is not interrupted inside a
 * section for longer than that; and the same vCPU comes no more often than once in `timer_costs` times what a switch
 * costs, and `TIMER_AHEAD` times sooner, so that what the two switches take from the others stays small, however many
 * timers it sets.
 */
#ifndef ENTRAIN_SCHED_TIMER_BPF_H
#define ENTRAIN_SCHED_TIMER_BPF_H

#include "queue.bpf.h"

/* Those that wait in a queue and are asked for their timers: bounds the work of one look. */
#define DUE_SCAN 16

/* A guest's clock falls due beside its kernel's own tick: so many times a vCPU comes sooner than it may on average. */
#define TIMER_AHEAD 3

/* A timer's clock and the scheduler's differ by so much at most: what is due within it is due. */
#define ALARM_EARLY_NS (5 * ENTRAIN_USEC)

/*
 * arm64: a timer that is on. Its interrupt may be masked: Linux does so from when it takes the interrupt until it has
 * set the timer anew, and a vCPU that is taken off meanwhile has to serve it still.
 */
#define ARCH_TIMER_CTRL_ENABLE (1 << 0)

/*
 * arm64: ticks of the counter a second, 0 = not known; and where CLOCK_MONOTONIC was when the counter was 0. The daemon
 * writes the second time and again, as the clock is steered.
 */
__u64 counter_hz;
__s64 counter_began;

/* Ticks of a clock as ns; `hz` in units of 1 / `unit` s. */
static __always_inline __u64 ticks__ns(__u64 ticks, __u64 hz, __u64 unit)
{
	return ticks / hz * unit + ticks % hz * unit / hz;
}

/* A guest's timer. */
struct guest_timer {
	__u64 at;   /* when it expires, by CLOCK_MONOTONIC; 0 = never, or not known */
	__u64 tick; /* the same by a clock that the guest's own follows, for tick.h; 0 = not known */
};

/* The timer that KVM has just saved. */
static __always_inline struct guest_timer arm64__timer(__u64 kvm_vcpu, struct arch_timer_context *timer)
{
	struct kvm_vcpu *vcpu = (void *)kvm_vcpu;
	__u64 hz = READ_ONCE(counter_hz), control = 0, value = 0, offset = 0, *at;
	struct guest_timer expires = {};

	if (!hz)
		return expires;
	/* SAFETY: within the table, by the kernel's own numbers; a bad address reads as 0, a timer that is off. */
	at = (void *)&vcpu->arch.ctxt.sys_regs + sizeof(__u64) * bpf_core_enum_value(enum vcpu_sysreg, CNTV_CTL_EL0);
	bpf_probe_read_kernel(&control, sizeof(control), at);
	if (!(control & ARCH_TIMER_CTRL_ENABLE))
		return expires;
	at = (void *)&vcpu->arch.ctxt.sys_regs + sizeof(__u64) * bpf_core_enum_value(enum vcpu_sysreg, CNTV_CVAL_EL0);
	bpf_probe_read_kernel(&value, sizeof(value), at);
	at = timer->offset.vm_offset;
	if (at)
		bpf_probe_read_kernel(&offset, sizeof(offset), at);
	expires.tick = ticks__ns(value + offset, hz, ENTRAIN_SEC);
	expires.at = expires.tick + READ_ONCE(counter_began);
	return expires;
}

/*
 * The same on x86, where KVM always has it in memory; of a vCPU that has run for `ran` ns. KVM takes the deadline back
 * when the interrupt is delivered: one that is taken off sooner than `peace` after that may be serving it still.
 */
static __always_inline struct guest_timer x86__timer(__u64 kvm_vcpu, __u64 ran, __u64 peace)
{
	struct kvm_vcpu *vcpu = (void *)kvm_vcpu;
	struct guest_timer expires = {};
	__u64 deadline, tsc, khz, now;
	struct kvm_lapic *apic;

	if (!kvm_vcpu || !bpf_core_field_exists(struct kvm_vcpu_arch, apic) ||
	    !bpf_core_field_exists(struct kvm_vcpu_arch, last_guest_tsc) ||
	    !bpf_core_field_exists(struct kvm_lapic, lapic_timer))
		return expires;
	apic = BPF_CORE_READ(vcpu, arch.apic);
	if (!apic)
		return expires;
	now = bpf_ktime_get_ns();
	deadline = BPF_CORE_READ(apic, lapic_timer.tscdeadline);
	khz = BPF_CORE_READ(vcpu, arch.virtual_tsc_khz);
	if (!deadline || !khz) {
		/* Of a timer that has fired nobody takes this back. */
		deadline = BPF_CORE_READ(apic, lapic_timer.target_expiration);
		expires.at = entrain_min(entrain_sub(now, deadline), ran) < peace ? deadline : 0;
		return expires;
	}
	tsc = BPF_CORE_READ(vcpu, arch.last_guest_tsc);
	expires.tick = ticks__ns(deadline, khz, ENTRAIN_MSEC);
	expires.at = now + ticks__ns(entrain_sub(deadline, tsc), khz, ENTRAIN_MSEC);
	return expires;
}

/* A function of its own for the verifier. */
__noinline int tick__alone(struct entrain_tick *tick __arg_nonnull, __u64 at)
{
	return entrain_tick_alone(tick, at);
}

/*
 * Whether nobody in the guest waits for its timer. Where the operator's class, as it was when the vCPU was queued last,
 * has a target, somebody may always do.
 */
static __always_inline bool task__ticks(struct task_ctx *t, __u64 at)
{
	return use_tick && at && tick__alone(&t->tick, at) && t->class.latency == SCHED_CLASS_DEFAULT;
}

/*
 * From when on, by the scheduler's clock, a vCPU is to be let in for its timer, which expires `at` by CLOCK_MONOTONIC;
 * 0 = never. That is `look_costs` switches later, since the timers of a guest's vCPUs expire at once: whoever runs
 * takes his own first, and would else wait to be let in for it himself. A timer that is far away, or was due long ago
 * and not cared for, is none; nor is the guest's tick, where that is all.
 */
#define TIMER_FAR_NS ENTRAIN_SEC

static __always_inline __u64 timer__due(const struct cpu_ctx *c, struct task_ctx *t, struct guest_timer expires,
					__u64 now)
{
	__s64 left;

	if (!expires.at || task__ticks(t, expires.tick))
		return 0;
	left = expires.at - bpf_ktime_get_ns();
	return left < (__s64)TIMER_FAR_NS && left > -(__s64)TIMER_FAR_NS ? now + left + cpu__look_ns(c) : 0;
}

/*
 * After how many ns the clocks of those who want this CPU have come so much further, if all go on as they do; they move
 * by steps, and to ask again at once is in vain. A function of its own for the verifier.
 */
__noinline __u64 cpu__comes_after(__u32 cpu, __u64 vtime)
{
	const struct cpu_ctx *c = cpu__ctx(cpu);

	return entrain_max(entrain_time_of(vtime, cpu__load(c)), cpu__peace(c));
}

/* How often a vCPU is let in for its timer, on average: once in so many ns. */
static __always_inline __u64 timer__again(const struct cpu_ctx *c)
{
	return cpu__costs(c, timer_costs, timer_again_ns);
}

/*
 * From when on a task that waits may have the CPU for the sake of its timer; one whose clock is too far ahead, when
 * those of the others have come far enough. `again`: how long after the time before, on average.
 */
static __always_inline __u64 timer__admits(const struct task_ctx *t, __u32 cpu, __u64 clock, __u64 again, __u64 now)
{
	__u64 lead = clock + task__vtime(t, timer_lead_ns);

	if (entrain_before(lead, t->pub.vtime))
		return now + cpu__comes_after(cpu, t->pub.vtime - lead);
	return entrain_max(t->due, entrain_sub(t->timer_at, TIMER_AHEAD * again));
}

/* One whose timer was the first to be due waits here no more: the next of those that do. */
__noinline int cpu__expects_anew(__s32 cpu)
{
	struct cpu_ctx *c = cpu__ctx(cpu);
	struct task_struct *p;
	__u32 seen = 0;

	c->due = 0;
	bpf_for_each (scx_dsq, p, DSQ_CPU(cpu), 0) {
		struct task_ctx *t = task__ctx(p);

		if (seen++ >= DUE_SCAN)
			break;
		if (t)
			cpu__expects(c, t->due);
	}
	return 0;
}

/*
 * Of those that wait here and whose timers are due, the one whose was first goes next. Returns whether there is one. A
 * function of its own for the verifier.
 */
__noinline int cpu__due_goes_next(__s32 cpu, __u64 now)
{
	struct cpu_ctx *c = cpu__ctx(cpu);
	__u64 clock, again, first = 0, tid = 0;
	struct task_struct *p;
	__u32 seen = 0;

	if (!c->due || entrain_before(now + ALARM_EARLY_NS, c->due) || cpu__has_next(c, now))
		return 0;
	clock = cpu__clock(c);
	again = timer__again(c);
	c->due = 0;
	bpf_for_each (scx_dsq, p, DSQ_CPU(cpu), 0) {
		struct task_ctx *t = task__ctx(p);
		__u64 at;

		if (seen++ >= DUE_SCAN)
			break;
		at = t && t->due ? timer__admits(t, cpu, clock, again, now) : 0;
		if (!at)
			continue;
		if (entrain_before(now + ALARM_EARLY_NS, at)) {
			cpu__expects(c, at);
			continue;
		}
		if (tid)
			cpu__expects(c, entrain_before(t->due, first) ? first : t->due);
		if (!tid || entrain_before(t->due, first)) {
			first = t->due;
			tid = p->scx.tid;
		}
	}
	if (!tid)
		return 0;
	cpu__put_next(c, tid, STAY_FOR_TIMER, now);
	return 1;
}

#endif /* ENTRAIN_SCHED_TIMER_BPF_H */
