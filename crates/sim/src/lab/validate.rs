//! Predicted against measured: what the simulator says of the lab's experiments beside what the lab has found.

use std::collections::BTreeMap;

use comfy_table::{CellAlignment, Table, presets};

use super::measured::{Ratio, Results};
use super::{ARMS, EXPERIMENTS, Experiment};
use crate::accuracy::{Totals, Verdict, same_direction};
use crate::costs::Costs;

/// One row.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Row {
    /// The load.
    pub load: String,
    /// Its figure.
    pub metric: String,
    /// The arm.
    pub arm: String,
    /// The lab's ratio to stock.
    pub measured: Ratio,
    /// The simulator's.
    pub predicted: f64,
    /// The same direction: more, less, or about as much as stock.
    pub sign: bool,
    /// Predicted by measured, less one.
    pub error: f64,
}

impl Row {
    fn of(load: &str, metric: &str, arm: &str, measured: Ratio, predicted: f64) -> Self {
        Self {
            load: load.to_owned(),
            metric: metric.to_owned(),
            arm: arm.to_owned(),
            measured,
            predicted,
            sign: same_direction(measured.median, predicted),
            error: predicted / measured.median - 1.0,
        }
    }

    /// How it came out.
    pub fn verdict(&self) -> Verdict {
        Verdict { sign: Some(self.sign), error: self.error }
    }
}

/// The experiments' figures under every arm: the median of several seeds, as the lab's of several samples.
fn predict(experiment: &Experiment, seeds: u64, costs: Costs) -> BTreeMap<(&'static str, &'static str), f64> {
    let mut values: BTreeMap<_, Vec<f64>> = BTreeMap::new();
    for arm in ARMS {
        for seed in 1..=seeds {
            let mut setup = experiment.build(seed, arm);
            setup.world.set_costs(costs);
            setup.world.run(setup.end);
            for metric in experiment.metrics {
                values.entry((metric.name, arm.name)).or_default().push(metric.read(&setup.world, &setup.measured));
            }
        }
    }
    values
        .into_iter()
        .map(|(key, mut list)| {
            list.sort_by(f64::total_cmp);
            (key, list[list.len() / 2])
        })
        .collect()
}

/// The experiment in the lab's files that a modelled one stands for: `tour` and `messages` are parts of `overcommit`.
fn experiment_of(results: &Results) -> &str {
    if matches!(results.experiment.as_str(), "tour" | "messages") { "overcommit" } else { &results.experiment }
}

/// Predicts all rows of a result whose loads are modelled.
pub fn validate(results: &Results, seeds: u64, costs: Costs) -> Vec<Row> {
    let ratios = results.ratios();
    let mut rows = Vec::new();
    for experiment in EXPERIMENTS {
        let (of, load) = experiment.name.split_once('/').expect("names have two parts");
        if of != experiment_of(results) || !ratios.keys().any(|(name, ..)| name == load) {
            continue;
        }
        let predicted = predict(experiment, seeds, costs);
        for ((name, metric, arm), ratio) in ratios.iter().filter(|((name, ..), _)| name == load) {
            let of = |arm: &str| predicted.iter().find(|((m, a), _)| m == metric && *a == arm).map(|(_, value)| *value);
            if let (Some(value), Some(stock)) = (of(arm), of("stock")) {
                rows.push(Row::of(name, metric, arm, *ratio, value / stock));
            }
        }
    }
    rows
}

/// The rows as a table, and how many are right.
pub fn table(rows: &[Row]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["load", "figure", "arm", "measured", "least", "most", "predicted", "sign", "error"]);
    for row in rows {
        let two = |value: f64| format!("{value:.2}");
        table.add_row([
            row.load.clone(),
            row.metric.clone(),
            row.arm.clone(),
            two(row.measured.median),
            two(row.measured.least),
            two(row.measured.most),
            two(row.predicted),
            if row.sign { "right" } else { "WRONG" }.to_owned(),
            format!("{:+.0} %", row.error * 100.0),
        ]);
    }
    for column in table.column_iter_mut().skip(3) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let totals: Totals = rows.iter().map(Row::verdict).collect();
    format!("{table}\n{totals}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_knows_when_it_is_wrong() {
        let measured = |median| Ratio { median, least: median, most: median, samples: 1 };
        let row = |median, predicted| Row::of("lock", "ops", "host", measured(median), predicted);
        assert!(row(2.0, 1.6).sign && row(2.0, 1.6).verdict().near());
        assert!(!row(2.0, 0.8).sign && row(2.0, 3.0).sign && !row(2.0, 3.0).verdict().near());
    }
}
