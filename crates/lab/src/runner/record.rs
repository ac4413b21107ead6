//! What a run gathers.

use std::collections::BTreeMap;
use std::path::PathBuf;

use entrain_lab_machine::LabError;
use entrain_results::provenance::Provenance;
use serde::{Deserialize, Serialize};

use super::history::History;
use super::sample::{QUIET_SHARE, Taken};
use crate::reading::{Nature, Natures, Sample};

/// A boot that was lost.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Loss {
    /// Its number.
    pub boot: u32,
    /// The arm that was set up; none while booting.
    pub arm: Option<String>,
    /// The load that ran.
    pub load: Option<String>,
    /// Class of the fault.
    pub class: String,
    /// Whether the emulator is known to cause such a fault by itself.
    pub emulator: bool,
    /// What was seen.
    pub detail: String,
    /// The console's last lines.
    pub console: Vec<String>,
    /// The file with what the machine said of itself, of something that did not end in its time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evidence: Option<PathBuf>,
}

impl Loss {
    pub(super) fn new(boot: u32, arm: Option<String>, load: Option<String>, error: &LabError, livelocks: bool) -> Self {
        let (class, emulator, detail, console) = match error {
            LabError::Fault(fault) => {
                let detail = format!("{}: {}", fault.who, fault.detail);
                (fault.class.name().to_owned(), fault.is_emulator(), detail, fault.console.clone())
            }
            LabError::Deadline { .. } => ("deadline".to_owned(), livelocks, error.to_string(), Vec::new()),
            other => ("arm".to_owned(), false, other.to_string(), Vec::new()),
        };
        Self { boot, arm, load, class, emulator, detail, console, evidence: None }
    }

    /// In one line.
    pub fn headline(&self) -> String {
        let place = match (&self.arm, &self.load) {
            (Some(arm), Some(load)) => format!("in {load} under {arm}"),
            (Some(arm), None) => format!("while setting up {arm}"),
            _ => "while booting".to_owned(),
        };
        format!("{} {place} ({})", self.class, self.detail)
    }
}

/// A command of the experiment that did not do what it should, on a machine that was well.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    /// The boot.
    pub boot: u32,
    /// The arm.
    pub arm: String,
    /// The load, or what was done.
    pub load: String,
    /// What happened.
    pub message: String,
}

/// Everything that a run has gathered.
#[derive(Debug, Clone, Default)]
pub struct Gathered {
    /// All samples, as they came.
    pub samples: Vec<Sample>,
    /// What every metric is, by load and metric.
    pub natures: Natures,
    /// Boots that went through.
    pub boots_ok: u32,
    /// Boots that were lost.
    pub losses: Vec<Loss>,
    /// Visits by arm, to compare lost boots with.
    pub visits: BTreeMap<String, u32>,
    /// What failed on machines that were well.
    pub failures: Vec<Failure>,
    /// Samples thrown away because a neighbour took the CPU.
    pub thrown: u32,
    /// Things worth knowing.
    pub notes: Vec<String>,
    /// Why the run ended early.
    pub fatal: Option<String>,
    /// The user stopped it.
    pub cancelled: bool,
    /// What the programs were built from.
    pub built: Provenance,
    /// Release of the machines' kernel.
    pub kernel: String,
    /// Whether the host machine was emulated; none where it never came up.
    pub emulated: Option<bool>,
    /// How many times slower than the computer's the machines' time passed while loads were measured; 0 if none came up.
    pub dilation: f64,
    /// When the first part of it began, in seconds since 1970; none where that is this part.
    pub started: Option<u64>,
    /// Time that the run took.
    pub seconds: f64,
    /// Whether boots are still to be made: what a run that is cut off leaves.
    pub unfinished: bool,
    /// What it is made of, and how far it came.
    pub history: History,
    /// Arms and loads of which there should be samples.
    pub expected: Vec<(String, String)>,
}

impl Gathered {
    pub(super) fn keep(&mut self, boot: u32, round: u32, arm: &str, load: &str, taken: Taken) {
        self.thrown += taken.thrown;
        let own = taken.readings.into_iter().map(|reading| (reading, false));
        let counted = taken.counted.into_iter().map(|reading| (reading, true));
        for (reading, counted) in own.chain(counted) {
            let nature = Nature { better: reading.better, counted };
            self.natures.entry((load.to_owned(), reading.metric.clone())).or_insert(nature);
            self.samples.push(Sample {
                boot,
                arm: arm.to_owned(),
                load: load.to_owned(),
                metric: reading.metric,
                unit: reading.unit,
                value: reading.value,
                round,
                share: taken.share,
                noisy: taken.share < QUIET_SHARE,
                speed: taken.speed,
            });
        }
    }

    /// The greatest number that a boot had.
    pub(super) fn last_boot(&self) -> u32 {
        let samples = self.samples.iter().map(|sample| sample.boot).max().unwrap_or(0);
        samples.max(self.boots_ok + self.losses.len() as u32)
    }

    /// Notes something once.
    pub(super) fn note(&mut self, text: &str) {
        if !self.notes.iter().any(|one| one == text) {
            self.notes.push(text.to_owned());
        }
    }

    /// Arms and loads that have no sample though they should.
    pub fn missing(&self) -> Vec<(String, String)> {
        let have = |arm: &str, load: &str| self.samples.iter().any(|s| s.arm == arm && s.load == load);
        self.expected.iter().filter(|(arm, load)| !have(arm, load)).cloned().collect()
    }
}
