//! What a scenario is, and what it is told.

use entrain_lab_machine::machine::Arch;
use entrain_lab_machine::{LabError, Result};
use serde::de::DeserializeOwned;

use crate::bar::Bar;
use crate::reading::Readings;
use crate::rig::Rig;

/// One measurement written in Rust.
pub trait Scenario: Sync {
    /// Its name in experiment files.
    fn name(&self) -> &'static str;

    /// Measures once. An error of [`LabError::Invalid`] or `Remote` is noted as a failure of this load under this arm and
    /// the run goes on; a fault or a missed deadline ends the boot.
    fn run(&self, rig: &dyn Rig, context: &Context, readings: &mut Readings) -> Result<()>;
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
    pub(super) fn params<T: DeserializeOwned>(&self, scenario: &str) -> Result<T> {
        let params = self.params.clone().try_into();
        params.map_err(|error| LabError::Invalid(format!("{scenario}: params: {error}")))
    }
}
