//! The tables of all architectures as one, as it is shown.

#[cfg(test)]
use std::path::Path;
use std::path::PathBuf;

use anyhow::{Context, ensure};
use entrain_results::markdown::{date, escape, wrap};

use super::table::{Cell, Column, Row, Table};

const BEGIN: &str = "<!-- kernels:begin -->";
const END: &str = "<!-- kernels:end -->";

/// One table for each architecture; all have the same kernels.
pub(super) struct Tables(pub(super) Vec<Table>);

impl Tables {
    /// Reads those that were kept.
    ///
    /// # Errors
    /// A file that is none; two of one architecture; kernels that not all of them have.
    pub(super) fn read(paths: &[PathBuf]) -> anyhow::Result<Self> {
        let mut tables = paths.iter().map(|path| Table::read(path)).collect::<anyhow::Result<Vec<_>>>()?;
        tables.sort_by(|one, other| one.arch.cmp(&other.arch));
        let kernels = |table: &Table| table.rows.iter().map(|row| row.kernel.clone()).collect::<Vec<_>>();
        for pair in tables.windows(2) {
            let arch = &pair[1].arch;
            ensure!(pair[0].arch != *arch, "two of the files are of {arch}");
            ensure!(kernels(&pair[0]) == kernels(&pair[1]), "the table of {arch} has other kernels");
        }
        Ok(Self(tables))
    }

    /// For a terminal, with the reasons.
    pub(super) fn text(&self) -> String {
        let mut text = self.markdown();
        for (row, column, why, arch) in self.reasons() {
            text.push_str(&format!("{}, {}: {}{arch}: {why}\n", row.kernel, row.series(), column.title()));
        }
        text
    }

    /// The page that is kept with the results: the table, and the reasons in full.
    pub(super) fn page(&self) -> String {
        let tried = |table: &Table| format!("{}: on {}, commit {}", table.arch, date(table.tried), table.commit);
        let tried = self.0.iter().map(tried).collect::<Vec<_>>().join("; ");
        let mut text = format!(
            "# What works on which kernel\n\n<!-- Made by 'make results' from kernels*.json. Do not edit. -->\n\n{}\n{}\nWhy not:\n\n",
            wrap("", &format!("Tried by `entrain-lab kernels`. {tried}.")),
            self.markdown()
        );
        for (row, column, why, arch) in self.reasons() {
            text.push_str(&wrap("- ", &format!("{}, {}{arch}: {}", row.series(), column.title(), escape(why))));
        }
        text
    }

    /// Each reason once: with the architecture where it is not that of all.
    fn reasons(&self) -> Vec<(&Row, Column, &str, String)> {
        let mut reasons = Vec::new();
        for (place, row) in self.0.first().map_or(&[][..], |table| &table.rows).iter().enumerate() {
            for column in Column::ALL {
                let cells = self.0.iter().map(|table| (table, table.rows[place].cells.get(&column)));
                let not: Vec<(&Table, &str)> = cells
                    .filter_map(|(table, cell)| Some((table, cell.filter(|cell| !cell.works)?.why.as_str())))
                    .collect();
                if not.len() == self.0.len() && not.iter().all(|(_, why)| *why == not[0].1) {
                    reasons.push((row, column, not[0].1, String::new()));
                } else {
                    reasons
                        .extend(not.into_iter().map(|(table, why)| (row, column, why, format!(" ({})", table.arch))));
                }
            }
        }
        reasons
    }

    /// As Markdown.
    fn markdown(&self) -> String {
        let heads = Column::ALL.map(Column::title).join(" | ");
        let mut text = format!("| kernel | {heads} |\n|---|{}\n", "---|".repeat(Column::ALL.len()));
        for (place, row) in self.0.first().map_or(&[][..], |table| &table.rows).iter().enumerate() {
            let cells = Column::ALL.map(|column| self.cell(place, column)).join(" | ");
            text.push_str(&format!("| {}, {} | {cells} |\n", row.kernel, row.series()));
        }
        text
    }

    /// What all architectures agree on; else what each says of which it is known.
    fn cell(&self, row: usize, column: Column) -> String {
        let word = |cell: &Cell| if cell.works { "yes" } else { "no" };
        let said: Vec<(&str, Option<&str>)> =
            self.0.iter().map(|table| (table.arch.as_str(), table.rows[row].cells.get(&column).map(word))).collect();
        if let Some((_, first)) = said.first().filter(|(_, first)| said.iter().all(|(_, other)| other == first)) {
            return first.unwrap_or("–").to_owned();
        }
        let known = said.iter().filter_map(|(arch, said)| Some(format!("{} ({arch})", (*said)?)));
        known.collect::<Vec<_>>().join(", ")
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
}

/// The tables that are kept in a folder of results.
#[cfg(test)]
pub(super) fn kept(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("the folder of results").flatten().map(|entry| entry.path());
    let name = |path: &PathBuf| path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    entries.filter(|path| name(path).starts_with("kernels") && name(path).ends_with(".json")).collect()
}
