//! Figures and ratios as a reader wants to see them.

pub(super) use entrain_html::figure::{factor, number};

use super::summary::{Compared, Share};
use super::{Report, Row};
use crate::experiment::STOCK;
use crate::metric::Better;

/// A ratio's interval in brackets; why there is none.
pub(super) fn interval(ratio: &Compared) -> String {
    match (ratio.lo, ratio.hi) {
        (Some(lo), Some(hi)) => format!("[{} – {}]", factor(lo), factor(hi)),
        _ => "[one pair]".to_owned(),
    }
}

/// Whether a ratio is for the better, for the worse, or not told apart from 1 by its interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Better,
    Worse,
    Unclear,
}

pub(super) fn verdict(ratio: &Compared, better: Better) -> Verdict {
    let (Some(lo), Some(hi)) = (ratio.lo, ratio.hi) else { return Verdict::Unclear };
    match better {
        Better::Higher if lo > 1.0 => Verdict::Better,
        Better::Higher if hi < 1.0 => Verdict::Worse,
        Better::Lower if hi < 1.0 => Verdict::Better,
        Better::Lower if lo > 1.0 => Verdict::Worse,
        _ => Verdict::Unclear,
    }
}

/// A metric's name for a reader: `ops_per_s` is "ops/s".
pub(super) fn metric(name: &str) -> String {
    name.replace("_per_s", "/s").replace('_', " ")
}

/// What the run found, in sentences: each configuration against its base, then each arm against stock.
pub(super) fn sentences(report: &Report) -> Vec<String> {
    let mut all = Vec::new();
    let mut pairs: Vec<(&str, &str, &str)> = Vec::new();
    for share in &report.comparisons {
        let pair = (share.of.as_str(), share.to.as_str(), share.arm.as_str());
        if !pairs.contains(&pair) {
            pairs.push(pair);
        }
    }
    for (of, to, arm) in pairs {
        let shares = report.comparisons.iter().filter(|share| (&*share.of, &*share.to, &*share.arm) == (of, to, arm));
        let parts: Vec<String> = first_of(shares, |share| &share.load).map(part).collect();
        let under = if arm == STOCK { String::new() } else { format!(" under {arm}") };
        let (one, other) = (title(report, of), title(report, to));
        all.push(format!("{of}{under}: {one} together get, of what {other} gets: {}.", parts.join(", ")));
    }
    for (arm, _) in report.arms.iter().filter(|(arm, _)| arm != STOCK) {
        for (configuration, _) in &report.configurations {
            let here = |row: &&Row| {
                let place = row.load.split_once('@').is_none_or(|(_, place)| place == configuration);
                row.arm == *arm && place && !row.counted
            };
            let rows = first_of(report.summary.iter().filter(here), |row| &row.load);
            let parts: Vec<String> = rows.filter_map(against_stock).collect();
            if !parts.is_empty() {
                all.push(format!("{configuration} {arm} against stock: {}.", parts.join(", ")));
            }
        }
    }
    all
}

/// The first of every load: its main metric.
fn first_of<'a, T: 'a>(all: impl Iterator<Item = &'a T>, load: fn(&T) -> &String) -> impl Iterator<Item = &'a T> {
    let mut last = String::new();
    all.filter(move |one| {
        let first = *load(one) != last;
        last.clone_from(load(one));
        first
    })
}

fn title<'a>(report: &'a Report, configuration: &'a str) -> &'a str {
    let found = report.configurations.iter().find(|(name, _)| name == configuration);
    found.map(|(_, title)| title.as_str()).filter(|title| !title.is_empty()).unwrap_or(configuration)
}

fn part(share: &Share) -> String {
    let ratio = share.ratio.median;
    match share.better {
        Better::Higher => format!("{} {:.0} %", share.load, ratio * 100.0),
        Better::Lower => format!("{} {}", named(&share.load, &share.metric), factor(ratio)),
    }
}

/// A load's name in its label, which may have its configuration, too: `lock` of `lock@4x`.
pub(super) fn base(label: &str) -> &str {
    label.split('@').next().unwrap_or(label)
}

fn against_stock(row: &Row) -> Option<String> {
    let ratio = row.ratio_to_stock.as_ref()?;
    let load = base(&row.load);
    let name = if row.better == Better::Higher { load.to_owned() } else { named(load, &row.metric) };
    Some(format!("{name} {}", factor(ratio.median)))
}

/// A load with its metric, where that does not name the load already: "wake p99", "tick jitter max".
fn named(load: &str, name: &str) -> String {
    if name.starts_with(load) { metric(name) } else { format!("{load} {}", metric(name)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_needs_an_interval_beyond_one() {
        let ratio = |lo, hi| Compared { median: 2.0, lo, hi, pairs: 3 };
        assert_eq!(verdict(&ratio(Some(1.1), Some(3.0)), Better::Higher), Verdict::Better);
        assert_eq!(verdict(&ratio(Some(1.1), Some(3.0)), Better::Lower), Verdict::Worse);
        assert_eq!(verdict(&ratio(Some(0.9), Some(3.0)), Better::Higher), Verdict::Unclear);
        assert_eq!(verdict(&ratio(None, None), Better::Higher), Verdict::Unclear);
    }
}
