//! Plots as inline SVG. Places along the axis are percentages, so that a plot is as wide as the page allows while its
//! dots stay round and its text keeps its size; colours come from the page's style, for light, dark and paper.
//!
//! A page with plots puts [`STYLE`] before its own style.

use std::fmt::Write as _;

use entrain_stats as stats;

use crate::figure::number;

/// What a page with plots needs of style, the colours of up to eight series among it.
pub const STYLE: &str = include_str!("plot.css");

/// Height of one row in pixels.
const ROW: u32 = 26;
/// Room at both ends for dots at the very edge, in per cent of the width.
const MARGIN: f64 = 2.0;

/// An axis from a least to a greatest value.
#[derive(Debug, Clone)]
pub struct Axis {
    lo: f64,
    hi: f64,
    log: bool,
    /// Values that are labelled.
    ticks: Vec<f64>,
}

impl Axis {
    /// An axis for these values: from zero, or logarithmic where they span more than a factor of 20.
    pub fn of(values: &[f64]) -> Self {
        let positive = values.iter().copied().filter(|value| *value > 0.0);
        let (lo, hi) = positive.fold((f64::INFINITY, 0.0f64), |(lo, hi), v| (lo.min(v), hi.max(v)));
        if hi == 0.0 {
            return Self { lo: 0.0, hi: 1.0, log: false, ticks: vec![0.0, 1.0] };
        }
        let zero = values.iter().any(|value| *value <= 0.0);
        if hi / lo > 20.0 && !zero { Self::log(lo, hi) } else { Self::linear(hi) }
    }

    /// A logarithmic axis around 1 that holds these ratios.
    pub fn of_ratios(ratios: &[f64]) -> Self {
        let widest = ratios.iter().map(|ratio| ratio.log10().abs()).filter(|log| log.is_finite()).fold(0.3, f64::max);
        let widest = 10f64.powf(widest * 1.05);
        let mut axis = Self { lo: 1.0 / widest, hi: widest, log: true, ticks: vec![] };
        let steps: &[f64] = if widest < 12.0 { &[1.0, 2.0, 5.0, 10.0] } else { &[1.0, 10.0, 100.0, 1000.0, 10_000.0] };
        axis.ticks = steps.iter().skip(1).map(|step| 1.0 / step).rev().chain(steps.iter().copied()).collect();
        axis.ticks.retain(|tick| (axis.lo..=axis.hi).contains(tick));
        axis
    }

    fn linear(hi: f64) -> Self {
        let rough = hi / 4.0;
        let power = 10f64.powf(rough.log10().floor());
        let step =
            [1.0, 2.0, 2.5, 5.0, 10.0].map(|m| m * power).into_iter().find(|step| *step >= rough).unwrap_or(rough);
        let count = (hi / step).ceil() as u32;
        let ticks: Vec<f64> = (0..=count).map(|i| f64::from(i) * step).collect();
        Self { lo: 0.0, hi: f64::from(count) * step, log: false, ticks }
    }

    fn log(lo: f64, hi: f64) -> Self {
        let (lo, hi) = (10f64.powf(lo.log10().floor()), 10f64.powf(hi.log10().ceil()));
        let decades = (hi / lo).log10().round() as i32;
        let every = (decades / 5 + 1) as usize;
        let ticks = (0..=decades).step_by(every).map(|i| lo * 10f64.powi(i)).collect();
        Self { lo, hi, log: true, ticks }
    }

    /// Place of a value, in per cent of the width.
    pub fn at(&self, value: f64) -> f64 {
        let share = if self.log {
            (value.max(self.lo).log10() - self.lo.log10()) / (self.hi.log10() - self.lo.log10())
        } else {
            (value - self.lo) / (self.hi - self.lo)
        };
        MARGIN + share.clamp(0.0, 1.0) * (100.0 - 2.0 * MARGIN)
    }

