// SPDX-License-Identifier: GPL-2.0-only
/*
 * The host's scheduler and what watches its vCPUs, as one object: they share their maps by name. And the daemon's part
 * of pairing, as far as a simulated machine needs it.
 */
#include "helpers.h"

/* The highest level on every CPU: the same variable for all of them. */
unsigned long arch_freq_scale = 1024;
#define bpf_per_cpu_ptr(variable, cpu) ((__u32)(cpu) < sim.nr_cpus ? (variable) : NULL)

/* Tunables (const volatile) are set before a machine starts. */
#define const
#include "sched.bpf.c"
#define LICENSE observe_license
#include "observe.bpf.c"
#undef const

int __preempt_count;

/* What the tables have room for. */
__u32 sim_max_cpus = SCHED_MAX_CPUS;
__u32 sim_max_llcs = SCHED_MAX_LLCS;
__u32 sim_max_vcpus = ENTRAIN_HOST_VCPUS;

/* KVM's vCPU, of either architecture. */
struct sim_vcpu {
	struct vcpu_svm svm;
	struct vmcb vmcb;
	struct pid pid;
	struct kvm kvm;
	struct kvm_memslots slots;
	struct kvm_lapic apic;
	char apic_regs[1024];
};

void sim_vcpu_new(__s32 id, bool posts, struct sim_vcpu_fields *out)
{
	struct sim_vcpu *v = sim_alloc(sizeof(*v));
	struct kvm_vcpu *vcpu = &v->svm.vcpu;

	v->svm.vmcb = &v->vmcb;
	/* Its posted interrupts lie where this structure has none: machines of Intel's request theirs of KVM here. */
	x86_svm = !sim.intel;
	v->kvm.memslots[0] = &v->slots;
	v->apic.apicv_active = posts;
	v->apic.regs = v->apic_regs;
	vcpu->arch.apic = &v->apic;
	vcpu->kvm = &v->kvm;
	vcpu->vcpu_id = id;
	vcpu->pid = &v->pid;
	out->kvm_vcpu = vcpu;
	out->pstate = &vcpu->arch.ctxt.regs.pstate;
	out->pc = &vcpu->arch.ctxt.regs.pc;
	out->cpl = &v->vmcb.save.cpl;
	out->rflags = &v->vmcb.save.rflags;
	out->requests = &vcpu->requests;
	out->irr = posts ? (__u32 *)(v->apic_regs + APIC_IRR + APIC_IRR_STRIDE) : NULL;
	out->in_spin_loop = &vcpu->spin_loop.in_spin_loop;
}

/* The guest's kernel keeps its timer from interrupting it again. */
#define ARCH_TIMER_CTRL_IT_MASK (1 << 1)

/*
 * A vCPU leaves its CPU: `due` is when its guest's timer expires, 0 = never; `taken`: that has come, and the guest is
 * inside its interrupt: Linux has masked the timer of arm64, KVM has taken back the deadline of x86.
 */
void sim_timer(void *kvm_vcpu, __u64 due, bool taken)
{
	struct kvm_vcpu *vcpu = kvm_vcpu;

	if (sim.arm64) {
		vcpu->arch.ctxt.sys_regs[CNTV_CVAL_EL0] = due;
		vcpu->arch.ctxt.sys_regs[CNTV_CTL_EL0] =
			(due ? ARCH_TIMER_CTRL_ENABLE : 0) | (taken ? ARCH_TIMER_CTRL_IT_MASK : 0);
	} else {
		/* A TSC of 1 GHz that has been at 0 when the world began. */
		vcpu->arch.virtual_tsc_khz = ENTRAIN_MSEC;
		vcpu->arch.last_guest_tsc = sim.now;
		vcpu->arch.apic->lapic_timer.tscdeadline = taken ? 0 : due;
		vcpu->arch.apic->lapic_timer.target_expiration = due;
	}
}

/* arm64: KVM has saved the timer of the vCPU that leaves its CPU, in the thread of that one. */
void sim_timer_saved(struct task_struct *p)
{
	struct arch_timer_context timer = {.timer_id = TIMER_VTIMER};

	sim.current = p;
	host_timer(&timer);
}

/* What the daemon lays out before loading: the kind of virtualization, pCPUs and their cache domains. */
void sim_topology(__u32 cpu, __u32 llc)
{
	struct entrain_pcpu *pcpu;

	if (cpu == 0) {
		SIM_RESIZE(&pcpus, sim.nr_cpus);
		SIM_RESIZE(&domains, sim.nr_cpus);
		x86_svm = true;
		/* The counter of arm64 counts ns. */
		counter_hz = ENTRAIN_SEC;
	}
	if (cpu < SCHED_MAX_CPUS)
		llc_of[cpu] = llc;
	pcpu = bpf_map_lookup_elem(&pcpus, &cpu);
	pcpu->domain = llc;
	pcpu->capacity = pcpu->perf = ENTRAIN_CAPACITY_SCALE;
}

static void bpfland_forget(void);
static void bpfland_forget_task(struct task_struct *p);

/*
 * The scheduler's programs are unloaded, its maps and globals with them; what observes stays. Whoever adds a map or a
 * global that the scheduler writes adds it here, too.
 */
