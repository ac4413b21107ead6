//! Checks: conditions on the summary that decide the exit status.

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
        return CheckResult { name, ok: false, detail: format!("no samples to tell; wanted {wanted}") };
    };
    let ok = check.at_least.is_none_or(|least| found >= least) && check.at_most.is_none_or(|most| found <= most);
    CheckResult { name, ok, detail: format!("{} {}; wanted {wanted}", what(check), words::number(found)) }
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
