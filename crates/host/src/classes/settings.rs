//! What a class may say of its VMs: the keys of `[class.NAME]`, their units, their ranges.

use std::ops::RangeInclusive;

use serde::Deserialize;
use toml::Spanned;

use entrain_config::{ConfigError, Source};

use super::within;

/// One class. What it leaves out stays as it is without a class.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Class {
    /// `cpu.weight` of cgroup v2 for its VMs, 1..=10000.
    pub weight: Option<u64>,
    /// The least that each of its VMs gets while it wants it, 1/1024 pCPU.
    pub minimum: Option<u64>,
    /// What its VMs' guests are told.
    pub publish: Option<Publish>,
    /// For the host's scheduler; without effect in mode `observe`.
    pub schedule: Schedule,
}

/// What guests are told; what is left out would tell of their neighbours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Publish {
    /// All that is known.
    #[default]
    All,
    /// The states of the guest's own vCPUs alone.
    Own,
    /// Nothing: there is no pairing.
    None,
}

/// What the host's scheduler is told of a VM; times in ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// A vCPU inside a critical section of its guest may stay on its pCPU beyond its slice.
    pub extensions: Option<bool>,
    /// Most that a vCPU can have saved up for extensions.
    pub burst: Option<u64>,
    /// How fast it saves up, parts per million of wall time.
    pub rate_ppm: Option<u64>,
    /// Target for the wait of a vCPU that wakes.
    pub latency: Option<u64>,
}

/// The table as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ClassTable {
    weight: Option<Spanned<i64>>,
    minimum_pcpus: Option<Spanned<f64>>,
    publish: Option<Publish>,
    extensions: Option<bool>,
    extension_burst_us: Option<Spanned<i64>>,
    extension_percent: Option<Spanned<i64>>,
    latency_ms: Option<Spanned<i64>>,
}

impl ClassTable {
    /// Takes over into `class` what the table says. `most` is what all minima of this host may be, in 1/1024 pCPU.
    pub(super) fn change(&self, class: &mut Class, source: &Source<'_>, most: u64) -> Result<(), ConfigError> {
        let number = |value: &Option<Spanned<i64>>, range: RangeInclusive<i64>, what| {
            value.as_ref().map(|value| within(source, value, range, what).map(|value| value as u64)).transpose()
        };
        class.weight = number(&self.weight, 1..=10_000, "a weight")?.or(class.weight);
        if let Some(value) = &self.minimum_pcpus {
            class.minimum = Some(minimum(value, source, most)?);
        }
        class.publish = self.publish.or(class.publish);
        let schedule = &mut class.schedule;
        schedule.extensions = self.extensions.or(schedule.extensions);
        // A burst is at most 50 ms; half of the time is where the class should have had the weight instead.
        schedule.burst =
            number(&self.extension_burst_us, 0..=50_000, "a burst in µs")?.map(|us| us * 1000).or(schedule.burst);
        schedule.rate_ppm =
            number(&self.extension_percent, 0..=50, "a share in %")?.map(|part| part * 10_000).or(schedule.rate_ppm);
        schedule.latency =
            number(&self.latency_ms, 1..=1000, "a target in ms")?.map(|ms| ms * 1_000_000).or(schedule.latency);
        let budget = [&self.extension_burst_us, &self.extension_percent].into_iter().flatten().next();
        match budget {
            Some(key) if schedule.extensions == Some(false) => {
                Err(source.error(Some(key.span()), "a budget for extensions, and extensions = false: leave one out"))
            }
            _ => Ok(()),
        }
    }
}

fn minimum(value: &Spanned<f64>, source: &Source<'_>, most: u64) -> Result<u64, ConfigError> {
    let (pcpus, most) = (*value.as_ref(), most as f64 / 1024.0);
    if !(0.0..=most).contains(&pcpus) {
        let message = format!("a minimum is from 0 to {most:.2} pCPUs on this host (nine tenths of it), not {pcpus}");
        return Err(source.error(Some(value.span()), message));
    }
    Ok((pcpus * 1024.0).round() as u64)
}

impl Class {
    /// The class in words, for `--check-config`.
    pub(super) fn describe(&self) -> String {
        let mut text = format!("weight {}", self.weight.map_or("as it is".to_owned(), |weight| weight.to_string()));
        let mut add = |words: String| {
            text += ", ";
            text += &words;
        };
        if let Some(minimum) = self.minimum {
            add(format!("at least {:.2} pCPUs", minimum as f64 / 1024.0));
        }
        match self.publish {
            Some(Publish::Own) => add("guests are told of themselves only".to_owned()),
            Some(Publish::None) => add("guests are told nothing".to_owned()),
            Some(Publish::All) | None => {}
        }
        let Schedule { extensions, burst, rate_ppm, latency } = self.schedule;
        match extensions {
            Some(false) => add("no extensions".to_owned()),
            Some(true) | None => {
                if let Some(burst) = burst {
                    add(format!("extensions of {} µs", burst / 1000));
                }
                if let Some(rate) = rate_ppm {
                    add(format!("extensions for {} % of the time", rate / 10_000));
                }
            }
        }
        if let Some(latency) = latency {
            add(format!("wake-ups within {} ms", latency / 1_000_000));
        }
        text
    }
}
