//! What comes out of a run: the JSON, the terminal's tables and the HTML page all show this one structure.

pub mod check;
pub mod file;
pub mod html;
pub mod markdown;
pub mod readme;
mod short;
pub mod stored;
pub mod summary;
pub mod table;
mod words;

use std::collections::BTreeMap;

use entrain_lab_machine::machine::{Arch, Cgroups, MachineSpec};
use entrain_results::provenance::UNKNOWN;
use serde::{Deserialize, Serialize};

pub use self::check::CheckResult;
pub use self::summary::{Compared, Row, Share};
use crate::experiment::Experiment;
use crate::reading::Sample;
use crate::runner::{Choice, Failure, Gathered, History, Loss};

/// Version of the JSON. It grows only when a field changes its meaning or goes away; new fields may come at any time.
pub const SCHEMA: u32 = 1;

/// Missing loads that are named one by one.
const MISSING: usize = 8;

/// A whole report. Its JSON is described in docs/experiments.md.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Name of the experiment.
    pub experiment: String,
    /// Its title.
    pub title: String,
    /// What it asks.
    pub description: String,
    /// Version of Entrain.
    #[serde(default = "unknown")]
    pub version: String,
    /// The git commit that was built, with `-dirty` where the sources differed from it; "unknown" where nobody wrote it
    /// down.
    #[serde(default = "unknown")]
    pub commit: String,
    /// Digest of the schedulers' sources that were built.
    #[serde(default = "unknown")]
    pub schedulers: String,
    /// What it ran on.
    pub machine: MachineFacts,
    /// Boots.
    pub boots: Boots,
    /// All samples.
    pub samples: Vec<Sample>,
    /// By load, metric and arm.
    pub summary: Vec<Row>,
    /// Configurations against each other.
    pub comparisons: Vec<Share>,
    /// What had to hold.
    pub checks: Vec<CheckResult>,
    /// What failed on machines that were well.
    pub failures: Vec<Failure>,
    /// Things worth knowing.
    pub notes: Vec<String>,
    /// What each arm is, in the experiment's order.
    pub arms: Vec<(String, String)>,
    /// What each configuration is, in the experiment's order.
    pub configurations: Vec<(String, String)>,
    /// What each load is, by label.
    pub loads: BTreeMap<String, String>,
    /// Whether it was a quick run, which is a look and no result.
    #[serde(default)]
    pub quick: bool,
    /// Whether every arm and load has been measured and nothing ended the run early.
    pub complete: bool,
    /// Seed of load and bootstrap.
    pub seed: u64,
    /// When the run began, in seconds since 1970.
    pub started: u64,
    /// How long it took, in seconds.
    pub seconds: f64,
    /// What it is made of and how far it came, for `--continue`; none in reports from before runs could be split.
    #[serde(default)]
    pub run: Option<History>,
}

/// The dilation of reports from before there was any.
fn plain() -> f64 {
    1.0
}

/// What reports from before it was written down say.
fn unknown() -> String {
    UNKNOWN.to_owned()
}

/// What a run ran on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MachineFacts {
    /// Architecture of host machine and guests.
    pub arch: Arch,
    /// How the host machine's CPUs are made: `tcg` or `kvm`.
    pub accel: String,
    /// CPUs of the host machine.
    pub pcpus: u32,
    /// Its memory in MiB.
    pub memory_mib: u32,
    /// Whether its kernel is PREEMPT_RT.
    pub rt: bool,
    /// Where its guests' QEMUs lay among its cgroups; reports of old do not say.
    #[serde(default)]
    pub cgroups: Option<Cgroups>,
    /// Release of its kernel.
    pub kernel: String,
    /// How many times slower than the development machine's its time passed while loads were measured.
    #[serde(default = "plain")]
    pub dilation: f64,
    /// Guests: name, vCPUs, memory in MiB.
    pub guests: Vec<(String, u32, u32)>,
    /// CPUs of the development machine.
    pub development_cpus: u32,
    /// Model of the development machine's CPU.
    pub development_cpu: String,
    /// Version of entrain.
    pub entrain: String,
}

/// Boots that went through, and those that did not.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Boots {
    /// Went through.
    pub ok: u32,
    /// Were lost.
    pub lost: u32,
    /// The lost ones, one by one.
    pub losses: Vec<Loss>,
    /// By arm: how often it was set up, and how many boots were lost under it.
    pub by_arm: BTreeMap<String, Visits>,
}