    /// The labelled foot of a plot.
    pub fn foot(&self, label: &dyn Fn(f64) -> String) -> String {
        let mut svg = r#"<svg class="axis" width="100%" height="18" aria-hidden="true">"#.to_owned();
        for tick in &self.ticks {
            let x = self.at(*tick);
            // A label at the edge would be cut off if it were centred.
            let anchor = if x < 8.0 {
                "start"
            } else if x > 92.0 {
                "end"
            } else {
                "middle"
            };
            let _ = write!(svg, r#"<text x="{x:.2}%" y="13" text-anchor="{anchor}">{}</text>"#, label(*tick));
        }
        svg + "</svg>"
    }

    fn open(&self, label: &str) -> String {
        let mut svg = format!(r#"<svg class="strip" width="100%" height="{ROW}" role="img" aria-label="{label}">"#);
        for tick in &self.ticks {
            let x = self.at(*tick);
            let _ = write!(svg, r#"<line class="grid" x1="{x:.2}%" x2="{x:.2}%" y1="0" y2="{ROW}"/>"#);
        }
        svg
    }

    fn line(&self, class: &str, from: f64, to: f64, y1: u32, y2: u32) -> String {
        let (x1, x2) = (self.at(from), self.at(to));
        format!(r#"<line class="{class}" x1="{x1:.2}%" x2="{x2:.2}%" y1="{y1}" y2="{y2}"/>"#)
    }
}

/// One dot of a strip: a value, what is told when the mouse rests on it, and whether it was taken amid noise.
#[derive(Debug, Clone)]
pub struct Dot {
    /// Where it is.
    pub value: f64,
    /// Told when the mouse rests on it; without markup.
    pub title: String,
    /// It is drawn hollow.
    pub noisy: bool,
}

/// A row with every sample as a dot, over a line from least to greatest, a box of the middle half, and the median.
pub fn strip(axis: &Axis, dots: &[Dot], label: &str) -> String {
    let mut svg = axis.open(label);
    let mut sorted: Vec<f64> = dots.iter().map(|dot| dot.value).collect();
    sorted.sort_by(f64::total_cmp);
    let mid = ROW / 2;
    if let (Some(lo), Some(hi)) = (sorted.first(), sorted.last()) {
        svg.push_str(&axis.line("range", *lo, *hi, mid, mid));
    }
    if let (Some(lower), Some(upper)) = (stats::quantile(&sorted, 0.25), stats::quantile(&sorted, 0.75)) {
        let (x, width) = (axis.at(lower), axis.at(upper) - axis.at(lower));
        let _ = write!(svg, r#"<rect class="box" x="{x:.2}%" width="{width:.2}%" y="5" height="{}"/>"#, ROW - 10);
    }
    for (i, dot) in dots.iter().enumerate() {
        // Dots of one place are spread over three heights, always the same, so that equal samples can be counted.
        let y = [mid, mid - 5, mid + 5][i % 3];
        let class = if dot.noisy { "dot noisy" } else { "dot" };
        let x = axis.at(dot.value);
        let _ = write!(
            svg,
            r#"<circle class="{class}" cx="{x:.2}%" cy="{y}" r="3.5"><title>{}</title></circle>"#,
            dot.title
        );
    }
    if let Some(median) = stats::median(&sorted) {
        svg.push_str(&axis.line("median", median, median, 2, ROW - 2));
    }
    svg + "</svg>"
}

/// A row with a ratio and its interval; `class` colours it by its verdict.
pub fn whisker(axis: &Axis, median: f64, interval: Option<(f64, f64)>, class: &str, label: &str) -> String {
    let mut svg = axis.open(label);
    let mid = ROW / 2;
    svg.push_str(&axis.line("one", 1.0, 1.0, 0, ROW));
    if let Some((lo, hi)) = interval {
        svg.push_str(&axis.line(&format!("interval {class}"), lo, hi, mid, mid));
        for end in [lo, hi] {
            svg.push_str(&axis.line(&format!("interval {class}"), end, end, mid - 4, mid + 4));
        }
    }
    let x = axis.at(median);
    let _ = write!(svg, r#"<circle class="ratio {class}" cx="{x:.2}%" cy="{mid}" r="4.5"/>"#);
    svg + "</svg>"
}

/// A row with a bar from zero, and a line at the whole.
pub fn bar(axis: &Axis, value: f64, interval: Option<(f64, f64)>, label: &str) -> String {
    let mut svg = axis.open(label);
    let mid = ROW / 2;
    let (x, width) = (axis.at(0.0), axis.at(value) - axis.at(0.0));
    let _ = write!(svg, r#"<rect class="bar" x="{x:.2}%" width="{width:.2}%" y="6" height="{}"/>"#, ROW - 12);
    if let Some((lo, hi)) = interval {
        svg.push_str(&axis.line("span", lo, hi, mid, mid));
    }
    svg.push_str(&axis.line("one", 1.0, 1.0, 0, ROW));
    svg + "</svg>"
}

/// Labels of an axis of values.
pub fn plain(value: f64) -> String {
    let (value, suffix) = match value.abs() {
        v if v >= 1e9 => (value / 1e9, "G"),
        v if v >= 1e6 => (value / 1e6, "M"),
        v if v >= 1e4 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    format!("{}{suffix}", number(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_value_has_a_place_in_order(mut values in prop::collection::vec(0.0f64..1e9, 1..40)) {
            let axis = Axis::of(&values);
            values.sort_by(f64::total_cmp);
            let places: Vec<f64> = values.iter().map(|value| axis.at(*value)).collect();
            prop_assert!(places.iter().all(|place| (MARGIN..=100.0 - MARGIN).contains(place)), "{axis:?} {places:?}");
            prop_assert!(places.is_sorted());
            prop_assert!((2..=8).contains(&axis.ticks.len()), "{axis:?}");
        }
    }

    #[test]
    fn a_wide_range_is_logarithmic_and_a_narrow_one_starts_at_zero() {
        assert!(Axis::of(&[10.0, 5000.0]).log);
        let narrow = Axis::of(&[80.0, 97.0]);
        assert_eq!((narrow.lo, narrow.hi, narrow.log), (0.0, 100.0, false));
        assert_eq!(Axis::of(&[]).ticks, [0.0, 1.0]);
    }
}