void sim_forget(void)
{
	SIM_FORGET(&sched_alarms);
	SIM_FORGET(&sched_total);
	SIM_FORGET(&sched_classes);
	SIM_FORGET(&sched_perf_timer);
	SIM_FORGET(&sched_perf_cpus);
	SIM_FORGET(&limits);
	SIM_FORGET(&limit_cpus);
	memset(sched_cpus, 0, sizeof(sched_cpus));
	memset(sched_vms, 0, sizeof(sched_vms));
	memset(queues, 0, sizeof(queues));
	memset(cgroup_nodes, 0, sizeof(cgroup_nodes));
	memset(&limited, 0, sizeof(limited));
	balance_at = balance_mean = 0;
	class_epoch = perf_settling = cpu_changes = 0;
	bpfland_forget();
}

/* The same for what they kept of a task and of a cgroup. */
void sim_forget_task(struct task_struct *p)
{
	bpf_task_storage_delete(&sched_tasks, p);
	bpfland_forget_task(p);
}

void sim_forget_group(struct cgroup *c)
{
	sim_storage_delete((void **)&sched_cgroups, ((struct sim_cgroup *)c)->storage);
}

/* What a task's extensions come to, and their bounds. */
struct sim_budget {
	__u64 debt, extended, repaid, event, burst, rate_ppm;
};

void sim_budget(struct task_struct *p, struct sim_budget *out)
{
	struct task_ctx *t = task__ctx(p);
	struct entrain_extend_limits limits;

	if (!t)
		return;
	limits = task__extend_limits(t);
	out->debt = t->extend.debt;
	out->extended = t->pub.stats.of[SCHED_EXTENDED_NS];
	out->repaid = t->pub.stats.of[SCHED_REPAID_NS];
	out->event = limits.event;
	out->burst = limits.burst;
	out->rate_ppm = limits.rate_ppm;
}

/* How far a task is ahead of the clock that it is measured by on a CPU, for a trace. */
__s64 sim_ahead(struct task_struct *p, __u32 cpu)
{
	struct task_ctx *t = task__ctx(p);
	struct cpu_ctx *c = cpu__ctx(cpu);

	return t && c ? (__s64)(t->pub.vtime - cpu__clock(c)) : 0;
}

/* All CPUs have been named; again when some have come or gone (`running`), as the daemon's heartbeat does it. */
void sim_arrange(__u32 running)
{
	struct sched_arrange_args args = {.running = running};

	host_arrange(&args);
}

/* The daemon has found a vCPU and its thread. Returns 0 or a negative error number. */
__s32 sim_track(__u32 index, struct task_struct *task, void *kvm_vcpu)
{
	struct entrain_vcpu *vcpu = bpf_map_lookup_elem(&vcpus, &index);
	struct entrain_track_args args = {.index = index, .tid = task->pid};

	if (!vcpu)
		return -ENOENT;
	vcpu->tid = task->pid;
	vcpu->tgid = task->tgid;
	vcpu->kvm_vcpu = (__u64)kvm_vcpu;
	vcpu->state = ENTRAIN_VCPU_PREEMPTED;
	track(&args);
	return args.error;
}

/* Pairs a tracked vCPU with the page that its guest offers. `preempt` is the guest's preempt count. */
void sim_pair(__u32 index, struct task_struct *task, struct entrain_page *page, __u64 *preempt)
{
	struct entrain_pairing *pairing = bpf_task_storage_get(&pairings, task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	struct entrain_vcpu *vcpu = bpf_map_lookup_elem(&vcpus, &index);
	struct entrain_link_args args = {.index = index, .op = ENTRAIN_LINK_OP_PAIR};
	int i;

	pairing->page = page;
	pairing->preempt64 = (struct entrain_box64 *)preempt;
	pairing->side.seed = page->link.seed;
	pairing->side.cookie = page->header.cookie;
	pairing->side.boot_id = page->header.boot_id;
	pairing->side.gpa = page->header.gpa;
	pairing->side.generation = ENTRAIN_LINK_GEN(page->link.link);
	pairing->side.epoch = bpf_ktime_get_ns();
	pairing->side.closed = 1;
	pairing->features = page->header.features;
	pairing->ready0 = vcpu->ready_ns;
	pairing->preemptions0 = vcpu->preemptions;
	pairing->preemptions_cs0 = vcpu->preemptions_cs;
	pairing->boosts0 = vcpu->boosts;
	for (i = 0; i < 8; i++)
		pairing->side.slow[i] = pairing->side.fast[i] = pairing->side.seed;
	vcpu->preempt_layout = ENTRAIN_PREEMPT_PERCPU64;
	args.expected = page->link.link;
	args.wanted = ENTRAIN_LINK(pairing->side.generation, ENTRAIN_LINK_PAIRED);
	link_step(&args);
}

/* What the daemon does every 100 ms. `entitlement` has one figure for each vCPU, 1/1024 pCPU. */
void sim_daemon_tick(__u32 vcpus_used, __u32 *entitlement)
{
	struct entrain_tick_args args = {.entries = vcpus_used};
	__u32 i;

	for (i = 0; i < vcpus_used; i++) {
		struct entrain_vcpu *vcpu = bpf_map_lookup_elem(&vcpus, &i);

		vcpu->entitlement = entitlement[i];
	}
	tick(&args);
}

#include "simple.h"
#include "bpfland.h"

static const struct sched_ext_ops *sim_scheduler(__u32 number)
{
	switch (number) {
	case 1:
		return &simple_ops;
	case 2:
		bpfland_load();
		return &bpfland_ops;
	default:
		return &entrain_ops;
	}
}