/// How one arm fared.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Visits {
    /// Times that it was set up.
    pub visits: u32,
    /// Boots lost while it was.
    pub lost: u32,
}

impl Report {
    /// Makes the report of a run. `now` is the time at its end, in seconds since 1970.
    pub fn new(experiment: &Experiment, choice: &Choice, spec: &MachineSpec, gathered: Gathered, now: u64) -> Self {
        let rows = summary::rows(experiment, &gathered.samples, &gathered.natures, choice.seed);
        let comparisons = summary::shares(experiment, &gathered.samples, &gathered.natures, choice.seed);
        let checks = check::evaluate(experiment, choice, &gathered.samples, &rows);
        let missing = gathered.missing();
        let complete = missing.is_empty() && gathered.fatal.is_none() && !gathered.cancelled && !gathered.unfinished;
        let mut report = Self {
            schema: SCHEMA,
            experiment: experiment.name.as_ref().clone(),
            title: experiment.title.clone(),
            description: experiment.description.trim().to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            commit: gathered.built.commit.clone(),
            schedulers: gathered.built.schedulers.clone(),
            machine: MachineFacts::new(experiment, spec, &gathered),
            boots: Boots::new(&gathered),
            summary: rows,
            comparisons,
            checks,
            notes: notes(&gathered, &missing),
            arms: experiment.arms.iter().map(|arm| (arm.name.as_ref().clone(), arm.title.clone())).collect(),
            configurations: (experiment.configurations.iter())
                .map(|one| (one.name.as_ref().clone(), one.title.clone()))
                .collect(),
            loads: titles(experiment),
            quick: choice.quick,
            complete,
            seed: choice.seed,
            started: gathered.started.unwrap_or_else(|| now.saturating_sub(gathered.seconds as u64)),
            seconds: gathered.seconds,
            run: Some(History { thrown: gathered.thrown, notes: gathered.notes, ..gathered.history }),
            failures: gathered.failures,
            samples: gathered.samples,
        };
        report.notes.extend(suspicions(&report.boots));
        report
    }

    /// Whether the command ends with status 0: all was measured, nothing failed, every check holds, and no arm lost more
    /// boots than stock.
    pub fn ok(&self) -> bool {
        let checks = self.checks.iter().all(|check| check.ok);
        self.complete && self.failures.is_empty() && checks && !self.boots.an_arm_loses_more_than_stock()
    }
}

impl Boots {
    fn new(gathered: &Gathered) -> Self {
        let mut by_arm: BTreeMap<String, Visits> = BTreeMap::new();
        for (arm, visits) in &gathered.visits {
            by_arm.entry(arm.clone()).or_default().visits = *visits;
        }
        for arm in gathered.losses.iter().filter_map(|loss| loss.arm.as_ref()) {
            by_arm.entry(arm.clone()).or_default().lost += 1;
        }
        let losses = gathered.losses.clone();
        Self { ok: gathered.boots_ok, lost: losses.len() as u32, losses, by_arm }
    }

    /// Whether boots were lost under an arm more often than under stock, those not counted that the emulator is known to
    /// lose by itself. One that was lost under none, or under stock as well, has been made anew.
    fn an_arm_loses_more_than_stock(&self) -> bool {
        let rate = |arm: &str| self.rate(arm, |loss| !loss.emulator);
        self.by_arm.keys().any(|arm| rate(arm) > rate(crate::experiment::STOCK))
    }

    /// Of the losses that count, how many an arm had in each of its visits.
    fn rate(&self, arm: &str, counts: impl Fn(&Loss) -> bool) -> f64 {
        let lost = self.losses.iter().filter(|loss| loss.arm.as_deref() == Some(arm) && counts(loss)).count();
        lost as f64 / f64::from(self.by_arm.get(arm).map_or(1, |visits| visits.visits.max(1)))
    }
}

