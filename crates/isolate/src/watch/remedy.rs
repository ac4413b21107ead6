//! What to do about a cause, where something is known to help, and otherwise what it belongs to.

use serde::Serialize;

use super::interface::Kind;

/// What is known about a cause: at most one of the two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Advice {
    /// What helps.
    pub(crate) remedy: Option<&'static str>,
    /// Why nothing is to be done about it here: another line has the remedy, or the CPU is there for it.
    pub(crate) explanation: Option<&'static str>,
}

impl Advice {
    const NONE: Advice = Advice { remedy: None, explanation: None };

    const fn help(text: &'static str) -> Advice {
        Advice { remedy: Some(text), explanation: None }
    }

    const fn note(text: &'static str) -> Advice {
        Advice { remedy: None, explanation: Some(text) }
    }

    /// Either of them.
    pub(crate) fn text(&self) -> Option<&'static str> {
        self.remedy.or(self.explanation)
    }
}

/// Tick dependencies, TICK_DEP_MASK_* of include/linux/tick.h, why each holds the tick, and what to do.
const TICK: [(u32, &str, &str); 6] = [
    (
        1,
        "CPU-time timer",
        "a process there has a CPU-time limit or timer (RLIMIT_CPU, CLOCK_PROCESS_CPUTIME_ID): remove it",
    ),
    (2, "perf events", "stop perf on this CPU; kernel.nmi_watchdog=0"),
    (4, "more than one runnable task", "see the tasks and kernel threads that run there: move or pin them elsewhere"),
    (8, "unstable clock", "boot with tsc=reliable if the TSC is sound"),
    (16, RCU_TICK, "boot with rcu_nocbs=CPUS"),
    (32, "expedited RCU", "boot with rcu_nocbs=CPUS; rcupdate.rcu_normal=1"),
];

/// The tick that RCU holds.
const RCU_TICK: &str = "RCU";

const QPW: &str =
    "PREEMPT_RT: `entrain isolate qpw` drains by the remote CPU's lock; else keep the sender from doing it";
const UNBOUND: &str = "take the CPU out of /sys/devices/virtual/workqueue/cpumask";
const RCU: &str = "boot with rcu_nocbs=CPUS and rcutree.nohz_full_patience_delay=1000 (Linux 6.12 or newer)";
const IRQ: &str = "move the interrupt: echo HOUSEKEEPING > /proc/irq/NUMBER/smp_affinity_list; irqaffinity= at boot";
const MOVE: &str = "move the task: taskset -pc HOUSEKEEPING PID, a cpuset, or isolcpus=domain,CPUS at boot";

/// By function: what is called on or queued to the CPU.
const FUNCTIONS: [(&[&str], &str); 14] = [
    (&["lru_add_drain_per_cpu", "flush_cpu_slab", "flush_cpu_sheaves", "flush_rcu_sheaf", "drain_local_"], QPW),
    (&["refresh_vm_stats", "stat_refresh"], "keep the sender from reading /proc/sys/vm/stat_refresh"),
    (&["vmstat_update"], "sysctl vm.stat_interval=120; newer kernels spare isolated CPUs"),
    (&["sync_overcommit_as"], "set vm.overcommit_memory once, before the real-time work starts"),
    (
        &["ipi_mb", "ipi_sync_core", "ipi_rseq", "ipi_sync_rq_state"],
        "membarrier: keep the sender's process off this CPU, or use its private commands only",
    ),
    (
        &["do_flush_tlb_all", "do_kernel_range_flush", "do_sync_core", "do_patch"],
        "kernel text or mappings change (BPF, ftrace, modules, vmalloc): do that before the real-time work starts",
    ),
    (
        &["flush_tlb"],
        "the sender shares its memory with a task here: no mmap, munmap or mprotect while it runs, or mlockall first",
    ),
    (&["rcu_exp_", "rcu_exp_handler"], "sysctl-like switch /sys/kernel/rcu_normal = 1: no expedited grace periods"),
    (
        &["__rdmsr_on_cpu", "__wrmsr_on_cpu", "__cpuid_smp", "aperfmperf_", "snapshot_"],
        "stop the tool that reads this CPU's registers (turbostat, monitoring, /proc/cpuinfo)",
    ),
    (&["__perf_", "remote_function", "perf_"], "no perf events on this CPU; kernel.nmi_watchdog=0"),
    (&["retrigger_next_event", "clock_was_set"], "the clock was stepped: let the time daemon slew only"),
    (&["invalidate_bh_lru"], "no BLKFLSBUF or unmount while the real-time work runs"),
    (&["netdev_", "flush_backlog"], "no network device is to be removed while the real-time work runs"),
    (&["cpu_stopper", "multi_cpu_stop"], "stop_machine or migration: see the sender"),
];

