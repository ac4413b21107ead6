//! The table: what works on which kernel of one architecture, as it is kept.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context;
use serde::{Deserialize, Serialize};

/// What is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Column {
    /// `entrain record` and `report`.
    Record,
    /// `entrain isolate watch`.
    Isolate,
    /// `entrain host` in mode `observe`, `entrain top`.
    Watch,
    /// The same, paired with a guest.
    PairHost,
    /// `entrain guest` in mode `register`, paired by a host that can.
    PairGuest,
    /// `entrain host --mode schedule`.
    ScheduleHost,
    /// `entrain guest --mode schedule`.
    ScheduleGuest,
    /// `entrain isolate qpw load`, on the flavour of the kernel with PREEMPT_RT.
    Qpw,
}

impl Column {
    /// All of them, as they are shown.
    pub(super) const ALL: [Self; 8] = [
        Self::Record,
        Self::Isolate,
        Self::Watch,
        Self::PairHost,
        Self::PairGuest,
        Self::ScheduleHost,
        Self::ScheduleGuest,
        Self::Qpw,
    ];

    /// For people.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Record => "record",
            Self::Isolate => "isolate",
            Self::Watch => "top",
            Self::PairHost => "pair: host",
            Self::PairGuest => "pair: guest",
            Self::ScheduleHost => "sched: host",
            Self::ScheduleGuest => "sched: guest",
            Self::Qpw => "QPW",
        }
    }
}

/// How one try came out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Cell {
    /// Whether it works.
    pub(super) works: bool,
    /// Why not, in the program's own words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) why: String,
}

impl Cell {
    /// It works.
    pub(super) fn yes() -> Self {
        Self { works: true, why: String::new() }
    }

    /// It does not.
    pub(super) fn no(why: impl Into<String>) -> Self {
        Self { works: false, why: why.into() }
    }
}

/// One kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Row {
    /// Whose it is.
    pub(super) kernel: String,
    /// Its release.
    pub(super) release: String,
    /// What was tried.
    pub(super) cells: BTreeMap<Column, Cell>,
}

impl Row {
    /// `6.12` of `6.12.48+deb13-arm64`.
    pub(super) fn series(&self) -> String {
        let numbers: Vec<&str> = self.release.split(|c: char| !c.is_ascii_digit()).take(2).collect();
        numbers.join(".")
    }
}

/// The table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Table {
    /// What was tried.
    pub(super) commit: String,
    /// When, seconds since 1970.
    pub(super) tried: u64,
    /// Of the machines.
    pub(super) arch: String,
    /// Oldest kernel first.
    pub(super) rows: Vec<Row>,
}

impl Table {
    /// Reads one that was kept.
    ///
    /// # Errors
    /// A file that is none.
    pub(super) fn read(path: &Path) -> anyhow::Result<Self> {
        let what = || format!("cannot read {}", path.display());
        serde_json::from_str(&std::fs::read_to_string(path).with_context(what)?).with_context(what)
    }

    /// What works here and not there, and the other way round.
    pub(super) fn differs(&self, known: &Self) -> Vec<String> {
        let mut lines = Vec::new();
        for row in &self.rows {
            let Some(before) = known.rows.iter().find(|one| one.kernel == row.kernel) else { continue };
            for (column, cell) in &row.cells {
                let what = format!("{} ({}): {}", row.kernel, row.release, column.title());
                match (before.cells.get(column).map(|cell| cell.works), cell.works) {
                    (Some(true), false) => lines.push(format!("{what}: works no more: {}", cell.why)),
                    (Some(false), true) => lines.push(format!("{what}: works now")),
                    _ => {}
                }
            }
        }
        lines
    }
}
