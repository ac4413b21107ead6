//! A quick run in short, for who sees the lab for the first time: one figure a load, as bars.

use std::fmt::Write as _;

use super::words;
use super::{Report, Row};
use crate::experiment::STOCK;
use crate::metric::Better;

/// Loads that are shown at most. A run of more is no tour, and gets no page in short.
const LOADS: usize = 6;
/// Columns of the longest bar.
const WIDTH: f64 = 40.0;
/// A ratio so near to 1 is as good as stock, to who looks at few samples.
const ALIKE: f64 = 0.05;
/// The arm that stands for what can be had by hand.
const BY_HAND: &str = "offline-to-one";

/// One load's first metric under the arms that are shown.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Short {
    /// The load and its figure against stock, in one sentence.
    pub(super) sentence: String,
    /// What the bars show, and what the load does.
    pub(super) subject: String,
    /// By arm: how many times better than stock; stock itself comes first.
    pub(super) bars: Vec<(String, f64)>,
}

/// What is shown of a report; nothing unless it is a quick run of few loads.
pub(super) fn of(report: &Report) -> Vec<Short> {
    let base = |row: &Row| words::base(&row.load).to_owned();
    let mut loads: Vec<String> = Vec::new();
    for row in report.summary.iter().filter(|row| !row.counted) {
        if !loads.contains(&base(row)) {
            loads.push(base(row));
        }
    }
    if !report.quick || loads.len() > LOADS {
        return Vec::new();
    }
    let load = |load: &String| {
        // Of several configurations the last one with anything to compare: experiments go from mild to severe.
        let compared = |row: &&Row| !row.counted && base(row) == *load && better(row).is_some() && shown(&row.arm);
        let last = report.summary.iter().rfind(compared)?.load.clone();
        let first = report.summary.iter().find(|row| row.load == last && !row.counted)?;
        let rows = report.summary.iter().filter(|row| row.load == last && row.metric == first.metric);
        let rows: Vec<(&Row, f64)> =
            rows.filter(|row| shown(&row.arm)).filter_map(|row| Some((row, better(row)?))).collect();
        let mut bars = vec![(STOCK.to_owned(), 1.0)];
        bars.extend(rows.iter().map(|(row, times)| (row.arm.clone(), *times)));
        Some(Short {
            sentence: sentence(load, &rows)?,
            subject: subject(first, report.loads.get(&last).map_or("", String::as_str)),
            bars,
        })
    };
    loads.iter().filter_map(load).collect()
}

/// The section on the terminal.
pub(super) fn text(report: &Report) -> String {
    let shorts = of(report);
    if shorts.is_empty() {
        return String::new();
    }
    let mut text = "\nIn short: times better than stock; a longer bar is better\n".to_owned();
    let name = shorts.iter().flat_map(|short| &short.bars).map(|(arm, _)| arm.len()).max().unwrap_or(0);
    for short in &shorts {
        let _ = writeln!(text, "\n{}\n  {}", short.sentence, short.subject);
        let longest = short.bars.iter().map(|(_, times)| *times).fold(1.0, f64::max);
        for (arm, times) in &short.bars {
            // Never without any: an arm that is far behind is there all the same.
            let bar = "█".repeat(((times / longest * WIDTH).round() as usize).max(1));
            let _ = writeln!(text, "  {arm:<name$}  {bar} {}", words::factor(*times));
        }
    }
    text
}

fn subject(row: &Row, title: &str) -> String {
    let way = if row.better == Better::Higher { "more" } else { "less" };
    let end = if title.is_empty() { String::new() } else { format!("; {title}") };
    format!("{}, {way} is better{end}", words::metric(&row.metric))
}

fn shown(arm: &str) -> bool {
    arm.starts_with("entrain") || arm == BY_HAND
}

/// How many times better than stock: of a latency, half is twice as good.
fn better(row: &Row) -> Option<f64> {
    let ratio = row.ratio_to_stock.as_ref()?.median;
    (ratio > 0.0).then(|| if row.better == Better::Higher { ratio } else { 1.0 / ratio })
}