/// Kernel threads by the begin of their name.
const THREADS: [(&str, &str); 5] = [
    ("rcuc/", RCU),
    ("rcuo", "pin RCU's callback threads to housekeeping CPUs: `entrain isolate check --fix`"),
    ("migration/", "somebody moves tasks or stops machines: see the sender"),
    ("irq/", IRQ),
    ("cpuhp/", "no CPU hotplug while the real-time work runs"),
];

/// Kernel threads that do what other lines tell.
const ERRANDS: [(&str, &str); 3] = [
    ("ksoftirqd/", "see the softirqs of this CPU"),
    ("ktimers/", "see the timers of this CPU: what runs here arms them"),
    ("kworker/", "see the work items of this CPU"),
];

/// Softirqs by number (include/linux/interrupt.h): name and what to do.
const SOFTIRQS: [(&str, Option<&str>); 10] = [
    ("HI", None),
    ("TIMER", Some("what runs here arms timers; those of others stay away with nohz_full=CPUS")),
    ("NET_TX", Some("steer transmit queues (XPS) to housekeeping CPUs")),
    ("NET_RX", Some("steer receive queues: affinity of the device's interrupts, RPS")),
    ("BLOCK", Some("isolcpus=managed_irq,CPUS at boot")),
    ("IRQ_POLL", None),
    ("TASKLET", Some("move the device's interrupt: /proc/irq/NUMBER/smp_affinity_list")),
    ("SCHED", Some("no load balancing here: isolcpus=domain,CPUS, or an isolated cpuset partition")),
    ("HRTIMER", None),
    ("RCU", Some("boot with rcu_nocbs=CPUS")),
];

/// What a softirq is called.
pub(crate) fn softirq(number: u32) -> &'static str {
    SOFTIRQS.get(number as usize).map_or("unknown", |(name, _)| name)
}

/// Why the tick is on, in words; empty when the kernel did not say.
pub(crate) fn tick_reason(dependency: u32) -> String {
    TICK.iter().filter(|(bit, ..)| dependency & bit != 0).map(|(_, word, _)| *word).collect::<Vec<_>>().join(", ")
}

/// The facts that decide.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts<'a> {
    pub(crate) kind: Kind,
    /// Function of work, call or timer; empty where there is none.
    pub(crate) function: &'a str,
    /// Name of a task, a thread, a device.
    pub(crate) what: &'a str,
    /// `Key::detail`.
    pub(crate) detail: u32,
    /// Functions of the sender's stack.
    pub(crate) frames: &'a [String],
    /// The CPU is one of nohz_full's.
    pub(crate) nohz_full: bool,
}

