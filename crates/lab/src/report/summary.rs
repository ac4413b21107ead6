//! From samples to figures: by load, metric and arm, and between configurations.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::experiment::{Experiment, STOCK};
use crate::metric::Better;
use crate::reading::{Nature, Natures, Sample};
use entrain_stats as stats;

/// One line of the summary.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The arm.
    pub arm: String,
    /// The load, with its configuration.
    pub load: String,
    /// The metric.
    pub metric: String,
    /// Its unit.
    pub unit: String,
    /// Which way is good.
    pub better: Better,
    /// Whether a probe counted it, and not the load itself.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub counted: bool,
    /// Samples.
    pub n: usize,
    /// Their median.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The greatest.
    pub max: f64,
    /// Against stock in the same configuration, paired within the boot; none for stock itself, and where no pair is.
    pub ratio_to_stock: Option<Compared>,
}

/// A ratio of pairs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Compared {
    /// Median of the pairs' ratios.
    pub median: f64,
    /// Lower end of its bootstrap 95 % interval; none with fewer than two pairs.
    pub lo: Option<f64>,
    /// Upper end.
    pub hi: Option<f64>,
    /// Pairs.
    pub pairs: usize,
}

/// A configuration as a share of another.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Share {
    /// The configuration asked about.
    pub of: String,
    /// The one it is compared with.
    pub to: String,
    /// The arm.
    pub arm: String,
    /// The load, without its configuration.
    pub load: String,
    /// The metric.
    pub metric: String,
    /// Which way is good.
    pub better: Better,
    /// The ratio.
    pub ratio: Compared,
}

/// One set of samples: an arm, a load's label, a metric.
#[derive(Debug, Clone, Copy)]
pub(super) struct Series<'a> {
    pub(super) arm: &'a str,
    pub(super) load: &'a str,
    pub(super) metric: &'a str,
}

/// The summary, in the experiment's order of loads, configurations, metrics and arms.
pub fn rows(experiment: &Experiment, samples: &[Sample], natures: &Natures, seed: u64) -> Vec<Row> {
    let mut rows = Vec::new();
    for load in &experiment.loads {
        for configuration in &experiment.configurations {
            let label = experiment.label(load.name.as_ref(), configuration.name.as_ref());
            for metric in metrics(samples, &label) {
                for arm in &experiment.arms {
                    let series = Series { arm: arm.name.as_ref(), load: &label, metric };
                    rows.extend(row(samples, series, natures, seed));
                }
            }
        }
    }
    rows
}

/// Metrics of a load in the order in which they first came: the declared ones, then the probes'.
fn metrics<'a>(samples: &'a [Sample], load: &str) -> Vec<&'a str> {
    let mut seen: Vec<&str> = Vec::new();
    for sample in samples.iter().filter(|sample| sample.load == load) {
        if !seen.contains(&sample.metric.as_str()) {
            seen.push(&sample.metric);
        }
    }
    seen
}

fn row(samples: &[Sample], series: Series, natures: &Natures, seed: u64) -> Option<Row> {
    let mine: Vec<&Sample> = samples.iter().filter(|sample| series.has(sample)).collect();
    let spread = stats::spread(&mine.iter().map(|sample| sample.value).collect::<Vec<_>>())?;
    let stock = Series { arm: STOCK, ..series };
    let nature = nature(natures, series);
    let ratio = if series.arm == STOCK { None } else { ratio(samples, series, stock, seed) };
    Some(Row {
        arm: series.arm.to_owned(),
        load: series.load.to_owned(),
        metric: series.metric.to_owned(),
        unit: mine[0].unit.clone(),
        better: nature.better,
        counted: nature.counted,
        n: spread.n,
        median: spread.median,
        min: spread.min,
        max: spread.max,
        ratio_to_stock: ratio,
    })
}

/// Every sample has put its metric's nature there.
fn nature(natures: &Natures, series: Series) -> Nature {
    let key = (series.load.to_owned(), series.metric.to_owned());
    natures.get(&key).copied().unwrap_or(Nature { better: Better::Higher, counted: false })
}

/// Ratio of one series to another, paired by boot and round.
pub(super) fn ratio(samples: &[Sample], of: Series, to: Series, seed: u64) -> Option<Compared> {
    let mut boots: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
    for sample in samples.iter().filter(|sample| of.has(sample)) {
        let other = samples
            .iter()
            .find(|other| to.has(other) && (other.boot, other.round) == (sample.boot, sample.round))
            // Nothing can be said of a ratio to zero: the pair is left out, and `pairs` tells.
            .filter(|other| other.value != 0.0);
        if let Some(other) = other {
            boots.entry(sample.boot).or_default().push(sample.value / other.value);
        }
    }
    let boots: Vec<Vec<f64>> = boots.into_values().collect();
    let ratio = stats::ratio(&boots, seed)?;
    let (lo, hi) = ratio.interval.unzip();
    Some(Compared { median: ratio.median, lo, hi, pairs: ratio.pairs })
}

/// The experiment's comparisons: of every load's first metric, and of the others that the load declares.
pub fn shares(experiment: &Experiment, samples: &[Sample], natures: &Natures, seed: u64) -> Vec<Share> {
    let mut shares = Vec::new();
    for comparison in &experiment.comparisons {
        let (of, to) = (comparison.of.as_ref(), comparison.to.as_ref());
        let arm = comparison.arm.as_ref().map_or(STOCK, |arm| arm.as_ref());
        for load in &experiment.loads {
            for metric in &load.metrics {
                let (one, other) = (experiment.label(load.name.as_ref(), of), experiment.label(load.name.as_ref(), to));
                let metric = metric.name.as_ref();
                let series = Series { arm, load: &one, metric };
                if let Some(ratio) = ratio(samples, series, Series { load: &other, ..series }, seed) {
                    shares.push(Share {
                        of: of.clone(),
                        to: to.clone(),
                        arm: arm.to_owned(),
                        load: load.name.as_ref().clone(),
                        metric: metric.clone(),
                        better: nature(natures, series).better,
                        ratio,
                    });
                }
            }
        }
    }
    shares
}

impl Series<'_> {
    fn has(&self, sample: &Sample) -> bool {
        sample.arm == self.arm && sample.load == self.load && sample.metric == self.metric
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(boot: u32, round: u32, arm: &str, value: f64) -> Sample {
        let (load, metric, unit) = ("lock".to_owned(), "ops".to_owned(), "1/s".to_owned());
        Sample { boot, arm: arm.to_owned(), load, metric, unit, value, round, share: 1.0, noisy: false, speed: 0.0 }
    }

    #[test]
    fn pairs_are_of_the_same_boot_and_round() {
        let samples = [
            sample(1, 0, STOCK, 10.0),
            sample(1, 0, "new", 20.0),
            sample(1, 1, "new", 1000.0),
            sample(2, 0, STOCK, 100.0),
            sample(2, 0, "new", 300.0),
            sample(3, 0, STOCK, 0.0),
            sample(3, 0, "new", 5.0),
        ];
        let of = Series { arm: "new", load: "lock", metric: "ops" };
        let found = ratio(&samples, of, Series { arm: STOCK, ..of }, 1).unwrap();
        assert_eq!((found.median, found.lo, found.hi, found.pairs), (2.5, Some(2.0), Some(3.0), 2));
        assert_eq!(ratio(&samples[2..3], of, Series { arm: STOCK, ..of }, 1), None);
    }
}
