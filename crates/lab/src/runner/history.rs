//! What a run is made of, and how far it came: kept in its JSON, so that a run may be split.

use std::collections::BTreeMap;

use anyhow::bail;
use entrain_lab_machine::machine::MachineSpec;
use entrain_results::provenance::Provenance;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::plan::{Choice, Sizes, arms};
use super::record::Gathered;
use crate::experiment::Experiment;
use crate::reading::Nature;
use crate::report::Report;
use crate::sameness;

/// What must be the same in all parts of a run, and what is done of it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct History {
    /// Arms that are run.
    pub arms: Vec<String>,
    /// Rounds of a boot.
    pub rounds: u32,
    /// Length of each load's window in seconds.
    pub windows: BTreeMap<String, f64>,
    /// Samples that a load takes in each round; empty in what older programs wrote.
    #[serde(default)]
    pub samples: BTreeMap<String, u32>,
    /// The [`MachineSpec`] with its guests, as JSON: only compared and kept.
    pub machine: Value,
    /// How far the boots came.
    pub done: Vec<Done>,
    /// Samples thrown away because a neighbour took the CPU.
    pub thrown: u32,
    /// What the runner noted; a report's notes have more, which follow from its figures.
    pub notes: Vec<String>,
}

/// Rounds that one session of a boot has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    /// Number of the boot in the plan, from 0; a boot that was lost and repeated keeps it.
    pub boot: u32,
    /// Number of the session, from 0: loads and arms that share a machine.
    pub session: u32,
    /// The first so many rounds.
    pub rounds: u32,
}

impl History {
    /// One of a run that has not begun. `spec` has its guests.
    pub(super) fn new(experiment: &Experiment, choice: &Choice, spec: &MachineSpec) -> Self {
        let sizes = Sizes::new(experiment, choice);
        let loads = experiment.loads.iter().filter(|load| !(choice.quick && load.full_only));
        Self {
            arms: arms(experiment, choice).into_iter().map(|arm| arm.name.as_ref().clone()).collect(),
            rounds: sizes.rounds,
            windows: loads.clone().map(|load| (load.name.as_ref().clone(), sizes.seconds(load))).collect(),
            samples: loads.map(|load| (load.name.as_ref().clone(), load.samples)).collect(),
            machine: sameness::machine(spec),
            ..Self::default()
        }
    }

    /// Rounds that are done of a session.
    pub(super) fn rounds_of(&self, boot: u32, session: u32) -> u32 {
        let done = self.done.iter().find(|done| (done.boot, done.session) == (boot, session));
        done.map_or(0, |done| done.rounds)
    }

    /// Notes that the first `rounds` of a session are done.
    pub(super) fn did(&mut self, boot: u32, session: u32, rounds: u32) {
        match self.done.iter_mut().find(|done| (done.boot, done.session) == (boot, session)) {
            Some(done) => done.rounds = done.rounds.max(rounds),
            None => self.done.push(Done { boot, session, rounds }),
        }
    }
}

/// What an earlier part of a run gathered, for [`super::go_on`]. `spec` is the host machine without its guests,
/// `kernel` the release of the kernel that it will boot.
///
/// # Errors
/// The earlier part is of another experiment, version, kernel or machine, or had other arms, windows or another seed.
pub fn earlier(
    report: Report,
    experiment: &Experiment,
    choice: &Choice,
    spec: &MachineSpec,
    kernel: &str,
    built: &Provenance,
) -> anyhow::Result<Gathered> {
    let Some(old) = report.run else { bail!("the program that wrote it could not split runs") };
    let now = History::new(experiment, choice, &MachineSpec { guests: super::guests(experiment), ..spec.clone() });
    let windows = |windows: &BTreeMap<String, f64>| {
        windows.iter().map(|(load, seconds)| format!("{load} {seconds} s")).collect::<Vec<_>>().join(", ")
    };
    let samples = |samples: &BTreeMap<String, u32>| {
        samples.iter().map(|(load, n)| format!("{load} {n}")).collect::<Vec<_>>().join(", ")
    };
    let same = sameness::difference::<str>;
    let mut differs: Vec<String> = [
        same("experiment", &report.experiment, experiment.name.as_ref()),
        same("version", &report.version, env!("CARGO_PKG_VERSION")),
        same("schedulers' sources", &report.schedulers, &built.schedulers),
        // A machine that never came up told no release.
        same("kernel", &report.machine.kernel, kernel).filter(|_| !report.machine.kernel.is_empty()),
        sameness::difference("--seed", &report.seed, &choice.seed),
        sameness::difference("--quick", &report.quick, &choice.quick),
        same("arms", &old.arms.join(", "), &now.arms.join(", ")),
        sameness::difference("rounds", &old.rounds, &now.rounds),
        same("windows", &windows(&old.windows), &windows(&now.windows)),
        sameness::difference("samples", &samples(&old.samples), &samples(&now.samples))
            .filter(|_| !old.samples.is_empty()),
    ]
    .into_iter()
    .flatten()
    .collect();
    differs.extend(sameness::of_machines(old.machine.clone(), &now.machine));
    if !differs.is_empty() {
        bail!("it is of another run ({}): give the same options, or another file", differs.join("; "));
    }
    let natures = report.summary.iter().map(|row| {
        let nature = Nature { better: row.better, counted: row.counted };
        ((row.load.clone(), row.metric.clone()), nature)
    });
    let mut gathered = Gathered {
        natures: natures.collect(),
        boots_ok: report.boots.ok,
        losses: report.boots.losses,
        visits: report.boots.by_arm.iter().map(|(arm, visits)| (arm.clone(), visits.visits)).collect(),
        failures: report.failures,
        thrown: old.thrown,
        notes: old.notes.clone(),
        kernel: report.machine.kernel,
        emulated: (report.machine.accel != "none").then(|| report.machine.accel == "tcg"),
        dilation: if report.samples.is_empty() { 0.0 } else { report.machine.dilation },
        started: Some(report.started),
        seconds: report.seconds,
        samples: report.samples,
        history: old,
        ..Gathered::default()
    };
    if report.commit != built.commit {
        let (boots, then, now) = (gathered.last_boot(), &report.commit, &built.commit);
        gathered.note(&format!("boots until {boots} were made at commit {then}, later ones at {now}"));
    }
    Ok(gathered)
}
