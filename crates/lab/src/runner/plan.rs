//! The order in which arms, configurations and loads are measured.

use entrain_lab_machine::machine::{Arch, pace::Pace};

use crate::experiment::{Arm, Configuration, Experiment, Load};

/// What the command line chose.
#[derive(Debug, Clone, Default)]
pub struct Choice {
    /// Boots instead of the experiment's.
    pub boots: Option<u32>,
    /// Arms to run beside `stock`; where none is named, all but those that run on demand.
    pub arms: Vec<String>,
    /// Fewer boots and shorter windows.
    pub quick: bool,
    /// Seed of everything that is random.
    pub seed: u64,
    /// Architecture of the machines.
    pub arch: Arch,
    /// How much slower their time passes, instead of the experiment's own pace.
    pub dilation: Option<Pace>,
}

/// One visit: an arm set up in a configuration, and the loads measured under it.
#[derive(Debug, Clone)]
pub(super) struct Visit<'a> {
    pub(super) arm: &'a Arm,
    pub(super) configuration: &'a Configuration,
    pub(super) loads: Vec<&'a Load>,
}

/// What one boot of the host machine is to measure.
#[derive(Debug, Clone)]
pub(super) struct Session<'a> {
    /// Kernel parameters that the arms of this session have beside the machine's own.
    pub(super) cmdline: &'a [String],
    /// Visits by round; within a round every arm comes once.
    pub(super) rounds: Vec<Vec<Visit<'a>>>,
}

/// Numbers that the file and the command line give together.
#[derive(Debug, Clone)]
pub(super) struct Sizes {
    pub(super) boots: u32,
    pub(super) rounds: u32,
    /// Whether the run is a quick one.
    pub(super) quick: bool,
    /// Length of every window, where `--quick` changes it.
    pub(super) seconds: Option<f64>,
    /// Seconds after which no further round is begun.
    pub(super) within: Option<f64>,
}

impl Sizes {
    pub(super) fn new(experiment: &Experiment, choice: &Choice) -> Self {
        let quick = choice.quick.then_some(&experiment.quick);
        Self {
            boots: choice.boots.or(quick.and_then(|q| q.boots)).unwrap_or(*experiment.boots.as_ref()),
            rounds: quick.and_then(|q| q.rounds).unwrap_or(*experiment.rounds.as_ref()),
            quick: choice.quick,
            seconds: quick.and_then(|q| q.seconds),
            within: quick.and_then(|q| q.within),
        }
    }

    pub(super) fn seconds(&self, load: &Load) -> f64 {
        // A scenario does a certain work; only commands are told how long to run, unless the load itself says so.
        let own = load.quick_seconds.filter(|_| self.quick);
        own.or(self.seconds.filter(|_| load.scenario.is_none())).unwrap_or(load.seconds)
    }
}

/// The sessions of one boot number: one, or several with some of the loads each where a boot must be short.
///
/// All arms of a load are measured in the same session, so that they can be paired; arms with other kernel parameters
/// need a boot of their own. The order of the visits is rotated
/// by one from round to round and from boot to boot, so that no arm always comes first, or after the same one.
pub(super) fn sessions<'a>(experiment: &'a Experiment, choice: &Choice, sizes: &Sizes, boot: u32) -> Vec<Session<'a>> {
    let loads: Vec<&Load> = experiment.loads.iter().filter(|load| !(choice.quick && load.full_only)).collect();
    let chunk = match choice.arch {
        Arch::Aarch64 => experiment.loads_per_boot.aarch64,
        Arch::X86_64 => experiment.loads_per_boot.x86_64,
    };
    let chunk = chunk.map_or(loads.len(), |n| n as usize).max(1);
    let mut cmdlines: Vec<&[String]> = Vec::new();
    for arm in arms(experiment, choice) {
        if !cmdlines.contains(&arm.cmdline.as_slice()) {
            cmdlines.push(&arm.cmdline);
        }
    }
    let turn = boot as usize % cmdlines.len().max(1);
    cmdlines.rotate_left(turn);
    let rounds = |loads: &[&'a Load], cmdline: &[String]| -> Vec<Vec<Visit<'a>>> {
        let here = |visit: &Visit| visit.arm.cmdline == cmdline;
        let round = |turn| visits(experiment, choice, loads, turn).into_iter().filter(here).collect();
        (0..sizes.rounds).map(|r| round(boot * sizes.rounds + r)).collect()
    };
    let session = |loads, cmdline| Session { cmdline, rounds: rounds(loads, cmdline) };
    let sessions = loads.chunks(chunk).flat_map(|loads| cmdlines.iter().map(move |cmdline| session(loads, *cmdline)));
    // A load that is measured under some of the arms only leaves a group without any.
    sessions.filter(|session| session.rounds.iter().any(|round| !round.is_empty())).collect()
}

/// Whether arms differ in their kernel parameters, so that one boot can't hold them all.
pub(super) fn differ(experiment: &Experiment, choice: &Choice) -> bool {
    let arms = arms(experiment, choice);
    arms.iter().any(|arm| arm.cmdline != arms[0].cmdline)
}

fn visits<'a>(experiment: &'a Experiment, choice: &Choice, loads: &[&'a Load], turn: u32) -> Vec<Visit<'a>> {
    let mut all = Vec::new();
    for configuration in &experiment.configurations {
        for arm in arms(experiment, choice) {
            if !arm.runs_in(configuration.name.as_ref()) {
                continue;
            }
            let here = |load: &&Load| load.runs_in(configuration.name.as_ref(), arm.name.as_ref());
            let loads: Vec<&Load> = loads.iter().copied().filter(here).collect();
            if !loads.is_empty() {
                all.push(Visit { arm, configuration, loads });
            }
        }
    }
    if !all.is_empty() {
        let turn = turn as usize % all.len();
        all.rotate_left(turn);
    }
    all
}

/// The arms that are run: `stock`, and the chosen ones that exist on the architecture.
pub(crate) fn arms<'a>(experiment: &'a Experiment, choice: &Choice) -> Vec<&'a Arm> {
    let chosen = |arm: &&Arm| {
        let name = arm.name.as_ref();
        let by_default = choice.arms.is_empty() && !arm.on_demand && !(choice.quick && arm.full_only);
        name == crate::experiment::STOCK || by_default || choice.arms.contains(name)
    };
    experiment.arms.iter().filter(|arm| arm.arch.contains(&choice.arch)).filter(chosen).collect()
}
