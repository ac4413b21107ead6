//! The report on the terminal.

use std::fmt::Write as _;

use comfy_table::{Cell, CellAlignment, Color, ContentArrangement, Table, presets};

use super::Report;
use super::short;
use super::words::{self, Verdict};
use crate::experiment::STOCK;

/// Failures that are shown; one cause often makes many.
const FAILURES: usize = 10;

/// The whole report as text. What probes counted is left to the HTML page. With `color` verdicts are coloured.
pub fn render(report: &Report, color: bool) -> String {
    let mut text = String::new();
    let machine = &report.machine;
    let _ = writeln!(
        text,
        "\n{}\n{}: host machine {} ({}), {} pCPUs, Linux {}; {} boots, {} lost; {:.0} s",
        report.title,
        report.experiment,
        machine.arch,
        machine.accel,
        machine.pcpus,
        machine.kernel,
        report.boots.ok + report.boots.lost,
        report.boots.lost,
        report.seconds
    );
    for (name, title) in &report.configurations {
        let _ = writeln!(text, "  {name:<16} {title}");
    }
    for (name, title) in report.arms.iter().filter(|(name, _)| report.summary.iter().any(|row| row.arm == *name)) {
        let _ = writeln!(text, "  {name:<16} {title}");
    }
    if !report.summary.is_empty() {
        let _ = writeln!(text, "{}", figures(report, color));
        let _ = writeln!(text, "Ratios are medians of pairs taken in the same boot, with their 95 % interval.");
    }
    for sentence in words::sentences(report) {
        let _ = writeln!(text, "{sentence}");
    }
    text.push_str(&losses(report));
    for failure in report.failures.iter().take(FAILURES) {
        let _ = writeln!(
            text,
            "FAILED  {} under {} (boot {}): {}",
            failure.load, failure.arm, failure.boot, failure.message
        );
    }
    if report.failures.len() > FAILURES {
        let _ = writeln!(text, "FAILED  {} more; --json has them all", report.failures.len() - FAILURES);
    }
    for note in &report.notes {
        let _ = writeln!(text, "note    {note}");
    }
    for check in &report.checks {
        let _ = writeln!(text, "{}  {}: {}", if check.ok { "ok    " } else { "FAILED" }, check.name, check.detail);
        for line in &check.evidence {
            let _ = writeln!(text, "        | {line}");
        }
    }
    // Last, where it is seen: the figures above are for who wants to know more.
    text + &short::text(report)
}

fn figures(report: &Report, color: bool) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(["load", "metric", "arm", "n", "median", "min – max", "to stock", "95 %"]);
    let mut last = (String::new(), String::new());
    table.add_row([""]);
    for row in report.summary.iter().filter(|row| !row.counted) {
        let group = (row.load.clone(), row.metric.clone());
        let (load, metric) = if group == last {
            (String::new(), String::new())
        } else {
            (row.load.clone(), format!("{} ({})", row.metric, row.unit))
        };
        last = group;
        let (ratio, interval) = match &row.ratio_to_stock {
            Some(ratio) => (words::factor(ratio.median), words::interval(ratio)),
            None if row.arm == STOCK => ("1".to_owned(), String::new()),
            None => ("–".to_owned(), "no pairs".to_owned()),
        };
        let mut ratio = Cell::new(ratio).set_alignment(CellAlignment::Right);
        let verdict = row.ratio_to_stock.as_ref().map(|ratio| words::verdict(ratio, row.better));
        if let Some(shade) = verdict.filter(|_| color).and_then(shade) {
            ratio = ratio.fg(shade);
        }
        table.add_row(vec![
            Cell::new(load),
            Cell::new(metric),
            Cell::new(&row.arm),
            Cell::new(row.n).set_alignment(CellAlignment::Right),
            Cell::new(words::number(row.median)).set_alignment(CellAlignment::Right),
            Cell::new(format!("{} – {}", words::number(row.min), words::number(row.max))),
            ratio,
            Cell::new(interval),
        ]);
    }
    table
}

fn shade(verdict: Verdict) -> Option<Color> {
    match verdict {
        Verdict::Better => Some(Color::Green),
        Verdict::Worse => Some(Color::Red),
        Verdict::Unclear => None,
    }
}

fn losses(report: &Report) -> String {
    let mut text = String::new();
    for loss in &report.boots.losses {
        let _ = writeln!(text, "LOST    boot {}: {}", loss.boot, loss.headline());
        for line in loss.console.iter().rev().take(3).rev() {
            let _ = writeln!(text, "        | {line}");
        }
        if let Some(file) = &loss.evidence {
            let _ = writeln!(text, "        | what the machine said of itself: {}", file.display());
        }
    }
    if report.boots.by_arm.values().any(|visits| visits.lost > 0) {
        let arms = report.boots.by_arm.iter().map(|(arm, v)| format!("{arm} {} of {}", v.lost, v.visits));
        let _ = writeln!(text, "Boots lost by arm (of its visits): {}", arms.collect::<Vec<_>>().join(", "));
    }
    text
}
