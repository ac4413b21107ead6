//! Measurements that a command's output can't give: written in Rust, named by experiment files.
//!
//! One file each. A scenario drives the machine as it likes, and leaves it as it found it: guests that it ended are
//! started again, what it loaded is unloaded.

use entrain_lab_machine::machine::Arch;
use entrain_lab_machine::{LabError, Result};
use serde::de::DeserializeOwned;

use crate::experiment::Better;
use crate::runner::{Bar, Reading, Rig};

mod beside;
mod boots;
mod channel;
mod crowd;
mod drain;
mod frequency;
mod hotplug;
mod isolated;
mod lifecycle;
mod memcheck;
mod migration;
mod patience;
mod placement;
mod product;
mod quiet;
mod rt_guest;
mod status;
mod steps;
mod trace;
mod watched;
mod weights;
mod yields;

/// All scenarios.
static SCENARIOS: &[&dyn Scenario] = &[
    &boots::Boots,
    &channel::Channel,
    &crowd::Crowd,
    &drain::Drain,
    &drain::Drained,
    &frequency::Frequency,
    &hotplug::Hotplug,
    &lifecycle::Lifecycle,
    &migration::Migration,
    &patience::Patience,
    &placement::Placement,
    &quiet::Attribution,
    &quiet::Quiet,
    &rt_guest::RtGuest,
    &steps::Steps,
    &watched::Watched,
    &yields::Yields,
];

/// One measurement written in Rust.
pub trait Scenario: Sync {
    /// Its name in experiment files.
    fn name(&self) -> &'static str;

    /// Measures once. An error of [`entrain_lab_machine::LabError::Invalid`] or `Remote` is noted as a failure of this load under this arm and
    /// the run goes on; a fault or a missed deadline ends the boot.
    fn run(&self, rig: &dyn Rig, context: &Context, samples: &mut Samples) -> Result<()>;
}

/// What a scenario is told.
#[derive(Debug, Clone)]
pub struct Context {
    /// `params` of the load in the experiment file.
    pub params: toml::Table,
    /// Architecture of host machine and guests.
    pub arch: Arch,
    /// The arm that is set up.
    pub arm: String,
    /// The configuration's name.
    pub configuration: String,
    /// Indices of the configuration's guests; the others are paused.
    pub guests: Vec<usize>,
    /// `seconds` of the load.
    pub seconds: f64,
    /// The run's seed, mixed with the boot's number.
    pub seed: u64,
    /// Where a scenario that takes longer than a few seconds says what it does.
    pub bar: Bar,
}

impl Context {
    /// The load's `params`, read as a scenario's own.
    ///
    /// # Errors
    /// They do not fit; `scenario` is named in the message.
    fn params<T: DeserializeOwned>(&self, scenario: &str) -> Result<T> {
        let params = self.params.clone().try_into();
        params.map_err(|error| LabError::Invalid(format!("{scenario}: params: {error}")))
    }
}

/// Figures that a scenario hands back.
#[derive(Debug, Default)]
pub struct Samples(Vec<Reading>);

impl Samples {
    /// Adds one figure. Each metric may come once a run.
    pub fn push(&mut self, metric: &str, unit: &str, better: Better, value: f64) {
        self.0.push(Reading { metric: metric.to_owned(), unit: unit.to_owned(), better, value });
    }

    pub(crate) fn into_readings(self) -> Vec<Reading> {
        self.0
    }
}

/// The scenario of that name.
pub fn find(name: &str) -> Option<&'static dyn Scenario> {
    SCENARIOS.iter().copied().find(|one| one.name() == name)
}

/// All names.
pub fn names() -> Vec<&'static str> {
    SCENARIOS.iter().map(|one| one.name()).collect()
}
