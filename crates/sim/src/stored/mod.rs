//! The simulator's two tables of predictions as results that are kept with the project (docs/results/sim-*.json), from
//! which their pages are made.

mod markdown;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use entrain_results::output;
use entrain_results::provenance::Provenance;
use serde::{Deserialize, Serialize};

use crate::costs::Costs;
use crate::lab::measured::Results;
use crate::lab::validate;
use crate::references;

pub use markdown::render;

/// Version of the JSON. It grows only when a field changes its meaning or goes away; new fields may come at any time.
pub const SCHEMA: u32 = 1;

/// A table with all that is to be known of how it came about.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stored {
    /// [`SCHEMA`].
    pub schema: u32,
    /// When the simulator began, seconds since 1970.
    pub started: u64,
    /// How long it took, s.
    pub seconds: f64,
    /// Version of Entrain.
    pub version: String,
    /// The commit that was built, as the lab's runs have it.
    pub commit: String,
    /// Digest of the schedulers' sources that were built, as the lab's runs have it.
    pub schedulers: String,
    /// What things cost.
    pub costs: Priced,
    /// What chance was drawn from.
    pub seeds: Vec<u64>,
    /// The rows.
    pub table: Table,
}

/// Costs, as they are told and kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Priced {
    /// The column of src/costs.rs that they are nearest to: `hardware` or `lab`.
    pub column: String,
    /// Those that differed from it when the table was made.
    pub changed: Vec<String>,
    /// All of them, ns.
    pub ns: BTreeMap<String, u64>,
}

impl Priced {
    /// These.
    pub fn of(costs: Costs) -> Self {
        let ns = costs.named();
        let changed = |column: Costs| -> Vec<String> {
            let own = column.named();
            ns.keys().filter(|name| own[*name] != ns[*name]).cloned().collect()
        };
        let columns = [("lab", Costs::LAB), ("hardware", Costs::HARDWARE)].map(|(name, own)| (name, changed(own)));
        let (column, changed) = columns.into_iter().min_by_key(|(_, changed)| changed.len()).expect("there are two");
        Self { column: column.to_owned(), changed, ns }
    }
}

/// One of the tables.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Table {
    /// Of `entrain-sim validate`: one part for each of the lab's results.
    Validate(Vec<Compared>),
    /// Of `entrain-sim references`.
    References(Vec<references::Row>),
}

/// One of the lab's results and what is predicted of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Compared {
    /// The lab's file, as it was named.
    pub file: PathBuf,
    /// Its experiment.
    pub experiment: String,
    /// The commit that was measured.
    pub commit: String,
    /// When the lab's run began, seconds since 1970.
    pub started: u64,
    /// The rows.
    pub rows: Vec<validate::Row>,
}

impl Compared {
    /// Predicts what the lab's file has measured: the median of so many seeds, from 1 on.
    ///
    /// # Errors
    /// A file that is no result of the lab's, or one of which no load is modelled.
    pub fn of(file: &Path, seeds: u64, costs: Costs) -> Result<Self> {
        let results = Results::read(file)?;
        let rows = validate::validate(&results, seeds, costs);
        ensure!(
            !rows.is_empty(),
            "{}: no load of {} is modelled; `entrain-sim list` names those that are",
            file.display(),
            results.experiment
        );
        let Results { experiment, commit, started, .. } = results;
        Ok(Self { file: file.to_owned(), experiment, commit, started, rows })
    }
}

/// A table that is being made: knows when that began.
#[derive(Debug)]
pub struct Begun {
    clock: Instant,
    started: u64,
}

impl Begun {
    /// It begins now.
    pub fn now() -> Self {
        let started = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Self { clock: Instant::now(), started }
    }

    /// It is done, by this program.
    pub fn done(&self, costs: Costs, seeds: Vec<u64>, table: Table) -> Stored {
        let Provenance { commit, schedulers } = Provenance::of_this_program();
        Stored {
            schema: SCHEMA,
            started: self.started,
            seconds: self.clock.elapsed().as_secs_f64().round(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            commit,
            schedulers,
            costs: Priced::of(costs),
            seeds,
            table,
        }
    }
}

impl Stored {
    /// Reads one.
    ///
    /// # Errors
    /// A file that cannot be read, is none, or has another schema.
    pub fn read(path: &Path) -> Result<Self> {
        let name = path.display();
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {name}"))?;
        let stored: Self = serde_json::from_str(&text).with_context(|| {
            format!("{name} is no table of 'entrain-sim validate' or 'references' with --json in schema {SCHEMA}")
        })?;
        ensure!(stored.schema == SCHEMA, "{name} has schema {}; this program knows {SCHEMA}", stored.schema);
        Ok(stored)
    }

    /// Writes it.
    ///
    /// # Errors
    /// A figure that JSON cannot hold (one that is not finite), or a file that cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self)? + "\n";
        // What is not finite becomes `null`, which no figure comes back from: better told now than when it is read.
        serde_json::from_str::<Self>(&text).context("a figure is no number")?;
        output::write(path, text.as_bytes())
    }
}
