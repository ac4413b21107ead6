//! The lab's experiments as worlds: the same machines, guests and arms, and its loads as programs.

pub mod loads;
pub mod measured;
pub mod validate;

use crate::kernel::topology::Shape;
use crate::scenario::{Arm, Measured, Setup, guest, host, named_tasks};
use crate::world::{Policy, World};
use loads::Load;

/// An arm of the lab.
#[derive(Clone, Copy, Debug)]
pub struct LabArm {
    /// Its name in the lab's results.
    pub name: &'static str,
    /// Who schedules what.
    pub arm: Arm,
    /// vCPUs that are online in each guest; `None`: all.
    pub online: Option<u32>,
}

/// The arms, stock first.
pub const ARMS: &[LabArm] = &[
    LabArm { name: "stock", arm: Arm::STOCK, online: None },
    LabArm { name: "offline-to-one", arm: Arm::STOCK, online: Some(1) },
    LabArm { name: "entrain-host", arm: Arm::REGISTERED, online: None },
    LabArm { name: "entrain-always", arm: Arm::GUEST, online: None },
    LabArm { name: "entrain-both", arm: Arm::BOTH, online: None },
];

/// A configuration: guests alike on a host.
#[derive(Clone, Copy, Debug)]
pub struct Machines {
    /// CPUs of the host.
    pub pcpus: u32,
    /// Guests.
    pub guests: u32,
    /// vCPUs of each.
    pub vcpus: u32,
}

/// Two guests of four vCPUs on two pCPUs: `4x` of overcommit, and the machines of holders, yield and jitter.
pub const FOUR_TIMES: Machines = Machines { pcpus: 2, guests: 2, vcpus: 4 };
/// One guest of two vCPUs on two pCPUs: `alone`, and `under` of idle-hint.
pub const ALONE: Machines = Machines { pcpus: 2, guests: 1, vcpus: 2 };

/// One load of an experiment.
pub struct Experiment {
    /// The experiment and its load, as `overcommit/lock`.
    pub name: &'static str,
    /// What it is.
    pub about: &'static str,
    /// Where.
    pub machines: Machines,
    /// What each guest does.
    pub load: fn(&mut World, crate::world::MachineId, u32) -> Vec<Measured>,
    /// What is measured of it.
    pub metrics: &'static [loads::Metric],
    /// Whether a thread of the host computes on one CPU after the other.
    pub noise: bool,
}

/// All loads that are modelled.
pub const EXPERIMENTS: &[Experiment] = &[
    Experiment::of("overcommit/dbench", "clients of a file server, one a vCPU", FOUR_TIMES, Load::DBENCH),
    Experiment::of(
        "overcommit/hackbench",
        "messages through pipes, in rounds of processes",
        FOUR_TIMES,
        Load::HACKBENCH,
    ),
    Experiment::of(
        "overcommit/hackbench-threads",
        "messages through pipes, in rounds of threads",
        FOUR_TIMES,
        Load::HACKBENCH_THREADS,
    ),
    Experiment::of("overcommit/pipes", "messages through pipes without an end", FOUR_TIMES, Load::PIPES),
    Experiment::of("overcommit/lock", "threads on one kernel lock, one a vCPU", FOUR_TIMES, Load::LOCK),
    Experiment::of("overcommit/shootdown", "an interrupt that each CPU answers", FOUR_TIMES, Load::SHOOTDOWN),
    Experiment::of("overcommit/wake", "a message thread that wakes workers", FOUR_TIMES, Load::WAKE),
    Experiment::of("overcommit/tick", "a 2 ms clock on each vCPU", FOUR_TIMES, Load::TICK),
    Experiment::of("holders/lock", "two guests that fight for locks", FOUR_TIMES, Load::LOCK),
    Experiment::of("yield/lock", "the same, for its yields", FOUR_TIMES, Load::LOCK),
    Experiment::of("jitter/tick", "a 2 ms clock on each vCPU beside a contended lock", FOUR_TIMES, Load::TICK_BESIDE),
    Experiment::of(
        "jitter/clock-beside",
        "a 2 ms clock in one guest, a contended lock in the other",
        FOUR_TIMES,
        Load::CLOCK_BESIDE,
    ),
    Experiment::of("alone/dbench", "a guest alone: a file server's clients", ALONE, Load::DBENCH),
    Experiment::of("alone/pipes", "the same: messages through pipes without an end", ALONE, Load::PIPES),
    Experiment::of("alone/lock", "the same: threads on one kernel lock", ALONE, Load::LOCK),
    Experiment::of("alone/shootdown", "the same: an interrupt that each CPU answers", ALONE, Load::SHOOTDOWN),
    Experiment::of("alone/wake", "the same: a message thread that wakes workers", ALONE, Load::WAKE),
    Experiment::of("alone/wake-long", "the same with requests of 10 µs", ALONE, Load::WAKE_LONG),
    Experiment::of("alone/spin", "the same: arithmetic", ALONE, Load::SPIN),
    Experiment::of("idle-hint/under", "wake-ups in a guest that is alone", ALONE, Load::WAKE),
    Experiment::of("idle-hint/over", "wake-ups in two overcommitted guests", FOUR_TIMES, Load::WAKE),
    Experiment {
        noise: true,
        ..Experiment::of("idle-hint/noise", "wake-ups beside a wandering hog", ALONE, Load::WAKE)
    },
];

impl Experiment {
    const fn of(name: &'static str, about: &'static str, machines: Machines, load: Load) -> Self {
        Self { name, about, machines, load: load.add, metrics: load.metrics, noise: false }
    }

    /// Its world under an arm.
    pub fn build(&self, seed: u64, arm: &LabArm) -> Setup {
        let Machines { pcpus, guests, vcpus } = self.machines;
        let mut world = host(seed, Shape::flat(pcpus), arm.arm);
        let mut measured = Vec::new();
        for g in 0..guests {
            let online = arm.online.unwrap_or(vcpus);
            let m = guest(&mut world, online, arm.arm);
            // One thread for each vCPU that the guest was made with, as the lab starts them.
            for mut these in (self.load)(&mut world, m, vcpus) {
                these.name = format!("guest {g} {}", these.name);
                measured.push(these);
            }
        }
        loads::housekeeping(&mut world);
        if arm.arm.host == Policy::Entrain {
            loads::daemon(&mut world);
        }
        if self.noise {
            loads::wandering_noise(&mut world, pcpus);
        }
        named_tasks(Setup { world, end: loads::LENGTH, measured })
    }
}

/// The experiment's load of a name.
pub fn named(name: &str) -> Option<&'static Experiment> {
    EXPERIMENTS.iter().find(|experiment| experiment.name == name)
}
