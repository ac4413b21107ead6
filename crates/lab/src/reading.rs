//! Figures. A [`Reading`] is one figure of one metric; a [`Sample`] is a reading that a run keeps, with boot, arm and load.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::metric::Better;

/// One figure.
#[derive(Debug, Clone, PartialEq)]
pub struct Reading {
    /// The metric's name.
    pub metric: String,
    /// Its unit.
    pub unit: String,
    /// Which way is good.
    pub better: Better,
    /// The value.
    pub value: f64,
}

impl Reading {
    /// A figure of that metric.
    pub fn new(metric: impl Into<String>, unit: &str, better: Better, value: f64) -> Self {
        Self { metric: metric.into(), unit: unit.to_owned(), better, value }
    }
}

/// Figures that a scenario hands back.
#[derive(Debug, Default)]
pub struct Readings(Vec<Reading>);

impl Readings {
    /// Adds one figure. Each metric may come once a run.
    pub fn push(&mut self, metric: &str, unit: &str, better: Better, value: f64) {
        self.0.push(Reading::new(metric, unit, better, value));
    }

    /// One after the other, in the order in which they were added.
    pub fn iter(&self) -> impl Iterator<Item = &Reading> {
        self.0.iter()
    }

    /// All of them, in that order.
    pub fn into_vec(self) -> Vec<Reading> {
        self.0
    }
}

/// A reading with where it is from: one value of one metric, of one load under one arm in one boot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Number of the boot it is from, lost boots counted, from 1. Figures are paired within a boot. Where arms need boots of
    /// their own, those of one turn have the same number.
    pub boot: u32,
    /// The arm.
    pub arm: String,
    /// The load, with its configuration where the experiment has several: `lock@4x`.
    pub load: String,
    /// The metric.
    pub metric: String,
    /// Its unit.
    pub unit: String,
    /// The value, all guests of the configuration together.
    pub value: f64,
    /// Number of the round within the boot, from 0.
    pub round: u32,
    /// Share of the CPU time that the host machine asked the development machine for and got, 0 to 1.
    pub share: f64,
    /// The share was too small, and stayed so when the sample was repeated.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub noisy: bool,
    /// How fast this computer was around the sample, in steps of a fixed work per µs; 0: nobody looked.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub speed: f64,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde's
fn is_zero(speed: &f64) -> bool {
    *speed == 0.0
}

/// What a metric is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Nature {
    /// Which way is good.
    pub better: Better,
    /// Whether a probe counted it, and not the load itself.
    pub counted: bool,
}

/// What every metric is, by load and metric.
pub type Natures = BTreeMap<(String, String), Nature>;