impl MachineFacts {
    fn new(experiment: &Experiment, spec: &MachineSpec, gathered: &Gathered) -> Self {
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        Self {
            arch: spec.arch,
            accel: gathered.emulated.map_or("none", |emulated| if emulated { "tcg" } else { "kvm" }).to_owned(),
            pcpus: spec.pcpus,
            memory_mib: spec.memory_mib,
            rt: spec.rt,
            cgroups: Some(spec.cgroups),
            kernel: gathered.kernel.clone(),
            dilation: gathered.dilation.max(1.0),
            guests: (experiment.guests.iter())
                .map(|guest| (guest.name.as_ref().clone(), guest.vcpus, guest.memory_mib))
                .collect(),
            development_cpus: std::thread::available_parallelism().map_or(0, |n| n.get() as u32),
            development_cpu: model.map_or_else(String::new, |(_, name)| name.to_owned()),
            entrain: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }
}

fn titles(experiment: &Experiment) -> BTreeMap<String, String> {
    let mut titles = BTreeMap::new();
    for load in &experiment.loads {
        for configuration in &experiment.configurations {
            let label = experiment.label(load.name.as_ref(), configuration.name.as_ref());
            titles.insert(label, load.title.clone());
        }
    }
    titles
}

fn notes(gathered: &Gathered, missing: &[(String, String)]) -> Vec<String> {
    let mut notes = gathered.notes.clone();
    if gathered.cancelled {
        notes.push("stopped by the user: this is what had been gathered until then".to_owned());
    }
    if gathered.unfinished {
        notes.push("the run was cut off: --continue makes the boots that are missing".to_owned());
    }
    if let Some(fatal) = &gathered.fatal {
        notes.push(format!("the run ended early: {fatal}"));
    }
    if gathered.samples.is_empty() {
        notes.push("nothing was measured".to_owned());
    } else {
        notes.extend(missing.iter().take(MISSING).map(|(arm, load)| format!("no sample of {load} under {arm}")));
        if let Some(more) = missing.len().checked_sub(MISSING).filter(|more| *more > 0) {
            notes.push(format!("nor of {more} other loads and arms"));
        }
    }
    let noisy = gathered.samples.iter().filter(|sample| sample.noisy).count();
    if noisy > 0 {
        notes.push(format!(
            "{noisy} of {} figures were taken while other programs used this computer: the host machine got less than \
             90 % of the CPU time that it asked for. Read them with care, or run again on a quiet computer",
            gathered.samples.len()
        ));
    }
    notes.extend(crate::speed::uneven(&gathered.samples));
    if gathered.thrown > 0 {
        notes.push(format!(
            "{} samples were thrown away and taken anew, a busy neighbour having spoilt them",
            gathered.thrown
        ));
    }
    notes
}

/// Arms under which boots are lost clearly more often than under stock: a fault of ours may hide there.
fn suspicions(boots: &Boots) -> Vec<String> {
    let rate = |arm: &str| boots.rate(arm, |_| true);
    let worse = |(arm, visits): (&String, &Visits)| {
        let more = visits.lost >= 2 && rate(arm) > 2.0 * rate(crate::experiment::STOCK);
        more.then(|| {
            format!(
                "{} boots were lost in {} visits of {arm}, more often than under stock: look at their consoles before \
                 blaming the emulator",
                visits.lost, visits.visits
            )
        })
    };
    boots.by_arm.iter().filter_map(worse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `lost`: the arm under which a boot was lost, and whether the emulator is known for it.
    fn boots(visits: &[(&str, u32)], lost: &[(Option<&str>, bool)]) -> Boots {
        let loss = |&(arm, emulator): &(Option<&str>, bool)| Loss {
            boot: 1,
            arm: arm.map(str::to_owned),
            load: None,
            class: "deadline".to_owned(),
            emulator,
            detail: String::new(),
            console: Vec::new(),
            evidence: None,
        };
        Boots {
            ok: 1,
            lost: lost.len() as u32,
            losses: lost.iter().map(loss).collect(),
            by_arm: visits.iter().map(|&(arm, visits)| (arm.to_owned(), Visits { visits, lost: 0 })).collect(),
        }
    }

    #[test]
    fn a_lost_boot_ends_with_status_1_only_where_an_arm_loses_more_than_stock() {
        let visits = [("stock", 4), ("entrain-both", 4)];
        let worse = |lost: &[(Option<&str>, bool)]| boots(&visits, lost).an_arm_loses_more_than_stock();
        assert!(worse(&[(Some("entrain-both"), false)]));
        assert!(!worse(&[(Some("entrain-both"), true)]), "the emulator's");
        assert!(!worse(&[(Some("stock"), false)]));
        assert!(!worse(&[(None, false)]), "before any arm");
        assert!(!worse(&[(Some("stock"), false), (Some("entrain-both"), false)]));
        assert!(worse(&[(Some("stock"), false), (Some("entrain-both"), false), (Some("entrain-both"), false)]));
        let rarely =
            boots(&[("stock", 2), ("entrain-both", 4)], &[(Some("stock"), false), (Some("entrain-both"), false)]);
        assert!(!rarely.an_arm_loses_more_than_stock());
    }
}