/// "dbench: 2.6 times stock, better (by hand: 2.7)": the arm with most of Entrain, which comes last of its arms.
fn sentence(load: &str, rows: &[(&Row, f64)]) -> Option<String> {
    let ratio = |row: &Row| row.ratio_to_stock.as_ref().map(|ratio| format!("{:.2}", ratio.median));
    let plain = |text: String| text.trim_end_matches('0').trim_end_matches('.').to_owned();
    let (row, times) = rows.iter().rfind(|(row, _)| row.arm.starts_with("entrain"))?;
    let verdict = match *times {
        times if times > 1.0 + ALIKE => "better",
        times if times < 1.0 - ALIKE => "worse",
        _ => "about the same",
    };
    let by_hand = rows.iter().find(|(row, _)| row.arm == BY_HAND).and_then(|(row, _)| ratio(row));
    let by_hand = by_hand.map_or_else(String::new, |ratio| format!(" (by hand: {})", plain(ratio)));
    Some(format!("{load}: {} times stock{by_hand}, {verdict}", plain(ratio(row)?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Compared;

    fn row(arm: &str, load: &str, metric: &str, better: Better, ratio: Option<f64>) -> Row {
        let compared = ratio.map(|median| Compared { median, lo: None, hi: None, pairs: 1 });
        let (arm, load, metric, unit) = (arm.into(), load.into(), metric.into(), "1".into());
        Row {
            arm,
            load,
            metric,
            unit,
            better,
            counted: false,
            n: 1,
            median: 1.0,
            min: 1.0,
            max: 1.0,
            ratio_to_stock: compared,
        }
    }

    #[test]
    fn each_load_has_a_sentence_and_bars_that_say_how_much_better() {
        let (higher, lower) = (Better::Higher, Better::Lower);
        let report = Report {
            quick: true,
            loads: [("dbench@4x".to_owned(), "a file server".to_owned())].into(),
            summary: vec![
                row("entrain-both", "dbench@2x", "throughput", higher, Some(1.0)),
                row(STOCK, "dbench@4x", "throughput", higher, None),
                row("entrain-host", "dbench@4x", "throughput", higher, Some(1.3)),
                row("entrain-both", "dbench@4x", "throughput", higher, Some(2.6)),
                row("offline-to-one", "dbench@4x", "throughput", higher, Some(2.7)),
                row("scx_lavd", "dbench@4x", "throughput", higher, Some(9.0)),
                row("entrain-both", "dbench@4x", "latency_max", lower, Some(7.0)),
                row("entrain-both", "wake@4x", "wake_p99", lower, Some(0.5)),
                row("entrain-both", "tick@4x", "share", higher, Some(0.8)),
            ],
            ..crate::report::stored::tests::fixture("")
        };
        let text = text(&report);
        let lines: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
        assert_eq!(
            lines,
            [
                "In short: times better than stock; a longer bar is better",
                "dbench: 2.6 times stock (by hand: 2.7), better",
                "  throughput, more is better; a file server",
                "  stock           ███████████████ 1.00×",
                "  entrain-host    ███████████████████ 1.30×",
                "  entrain-both    ███████████████████████████████████████ 2.60×",
                "  offline-to-one  ████████████████████████████████████████ 2.70×",
                "wake: 0.5 times stock, better",
                "  wake p99, less is better",
                "  stock           ████████████████████ 1.00×",
                "  entrain-both    ████████████████████████████████████████ 2.00×",
                "tick: 0.8 times stock, worse",
                "  share, more is better",
                "  stock           ████████████████████████████████████████ 1.00×",
                "  entrain-both    ████████████████████████████████ 0.80×",
            ]
        );
        assert_eq!(of(&Report { quick: false, ..report.clone() }), []);
        let many = (0..7).map(|n| row("entrain-both", &format!("load{n}"), "ops", higher, Some(2.0))).collect();
        assert_eq!(of(&Report { summary: many, ..report }), [], "a run of many loads is no tour");
    }
}
