//! The lab's stored results, as far as they are compared with.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

/// A stored result: `docs/results/*.json.gz`, or the same not compressed.
#[derive(Debug, Deserialize)]
pub struct Results {
    /// Which experiment.
    pub experiment: String,
    /// The commit that was measured.
    #[serde(default)]
    pub commit: String,
    /// When the run began, seconds since 1970.
    #[serde(default)]
    pub started: u64,
    samples: Vec<Sample>,
}

#[derive(Debug, Deserialize)]
struct Sample {
    arm: String,
    load: String,
    metric: String,
    value: f64,
    #[serde(default)]
    configuration: Option<String>,
}

/// A ratio to stock: the median of the samples by that of stock's, and their least and most by it.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, Deserialize)]
pub struct Ratio {
    /// Median by median.
    pub median: f64,
    /// The least sample by stock's median.
    pub least: f64,
    /// The largest.
    pub most: f64,
    /// Samples.
    pub samples: usize,
}

impl Results {
    /// Reads a file.
    ///
    /// # Errors
    /// When it cannot be read, or is no result of the lab's.
    pub fn read(path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
        let mut text = String::new();
        if bytes.starts_with(&[0x1f, 0x8b]) {
            flate2::read::GzDecoder::new(&bytes[..]).read_to_string(&mut text)
        } else {
            (&bytes[..]).read_to_string(&mut text)
        }
        .with_context(|| format!("{} is no text", path.display()))?;
        let results: Self = serde_json::from_str(&text)
            .with_context(|| format!("{} is no result of `entrain lab run --json`", path.display()))?;
        ensure!(!results.samples.is_empty(), "{} holds no samples", path.display());
        Ok(results)
    }

    /// Ratios to stock by load, metric and arm, of the configuration `4x` where there are several.
    pub fn ratios(&self) -> BTreeMap<(String, String, String), Ratio> {
        let mut values: BTreeMap<(&str, &str, &str), Vec<f64>> = BTreeMap::new();
        for sample in &self.samples {
            if sample.configuration.as_deref().is_none_or(|name| name == "4x") {
                values.entry((&sample.load, &sample.metric, &sample.arm)).or_default().push(sample.value);
            }
        }
        for list in values.values_mut() {
            list.sort_by(f64::total_cmp);
        }
        let median = |list: &[f64]| (list[(list.len() - 1) / 2] + list[list.len() / 2]) / 2.0;
        let mut ratios = BTreeMap::new();
        for ((load, metric, arm), list) in &values {
            let Some(stock) = values.get(&(*load, *metric, "stock")).map(|list| median(list)) else { continue };
            if *arm == "stock" || stock == 0.0 {
                continue;
            }
            let ratio = Ratio {
                median: median(list) / stock,
                least: list[0] / stock,
                most: list[list.len() - 1] / stock,
                samples: list.len(),
            };
            ratios.insert(((*load).to_owned(), (*metric).to_owned(), (*arm).to_owned()), ratio);
        }
        ratios
    }
}
