//! A stored table as a page of the manual: docs/results/sim-*.md.

use std::fmt::Write as _;

use entrain_html::figure::number;
use entrain_results::markdown::{date, escape, wrap};
use entrain_results::name;

use super::{Compared, Priced, Stored, Table};
use crate::accuracy::{NEAR, Totals, Verdict};
use crate::lab::validate;
use crate::references::{self, Kind};

/// The whole page. `name` is the table's file without its ending.
pub fn render(stored: &Stored, name: &str) -> String {
    let (title, about) = match &stored.table {
        Table::Validate(_) => (
            "What the simulator predicts, and what the lab has measured",
            "`entrain-sim validate`: the lab's machines, arms and loads as worlds of the [simulator](../sim.md), beside \
             stored runs of the lab. Figures are ratios to stock; the measured ones with the least and the most sample \
             by stock's median. A direction is right where both say more, less, or about as much as stock (within a \
             tenth).",
        ),
        Table::References(_) => (
            "What the simulator predicts, and what was published",
            "`entrain-sim references`: the machines of the works that Entrain builds on, numbered as \
             [references](../references.md) has them, as worlds of the [simulator](../sim.md). A row with a direction is \
             one that the work compares with another case; it is right where both say more, less, or about as much as \
             in that case (within a tenth). Baseline rows are those that the loads are calibrated on, which is no merit. \
             Of Entrain nothing is published: beside what is predicted of it stands the figure of the work's own patch \
             or remedy, which it need not reproduce, and no error is told.",
        ),
    };
    let about = format!("{about} In italics: more than {:.0} % off. In bold: a wrong direction.", NEAR * 100.0);
    let mut page = format!(
        "# {title}\n\n<!-- Made by 'make results' from {name}.json. Do not edit. -->\n\n{}\n{}",
        wrap("", &about),
        origin(stored)
    );
    match &stored.table {
        Table::Validate(parts) => page.push_str(&compared(parts)),
        Table::References(rows) => page.push_str(&published(rows)),
    }
    page
}

/// Who made it, when, of what.
fn origin(stored: &Stored) -> String {
    let seeds = match &stored.seeds[..] {
        [one] => format!("seed {one}"),
        several => {
            let several: Vec<String> = several.iter().map(u64::to_string).collect();
            format!("medians of seeds {}", several.join(", "))
        }
    };
    let mut facts = vec![
        format!(
            "Run: {}, {:.0} s, {seeds}; Entrain {}, commit {}, schedulers {}",
            date(stored.started),
            stored.seconds,
            stored.version,
            stored.commit,
            stored.schedulers
        ),
        costs(&stored.costs),
    ];
    if let Table::Validate(parts) = &stored.table {
        facts.extend(parts.iter().map(|part| {
            let file = name(&part.file);
            format!("Measured: [{file}]({file}.md), run of {}, commit {}", date(part.started), part.commit)
        }));
    }
    let list: String = facts.iter().map(|fact| wrap("- ", &escape(fact))).collect();
    format!("## How it came about\n\n{list}\n")
}

fn costs(costs: &Priced) -> String {
    let whose = if costs.column == "lab" { "the lab's machines" } else { "a server" };
    let changed: Vec<String> = costs.changed.iter().map(|name| format!("{name}={}", costs.ns[name])).collect();
    let but = if changed.is_empty() { String::new() } else { format!(", but {} (ns)", changed.join(", ")) };
    format!("Costs: those of {whose} (`crates/sim/src/costs.rs`){but}")
}

/// A table of totals; each line is of some rows.
fn totals(lines: impl IntoIterator<Item = (String, Totals)>) -> String {
    let mut text =
        format!("## Totals\n\n| rows | number | direction right | within {:.0} % |\n|---|--:|--:|--:|\n", NEAR * 100.0);
    for (of, Totals { rows, signs, right, near }) in lines {
        let right = if signs == 0 { "–".to_owned() } else { format!("{right} of {signs}") };
        let _ = writeln!(text, "| {} | {rows} | {right} | {near} of {rows} |", escape(&of));
    }
    text + "\n"
}

fn error(verdict: Verdict) -> String {
    let text = format!("{:+.0} %", verdict.error * 100.0);
    if verdict.near() { text } else { format!("*{text}*") }
}

fn direction(verdict: Verdict) -> &'static str {
    verdict.sign.map_or("–", |right| if right { "right" } else { "**wrong**" })
}

fn compared(parts: &[Compared]) -> String {
    let rows = || parts.iter().flat_map(|part| &part.rows);
    let of = |chosen: &dyn Fn(&validate::Row) -> bool| -> Totals {
        rows().filter(|row| chosen(row)).map(validate::Row::verdict).collect()
    };
    let mut lines = vec![("all".to_owned(), of(&|_| true))];
    for arm in distinct(rows().map(|row| &row.arm)) {
        lines.push((format!("arm {arm}"), of(&|row| row.arm == *arm)));
    }
    for load in distinct(rows().map(|row| &row.load)) {
        lines.push((format!("load {load}"), of(&|row| row.load == *load)));
    }
    let mut text = totals(lines);
    for part in parts {
        let _ = writeln!(text, "## {}", escape(&name(&part.file)));
        for load in distinct(part.rows.iter().map(|row| &row.load)) {
            let _ = write!(
                text,
                "\n### {}\n\n| metric | arm | measured | predicted | error | direction |\n|---|---|--:|--:|--:|---|\n",
                escape(load)
            );
            for row in part.rows.iter().filter(|row| row.load == *load) {
                let measured = &row.measured;
                let _ = writeln!(
                    text,
                    "| {} | {} | {} [{}, {}] | {} | {} | {} |",
                    escape(&row.metric),
                    escape(&row.arm),
                    number(measured.median),
                    number(measured.least),
                    number(measured.most),
                    number(row.predicted),
                    error(row.verdict()),
                    direction(row.verdict())
                );
            }
        }
        text.push('\n');
    }
    text.truncate(text.trim_end().len());
    text + "\n"
}

/// Each once, in the order in which they come.
fn distinct<'a>(all: impl Iterator<Item = &'a String>) -> Vec<&'a String> {
    let mut distinct = Vec::new();
    for one in all {
        if !distinct.contains(&one) {
            distinct.push(one);
        }
    }
    distinct
}

fn published(rows: &[references::Row]) -> String {
    let lines = [Kind::Predicted, Kind::Baseline].map(|kind| (kind.name().to_owned(), references::totals(rows, kind)));
    let mut text = totals(lines);
    text.push_str("## Figures\n");
    for metric in distinct(rows.iter().map(|row| &row.metric)) {
        let _ = write!(
            text,
            "\n### {}\n\n| reference and machine | row | published | predicted | error | direction (against) |\n\
             |---|---|--:|--:|--:|---|\n",
            escape(metric)
        );
        for row in rows.iter().filter(|row| row.metric == *metric) {
            let verdict = row.verdict();
            let against = row.change.as_ref().map_or_else(String::new, |change| format!(" ({})", change.from));
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} | {} | {}{} |",
                escape(&row.what),
                row.kind.name(),
                number(row.published),
                number(row.predicted),
                if row.kind == Kind::Entrain { "–".to_owned() } else { error(verdict) },
                direction(verdict),
                escape(&against)
            );
        }
    }
    text
}
