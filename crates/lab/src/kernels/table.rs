//! The table: what works on which kernel, as it is kept and shown.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};

use crate::report::markdown::{date, escape, wrap};

const BEGIN: &str = "<!-- kernels:begin -->";
const END: &str = "<!-- kernels:end -->";

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
    fn title(self) -> &'static str {
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
    fn series(&self) -> String {
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

    /// For a terminal, with the reasons.
    pub(super) fn text(&self) -> String {
        let mut text = self.markdown();
        for row in &self.rows {
            for (column, cell) in row.cells.iter().filter(|(_, cell)| !cell.works) {
                text.push_str(&format!("{} ({}): {}: {}\n", row.kernel, row.release, column.title(), cell.why));
            }
        }
        text
    }

    /// The page that is kept with the results: the table, and the reasons in full.
    pub(super) fn page(&self) -> String {
        let mut text = format!(
            "# What works on which kernel\n\n<!-- Made by 'make results' from kernels.json. Do not edit. -->\n\n\
             Tried on {} by `entrain-lab kernels`, {}, commit {}.\n\n{}\nWhy not:\n\n",
            date(self.tried),
            self.arch,
            self.commit,
            self.markdown()
        );
        for row in &self.rows {
            for (column, cell) in row.cells.iter().filter(|(_, cell)| !cell.works) {
                text.push_str(&wrap("- ", &format!("{}, {}: {}", row.series(), column.title(), escape(&cell.why))));
            }
        }
        text
    }

    /// As Markdown.
    fn markdown(&self) -> String {
        let heads = Column::ALL.map(Column::title).join(" | ");
        let mut text = format!("| kernel | {heads} |\n|---|{}\n", "---|".repeat(Column::ALL.len()));
        for row in &self.rows {
            let cell = |column: Column| match row.cells.get(&column) {
                Some(Cell { works: true, .. }) => "yes",
                Some(_) => "no",
                None => "–",
            };
            let cells = Column::ALL.map(cell).join(" | ");
            text.push_str(&format!("| {}, {} | {cells} |\n", row.kernel, row.series()));
        }
        text
    }

    /// `readme` with its block made anew.
    ///
    /// # Errors
    /// There is no block in it.
    pub(super) fn renew(&self, readme: &str) -> anyhow::Result<String> {
        let what = || format!("there is no {BEGIN} … {END} in it");
        let begin = readme.find(BEGIN).with_context(what)? + BEGIN.len();
        let end = readme.find(END).with_context(what)?;
        ensure!(begin <= end, what());
        Ok(format!("{}\n{}\n{}", &readme[..begin], self.markdown(), &readme[end..]))
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
