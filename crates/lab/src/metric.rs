//! What is measured: a metric's name and unit, and which way of it is good. A [`crate::reading::Reading`] is one figure of it.

use serde::{Deserialize, Serialize};
use toml::Spanned;

/// A metric of a load, as its experiment declares it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Metric {
    /// Its name in samples and summary, and in the load's output where `from` says nothing else.
    pub name: Spanned<String>,
    /// Its name in the load's output.
    pub from: Option<String>,
    /// Its unit, as `1/s`, `MB/s`, `us`.
    pub unit: String,
    /// Which way is good.
    pub better: Better,
    /// How the guests' values make one.
    #[serde(default)]
    pub combine: Combine,
}

/// Which direction of a figure is good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// Throughput and the like.
    Higher,
    /// Latency, cost and the like.
    Lower,
}

/// How several guests' values make one sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Combine {
    /// Their sum: throughput of the whole host.
    #[default]
    Sum,
    /// Their mean.
    Mean,
    /// The greatest: the worst latency.
    Max,
    /// The smallest: the worst share of time.
    Min,
}
