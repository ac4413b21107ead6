//! What to do about a cause, where something is known to help, and otherwise what it belongs to.

mod ipi;
mod tables;

use serde::Serialize;

use super::interface::Kind;
use ipi::by_frames;
use tables::{ERRANDS, FUNCTIONS, IRQ, MOVE, RCU_TICK, SOFTIRQS, THREADS, TICK, UNBOUND};

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
    use super::tables::{QPW, RCU};
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
