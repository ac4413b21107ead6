//! Checks: conditions on the summary that decide the exit status.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::summary::{Row, Series, ratio};
use super::words;
use crate::experiment::{Check, Experiment, STOCK, Statistic};
use crate::reading::Sample;
use crate::runner::{self, Choice};

/// How a check came out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CheckResult {
    /// Its name.
    pub name: String,
    /// Whether it holds.
    pub ok: bool,
    /// The figure found, and the one wanted.
    pub detail: String,
    /// Where it does not hold: every figure of the samples that it was judged by, a line for each visit of an arm. Who
    /// reads a log has no other trace of a fault that is seen once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub evidence: Vec<String>,
}

/// Evaluates the checks that the run can decide: those of its architecture, of the arms that ran, and in a quick run
/// those that few samples can answer. A check without samples fails.
pub fn evaluate(experiment: &Experiment, choice: &Choice, samples: &[Sample], rows: &[Row]) -> Vec<CheckResult> {
    let run = runner::arms(experiment, choice);
    let applies = |check: &&Check| {
        let arms = [Some(&check.arm), check.to.as_ref()];
        check.arch.contains(&choice.arch)
            && !(choice.quick && check.full_only)
            && arms.into_iter().flatten().all(|name| run.iter().any(|arm| arm.name.as_ref() == name.as_ref()))
    };
    let checks = experiment.checks.iter().filter(applies);
    checks.map(|check| result(experiment, check, samples, rows, choice.seed)).collect()
}

fn result(experiment: &Experiment, check: &Check, samples: &[Sample], rows: &[Row], seed: u64) -> CheckResult {
    let name = check.name.as_ref().clone();
    let wanted = wanted(check);
    let Some(found) = figure(experiment, check, samples, rows, seed) else {
        let detail = format!("no samples to tell; wanted {wanted}");
        return CheckResult { name, ok: false, detail, evidence: Vec::new() };
    };
    let ok = check.at_least.is_none_or(|least| found >= least) && check.at_most.is_none_or(|most| found <= most);
    let evidence = if ok { Vec::new() } else { evidence(check, samples) };
    CheckResult { name, ok, detail: format!("{} {}; wanted {wanted}", what(check), words::number(found)), evidence }
}

/// What was measured of the check's load, in whichever configuration, under its arm and the one it is compared with.
fn evidence(check: &Check, samples: &[Sample]) -> Vec<String> {
    let other = check.to.as_ref().map_or(STOCK, |arm| arm.as_ref());
    let mut visits: BTreeMap<_, BTreeMap<&str, Vec<&Sample>>> = BTreeMap::new();
    for sample in samples {
        if words::base(&sample.load) == check.load.as_ref()
            && [check.arm.as_ref(), other].contains(&sample.arm.as_str())
        {
            let visit = visits.entry((sample.boot, &sample.load, &sample.arm)).or_default();
            visit.entry(&sample.metric).or_default().push(sample);
        }
    }
    let line = |((boot, load, arm), metrics): (_, BTreeMap<&str, Vec<&Sample>>)| {
        let all = |of: &dyn Fn(&Sample) -> f64, from: &[&Sample]| {
            from.iter().map(|sample| words::number(of(sample))).collect::<Vec<_>>().join(" ")
        };
        let share = metrics.values().next().map(|from| all(&|sample| sample.share, from)).unwrap_or_default();
        let figures = metrics.iter().map(|(metric, from)| format!("{metric} {}", all(&|sample| sample.value, from)));
        let figures = figures.collect::<Vec<_>>().join(", ");
        format!("boot {boot}, {load} under {arm}: {figures}; share of this computer {share}")
    };
    visits.into_iter().map(line).collect()
}

fn figure(experiment: &Experiment, check: &Check, samples: &[Sample], rows: &[Row], seed: u64) -> Option<f64> {
    let only = experiment.configurations[0].name.as_ref();
    let configuration = check.configuration.as_ref().map_or(only, |one| one.as_ref());
    let label = experiment.label(check.load.as_ref(), configuration);
    let series = Series { arm: check.arm.as_ref(), load: &label, metric: &check.metric };
    let other_label = match &check.to_configuration {
        Some(other) => experiment.label(check.load.as_ref(), other.as_ref()),
        None => label.clone(),
    };
    // Against another configuration the arm stays the same, unless another is named.
    let default_arm = if check.to_configuration.is_some() { series.arm } else { STOCK };
    let other = Series { arm: check.to.as_ref().map_or(default_arm, |arm| arm.as_ref()), load: &other_label, ..series };
    let row =
        || rows.iter().find(|row| row.arm == series.arm && row.load == series.load && row.metric == series.metric);
    match check.of {
        Statistic::Median => row().map(|row| row.median),
        Statistic::Min => row().map(|row| row.min),
        Statistic::Max => row().map(|row| row.max),
        Statistic::N => row().map(|row| row.n as f64),
        Statistic::Ratio => ratio(samples, series, other, seed).map(|ratio| ratio.median),
        Statistic::RatioLo => ratio(samples, series, other, seed)?.lo,
        Statistic::RatioHi => ratio(samples, series, other, seed)?.hi,
    }
}

fn what(check: &Check) -> String {
    let to = check.to_configuration.as_ref().or(check.to.as_ref()).map_or(STOCK, |one| one.as_ref());
    match check.of {
        Statistic::Median => "median".to_owned(),
        Statistic::Min => "smallest".to_owned(),
        Statistic::Max => "greatest".to_owned(),
        Statistic::N => "samples".to_owned(),
        Statistic::Ratio => format!("ratio to {to}"),
        Statistic::RatioLo => format!("lower end of the ratio to {to}"),
        Statistic::RatioHi => format!("upper end of the ratio to {to}"),
    }
}

fn wanted(check: &Check) -> String {
    match (check.at_least, check.at_most) {
        (Some(least), Some(most)) => format!("{} to {}", words::number(least), words::number(most)),
        (Some(least), None) => format!("at least {}", words::number(least)),
        (None, Some(most)) => format!("at most {}", words::number(most)),
        (None, None) => "anything".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::parse;

    fn sample(boot: u32, arm: &str, metric: &str, value: f64) -> Sample {
        let [arm, load, metric] = [arm, "wake", metric].map(str::to_owned);
        Sample { boot, arm, load, metric, unit: String::new(), value, round: 0, share: 0.97, noisy: false, speed: 0.0 }
    }

    #[test]
    fn a_bar_that_does_not_hold_tells_all_that_was_measured_of_its_load() {
        let gate = include_str!("../../experiments/gate.toml");
        let experiment = parse("gate", gate).unwrap();
        let name = "the host alone: at least 0.5 of stock's requests";
        let check = experiment.checks.iter().find(|check| check.name.as_ref() == name).unwrap();
        let with = |value| {
            let stock = sample(1, STOCK, "requests_per_s", 57_000.0);
            let other = sample(1, "entrain-both", "requests_per_s", 526_000.0);
            let host = ["requests_per_s", "context_switches"].map(|metric| sample(1, "entrain-host", metric, value));
            result(&experiment, check, &[&[stock, other][..], &host].concat(), &[], 1)
        };
        let bad = with(27_300.0);
        assert!(!bad.ok && bad.evidence.len() == 2, "{:?}", bad.evidence);
        let host = "wake under entrain-host: context_switches 27,300, requests_per_s 27,300; share";
        assert!(bad.evidence[0].contains(host), "{:?}", bad.evidence);
        let good = with(57_000.0);
        assert!(good.ok && good.evidence.is_empty());
    }
}
