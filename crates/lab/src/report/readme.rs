//! The block of README.md that says what has been measured: made from the stored results, never by hand.

use anyhow::{Context, ensure};
use entrain_results::markdown::{escape, wrap};

use super::markdown::{day, pace, ratio};
use super::{Report, Row};
use crate::metric::Better;

const BEGIN: &str = "<!-- results:begin -->";
const END: &str = "<!-- results:end -->";

/// Experiments whose result is shown: the first one of which there is a full run. A quick one is a look and no result.
const EXPERIMENTS: [&str; 2] = ["overcommit", "tour"];
/// Their configuration, where they have several.
const CONFIGURATION: &str = "4x";

/// Columns: the arm, and what it is to a reader.
const ARMS: [(&str, &str); 3] =
    [("entrain-host", "Entrain on the host"), ("entrain-both", "on both sides"), ("offline-to-one", "by hand")];

/// Rows: load, metric, and what it is to a reader.
const ROWS: [(&str, &str, &str); 8] = [
    ("dbench", "throughput", "dbench"),
    ("hackbench", "messages_per_s", "hackbench"),
    ("lock", "ops_per_s", "kernel lock"),
    ("shootdown", "ops_per_s", "interrupt to all CPUs"),
    ("wake", "requests_per_s", "wake-up requests"),
    ("wake", "wake_p50", "wake-up p50"),
    ("wake", "wake_p99", "wake-up p99"),
    ("tick", "on_time_share", "ticks on time"),
];

/// `readme` with the block made anew from results, each with its file's name without the ending.
///
/// # Errors
/// A README without the marks that the block stands between.
pub fn renew(readme: &str, results: &[(String, Report)]) -> anyhow::Result<String> {
    let what = || format!("there is no {BEGIN} … {END} in it");
    let begin = readme.find(BEGIN).with_context(what)? + BEGIN.len();
    let end = readme.find(END).with_context(what)?;
    ensure!(begin <= end, what());
    Ok(format!("{}\n{}\n{}", &readme[..begin], block(results), &readme[end..]))
}

fn block(results: &[(String, Report)]) -> String {
    // Of several runs of an experiment, the one that is called like it: the others say what is special in their name.
    let rank = |(name, report): &&(String, Report)| {
        let place = EXPERIMENTS.iter().position(|one| *one == report.experiment)?;
        Some((place, *name != report.experiment, name.clone()))
    };
    let shown = results.iter().filter(|one| !one.1.quick && rank(one).is_some()).min_by_key(rank);
    shown.map_or_else(|| "No run is stored yet.".to_owned(), |(name, report)| table(name, report))
}

fn table(name: &str, report: &Report) -> String {
    let machine = &report.machine;
    let by_hand = report.arms.iter().find(|(arm, _)| arm == ARMS[2].0).map_or("", |(_, title)| title);
    let facts = format!(
        "Ratios to stock Linux, medians with 95 % intervals; in italics what is clearly worse than stock. Two guests of \
         four vCPUs each on {} pCPUs ({}, Linux {}, {}; {}, commit {}). *By hand*: {}. [All arms and figures](docs/results/{name}.md).",
        machine.pcpus,
        machine.arch,
        machine.kernel,
        pace(report),
        day(report),
        report.commit,
        escape(by_hand),
    );
    let heads: Vec<&str> = ARMS.iter().map(|(_, title)| *title).collect();
    let mut text = format!("{}\n| | {} |\n|---|--:|--:|--:|\n", wrap("", &facts), heads.join(" | "));
    for (load, metric, title) in ROWS {
        let cells: Vec<String> = ARMS.iter().map(|(arm, _)| cell(report, arm, load, metric)).collect();
        let less = report.summary.iter().any(|row| is(row, load, metric) && row.better == Better::Lower);
        let title = if less { format!("{title} (less is better)") } else { title.to_owned() };
        text.push_str(&format!("| {title} | {} |\n", cells.join(" | ")));
    }
    text
}

fn cell(report: &Report, arm: &str, load: &str, metric: &str) -> String {
    let row = report.summary.iter().find(|row| row.arm == arm && is(row, load, metric));
    let compared = row.and_then(|row| Some(ratio(row.ratio_to_stock.as_ref()?, row.better)));
    compared.unwrap_or_else(|| "–".to_owned())
}

fn is(row: &Row, load: &str, metric: &str) -> bool {
    let (base, place) = row.load.split_once('@').unwrap_or((&row.load, CONFIGURATION));
    (base, place, row.metric.as_str()) == (load, CONFIGURATION, metric)
}