/// What is known about a cause.
pub(crate) fn advice(facts: &Facts<'_>) -> Advice {
    let function = || {
        let hit = |starts: &[&str]| !facts.function.is_empty() && starts.iter().any(|s| facts.function.starts_with(s));
        FUNCTIONS.iter().find(|(starts, _)| hit(starts)).map(|(_, text)| Advice::help(text))
    };
    match facts.kind {
        Kind::Work if facts.function == "wq_barrier_func" => {
            Advice::note("goes with the work item that somebody waits for (flush)")
        }
        Kind::Work => function().or((facts.detail == 1).then_some(Advice::help(UNBOUND))).unwrap_or_default(),
        Kind::Call => function().unwrap_or_else(|| by_frames(facts.frames)),
        Kind::Resched => by_frames(facts.frames),
        Kind::IrqWork | Kind::Vector => Advice::NONE,
        Kind::Timer => timer(facts),
        Kind::Irq => Advice::help(IRQ),
        Kind::Softirq => {
            let text = SOFTIRQS.get(facts.detail as usize).and_then(|(_, text)| *text);
            text.map_or(Advice::NONE, Advice::help)
        }
        Kind::Kthread => {
            let named = |(start, _): &&(&str, &str)| facts.what.starts_with(start);
            let errand = ERRANDS.iter().find(named).map(|(_, text)| Advice::note(text));
            let known = || THREADS.iter().find(named).map(|(_, text)| Advice::help(text));
            errand.or_else(known).unwrap_or(Advice::help(
                "if it is bound to no CPU: taskset -pc HOUSEKEEPING PID, or isolcpus=domain,CPUS at boot",
            ))
        }
        Kind::Task => Advice::help(MOVE),
        Kind::Nmi => Advice::help("sysctl kernel.nmi_watchdog=0; no perf sampling on this CPU"),
        Kind::Steal => Advice::help("on the host: give this vCPU a pCPU of its own, and watch that one there"),
    }
}

/// What the sender of an IPI was about, by its stack.
fn by_frames(frames: &[String]) -> Advice {
    let in_stack = |part: &str| frames.iter().any(|frame| frame.contains(part));
    if in_stack("kvm_vcpu_kick") {
        return kick(in_stack("apic_timer_fn"), in_stack("rcuwait_wake_up"));
    }
    if in_stack("queue_work") || in_stack("insert_work") {
        return Advice::note("goes with the work item that it announces");
    }
    if in_stack("flush_tlb") {
        return Advice::help(
            "the sender shares its memory with a task here: no mmap, munmap or mprotect while it runs",
        );
    }
    if in_stack("membarrier") {
        return Advice::help("membarrier: keep the sender's process off this CPU");
    }
    if in_stack("folio_wake_bit") {
        return Advice::note("a task of this CPU waited for a page that the sender moved, read or wrote");
    }
    if in_stack("rt_spin_unlock") || in_stack("rt_mutex") {
        return Advice::note("a task of this CPU waited for a lock that the sender held");
    }
    let wakes =
        ["try_to_wake_up", "wake_up_process", "ttwu_", "wake_up_q", "wake_up_new_task"].iter().any(|f| in_stack(f));
    if wakes {
        return Advice::note("a task was woken to run here: see tasks and kernel threads of this CPU");
    }
    Advice::NONE
}

/// KVM kicks a vCPU of this CPU. `timer`: for its own local timer, which fired elsewhere. `halted`: it slept.
fn kick(timer: bool, halted: bool) -> Advice {
    match (timer, halted) {
        (true, true) => Advice::note(
            "the guest's timer, kept on a housekeeping CPU, wakes its halted vCPU: it interrupts nobody. Where that is too late: QEMU's -overcommit cpu-pm=on (it halts without leaving the guest), or kernel.timer_migration=0",
        ),
        (true, false) => Advice::help(
            "the guest's timer fires on a housekeeping CPU, which kicks the vCPU. With APICv or AVIC, kvm.pi_inject_timer and QEMU's -overcommit cpu-pm=on it is posted instead; else try kernel.timer_migration=0",
        ),
        (false, _) => Advice::note(
            "an interrupt for this vCPU, from the sender: a device, or another vCPU of its guest. Who sends that one is seen inside the guest, by `entrain isolate watch` there",
        ),
    }
}

