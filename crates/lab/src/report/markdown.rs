//! A stored result as a page of the manual: docs/results/EXPERIMENT.md.

use std::fmt::Write as _;

use entrain_results::markdown::{date, escape, wrap};

use super::words::{self, Verdict};
use super::{Compared, Report, Row};
use crate::experiment::STOCK;
use crate::metric::Better;

/// Failures that are shown; one cause often makes many.
const FAILURES: usize = 10;

/// The whole page. `name` is the result's file without its ending.
pub fn render(report: &Report, name: &str) -> String {
    let mut page = format!(
        "# {}\n\n<!-- Made by 'make results' from {name}.json.gz. Do not edit. -->\n\n{}\n",
        escape(&report.title),
        wrap("", &escape(&report.description))
    );
    page.push_str(&machine(report));
    page.push_str(&parts(report));
    page.push_str(&figures(report));
    page.push_str(&bars(report));
    page.push_str(&notes(report));
    page
}

/// A ratio with its interval: `2.61 [2.4, 2.8]`; in italics where it is clearly worse than 1.
pub(super) fn ratio(ratio: &Compared, better: Better) -> String {
    let plain = |value: f64| words::factor(value).trim_end_matches('×').to_owned();
    let interval = match (ratio.lo, ratio.hi) {
        (Some(lo), Some(hi)) => format!("[{}, {}]", plain(lo), plain(hi)),
        _ => "[one pair]".to_owned(),
    };
    let text = format!("{} {interval}", plain(ratio.median));
    if words::verdict(ratio, better) == Verdict::Worse { format!("*{text}*") } else { text }
}

/// The day on which the run began, as YYYY-MM-DD in UTC.
pub(super) fn day(report: &Report) -> String {
    date(report.started)
}

/// How the machine's time passed.
pub(super) fn pace(report: &Report) -> String {
    let factor = report.machine.dilation;
    if factor == 1.0 {
        "time not dilated".to_owned()
    } else {
        format!("time {} times slower than this computer's", words::number(factor)).replace("this", "the")
    }
}

fn machine(report: &Report) -> String {
    let machine = &report.machine;
    let guests: Vec<String> =
        machine.guests.iter().map(|(name, vcpus, mib)| format!("{name} ({vcpus} vCPUs, {mib} MiB)")).collect();
    let lost: Vec<String> = (report.boots.by_arm.iter())
        .map(|(arm, visits)| format!("{arm} {} in {} visits", visits.lost, visits.visits))
        .collect();
    let rt = if machine.rt { ", PREEMPT_RT" } else { "" };
    let facts = [
        format!(
            "Host machine: {} ({}), {} pCPUs, {} MiB; Linux {}{rt}; {}",
            machine.arch,
            machine.accel,
            machine.pcpus,
            machine.memory_mib,
            machine.kernel,
            pace(report)
        ),
        format!("Guests: {}", guests.join(", ")),
        format!(
            "Boots: {} that went through, {} lost; lost by arm: {}",
            report.boots.ok,
            report.boots.lost,
            lost.join(", ")
        ),
        format!(
            "Run: {}, {:.0} s, seed {}; Entrain {}, commit {}{}",
            day(report),
            report.seconds,
            report.seed,
            report.version,
            report.commit,
            if report.quick { "; a quick run, which is a look and no result" } else { "" }
        ),
    ];
    let list: String = facts.iter().map(|fact| wrap("- ", &escape(fact))).collect();
    format!("## Machine\n\n{list}\n")
}

/// What the configurations and arms are.
fn parts(report: &Report) -> String {
    let ran = |name: &String| report.summary.iter().any(|row| row.arm == *name);
    let arms = report.arms.iter().filter(|(name, _)| ran(name));
    let list = report.configurations.iter().chain(arms);
    let list: String = list.map(|(name, title)| wrap("- ", &escape(&format!("`{name}`: {title}")))).collect();
    format!("## Configurations and arms\n\n{list}\n")
}

fn figures(report: &Report) -> String {
    let rows: Vec<&Row> = report.summary.iter().filter(|row| !row.counted).collect();
    if rows.is_empty() {
        return String::new();
    }
    let legend = "Medians of samples. Ratios are medians of pairs of the same boot, with their 95 % interval; in italics \
                  where it is clearly worse than stock: the interval does not reach 1. What probes counted meanwhile is \
                  in the stored run.";
    let mut text = format!("## Figures\n\n{}", wrap("", legend));
    let mut last: Option<&Row> = None;
    for row in rows {
        if last.is_none_or(|last| last.load != row.load) {
            let (load, place) = row.load.split_once('@').unwrap_or((&row.load, ""));
            let place = if place.is_empty() { String::new() } else { format!(" at {place}") };
            let _ = write!(text, "\n### {load}{place}\n\n");
            if let Some(title) = report.loads.get(&row.load).filter(|title| !title.is_empty()) {
                text.push_str(&wrap("", &escape(title)));
                text.push('\n');
            }
            text.push_str("| metric | arm | median | to stock [95 %] | n |\n|---|---|--:|--:|--:|\n");
        }
        let named = last.is_some_and(|last| last.load == row.load && last.metric == row.metric);
        last = Some(row);
        let way = if row.better == Better::Higher { "more" } else { "less" };
        let metric = format!("{}, {} ({way} is better)", words::metric(&row.metric), row.unit);
        let compared = match &row.ratio_to_stock {
            Some(compared) => ratio(compared, row.better),
            None if row.arm == STOCK => "1".to_owned(),
            None => "no pairs".to_owned(),
        };
        let _ = writeln!(
            text,
            "| {} | {} | {} | {compared} | {} |",
            if named { String::new() } else { escape(&metric) },
            escape(&row.arm),
            words::number(row.median),
            row.n
        );
    }
    text + "\n"
}

fn bars(report: &Report) -> String {
    if report.checks.is_empty() {
        return String::new();
    }
    let good = report.checks.iter().filter(|check| check.ok).count();
    let mut text = format!("## Bars\n\n{good} of {} hold.\n\n", report.checks.len());
    for check in &report.checks {
        let word = if check.ok { "holds" } else { "**does not hold**" };
        text.push_str(&wrap("- ", &format!("{word}: {}: {}", escape(&check.name), escape(&check.detail))));
    }
    text + "\n"
}

fn notes(report: &Report) -> String {
    let losses = report.boots.losses.iter().map(|loss| format!("lost: boot {}: {}", loss.boot, loss.headline()));
    let failures = report.failures.iter().take(FAILURES);
    let failed = failures.map(|f| format!("failed: {} under {} (boot {}): {}", f.load, f.arm, f.boot, f.message));
    let more = report.failures.len().checked_sub(FAILURES).filter(|more| *more > 0);
    let more = more.map(|more| format!("failed: {more} more, which the stored run has"));
    let all: String = report
        .notes
        .iter()
        .cloned()
        .chain(failed)
        .chain(more)
        .chain(losses)
        .map(|note| wrap("- ", &escape(&note)))
        .collect();
    let all = if all.is_empty() { "- none\n".to_owned() } else { all };
    format!("## Notes\n\n{all}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_clearly_worse_is_in_italics() {
        let compared = |lo| Compared { median: 0.8, lo: Some(lo), hi: Some(0.9), pairs: 3 };
        assert_eq!(ratio(&compared(0.7), Better::Higher), "*0.80 [0.70, 0.90]*");
        assert_eq!(ratio(&compared(0.7), Better::Lower), "0.80 [0.70, 0.90]");
        assert_eq!(ratio(&Compared { hi: Some(1.1), ..compared(0.7) }, Better::Higher), "0.80 [0.70, 1.10]");
    }
}
