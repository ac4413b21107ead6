//! Figures and ratios as a reader wants to see them.

use super::Report;
use super::summary::{Compared, Share};
use crate::experiment::Better;

/// Three figures that count, with thousands set apart: `1,234,000`, `12.3`, `0.0123`.
pub(super) fn number(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return format!("{value}");
    }
    let magnitude = value.abs().log10().floor() as i32;
    if magnitude >= 3 {
        let step = 10f64.powi((magnitude - 2).min(3));
        return thousands((value / step).round() * step);
    }
    // Rounding can carry into the next magnitude: 9.995 shows as 10.0.
    let decimals = (2 - magnitude).clamp(0, 9) as usize;
    let text = format!("{value:.decimals$}");
    let whole = decimals > 0 && text.trim_end_matches('0').ends_with('.');
    if whole { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

fn thousands(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if value < 0.0 { format!("-{text}") } else { text }
}

/// A ratio as a factor: `1.52×`.
pub(super) fn factor(ratio: f64) -> String {
    if ratio >= 100.0 {
        format!("{}×", number(ratio))
    } else if ratio >= 10.0 {
        format!("{ratio:.1}×")
    } else {
        format!("{ratio:.2}×")
    }
}

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

/// What the comparisons say, one sentence for each pair of configurations.
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
        let parts: Vec<String> = primary(shares).map(part).collect();
        let under = if arm == crate::experiment::STOCK { String::new() } else { format!(" under {arm}") };
        all.push(format!("At {of}{under}, all guests together, against {to}: {}.", parts.join("; ")));
    }
    all
}

/// The first metric of every load.
fn primary<'a>(shares: impl Iterator<Item = &'a Share>) -> impl Iterator<Item = &'a Share> {
    let mut last = String::new();
    shares.filter(move |share| {
        let first = share.load != last;
        last.clone_from(&share.load);
        first
    })
}

fn part(share: &Share) -> String {
    let ratio = share.ratio.median;
    match share.better {
        Better::Higher => format!("{} {:.0} %", share.load, ratio * 100.0),
        Better::Lower => format!("{} {} {}", share.load, share.metric.replace('_', " "), factor(ratio)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_three_figures() {
        let all = [1_234_567.0, 1234.4, 999.6, 99.96, 12.34, 12.0, 0.012345, 0.0, -45_678.0];
        let text: Vec<String> = all.iter().map(|value| number(*value)).collect();
        assert_eq!(text, ["1,235,000", "1,230", "1000", "100", "12.3", "12", "0.0123", "0", "-45,700"]);
    }

    #[test]
    fn a_verdict_needs_an_interval_beyond_one() {
        let ratio = |lo, hi| Compared { median: 2.0, lo, hi, pairs: 3 };
        assert_eq!(verdict(&ratio(Some(1.1), Some(3.0)), Better::Higher), Verdict::Better);
        assert_eq!(verdict(&ratio(Some(1.1), Some(3.0)), Better::Lower), Verdict::Worse);
        assert_eq!(verdict(&ratio(Some(0.9), Some(3.0)), Better::Higher), Verdict::Unclear);
        assert_eq!(verdict(&ratio(None, None), Better::Higher), Verdict::Unclear);
    }
}