fn timer(facts: &Facts<'_>) -> Advice {
    if facts.function.starts_with("tick_") || facts.function.is_empty() {
        let reason = TICK.iter().find(|(bit, ..)| facts.detail & bit != 0);
        return match (facts.nohz_full, reason) {
            // The callbacks of these CPUs are others' business anyway.
            (true, Some((_, word, _))) if *word == RCU_TICK => {
                Advice::note("the CPU was in the kernel for long while a grace period waited for it")
            }
            (_, Some((.., text))) => Advice::help(text),
            (false, None) => Advice::help("the tick: boot with nohz_full=CPUS"),
            (true, None) => Advice::NONE,
        };
    }
    match facts.function {
        "watchdog_timer_fn" => {
            Advice::help("boot with nowatchdog, or take the CPU out of /proc/sys/kernel/watchdog_cpumask")
        }
        "apic_timer_fn" => Advice::note("a guest's timer: it belongs to the vCPU"),
        "hrtimer_wakeup" => Advice::note("a task that runs here sleeps with a time limit: its own doing"),
        "perf_mux_hrtimer_handler" => Advice::help("no perf events on this CPU"),
        "dl_server_timer" | "dl_task_timer" => {
            Advice::help("the fair server: echo 0 > /sys/kernel/debug/sched/fair_server/cpuN/runtime")
        }
        _ => Advice::NONE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(kind: Kind) -> Facts<'static> {
        Facts { kind, function: "", what: "", detail: 0, frames: &[], nohz_full: true }
    }

    #[test]
    fn what_is_known_has_a_remedy() {
        let drain = Facts { function: "lru_add_drain_per_cpu", ..facts(Kind::Work) };
        let remedy = |facts: &Facts<'_>| advice(facts).remedy;
        assert_eq!(remedy(&drain), Some(QPW));
        assert_eq!(remedy(&Facts { function: "some_driver_work", detail: 1, ..facts(Kind::Work) }), Some(UNBOUND));
        assert_eq!(remedy(&Facts { function: "some_driver_work", ..facts(Kind::Work) }), None);
        assert_eq!(remedy(&Facts { what: "rcuc/3", ..facts(Kind::Kthread) }), Some(RCU));
        assert!(remedy(&Facts { detail: 7, ..facts(Kind::Softirq) }).unwrap().contains("isolcpus"));
    }

    #[test]
    fn the_tick_says_why_it_is_on() {
        assert_eq!(tick_reason(4 | 8), "more than one runnable task, unstable clock");
        let remedy = |facts: &Facts<'_>| advice(facts).remedy;
        let tick = Facts { function: "tick_nohz_handler", ..facts(Kind::Timer) };
        assert!(remedy(&Facts { detail: 8, ..tick }).unwrap().contains("tsc=reliable"));
        assert!(remedy(&Facts { nohz_full: false, ..tick }).unwrap().contains("nohz_full"));
        assert_eq!(remedy(&tick), None);
    }

    #[test]
    fn a_tick_for_rcu_is_explained_where_nohz_full_has_been_given() {
        let tick = Facts { function: "tick_nohz_handler", detail: 16, ..facts(Kind::Timer) };
        assert!(advice(&tick).explanation.unwrap().contains("grace period"));
        assert!(advice(&Facts { nohz_full: false, ..tick }).remedy.unwrap().contains("rcu_nocbs"));
    }

    #[test]
    fn kicks_of_a_vcpu_are_told_apart() {
        let of = |frames: &[&str]| {
            let frames: Vec<String> = frames.iter().map(|frame| (*frame).to_owned()).collect();
            advice(&Facts { frames: &frames, ..facts(Kind::Resched) })
        };
        assert!(of(&["__smp_send_reschedule", "__kvm_vcpu_kick", "apic_timer_fn"]).remedy.unwrap().contains("timer"));
        let halted = ["try_to_wake_up", "rcuwait_wake_up", "__kvm_vcpu_kick", "apic_timer_fn"];
        assert!(of(&halted).explanation.unwrap().contains("halted"));
        let other = ["rcuwait_wake_up", "__kvm_vcpu_kick", "__apic_accept_irq", "kvm_apic_send_ipi"];
        assert!(of(&other).explanation.unwrap().contains("another vCPU"));
    }

    #[test]
    fn a_task_that_waited_is_not_interrupted_by_being_woken() {
        for frame in ["folio_wake_bit", "rt_spin_unlock"] {
            let frames = ["try_to_wake_up".to_owned(), frame.to_owned()];
            let said = advice(&Facts { frames: &frames, ..facts(Kind::Resched) });
            assert!(said.remedy.is_none() && said.explanation.unwrap().contains("waited"));
        }
    }
}
