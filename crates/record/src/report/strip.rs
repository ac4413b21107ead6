//! Drawings: stacked bars and timelines, as SVG.

use std::fmt::Write as _;

use crate::analysis::{Segment, State, Times};

/// Columns of a timeline.
const COLUMNS: usize = 480;
/// Height of a timeline in its own units.
const HEIGHT: f64 = 100.0;

/// Time in all states, side by side.
pub(super) fn bar(times: &Times, label: &str) -> String {
    let mut svg = format!(
        "<svg class=\"bar\" viewBox=\"0 0 1000 10\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{label}\">"
    );
    let mut at = 0.0;
    for state in State::ALL {
        let width = times.share(state) * 1000.0;
        if width >= 0.05 {
            let _ = write!(
                svg,
                "<rect class=\"{}\" x=\"{at:.1}\" y=\"0\" width=\"{width:.1}\" height=\"10\"><title>{} {:.2} %</title></rect>",
                state.key(),
                state.words(),
                times.share(state) * 100.0
            );
        }
        at += width;
    }
    svg + "</svg>"
}

/// What a vCPU did over time: each column is a part of the recording, its colours the shares of the states in it.
pub(super) fn strip(segments: &[Segment], span_ns: u64, label: &str) -> String {
    let columns = columns(segments, span_ns);
    let mut svg = format!(
        "<svg class=\"strip\" viewBox=\"0 0 {COLUMNS} {HEIGHT}\" preserveAspectRatio=\"none\" role=\"img\" \
         aria-label=\"{label}\">"
    );
    for (index, state) in State::ALL.into_iter().enumerate() {
        // One path a state keeps the page small: M moves, then right, down, left.
        let mut path = String::new();
        for (x, shares) in columns.iter().enumerate() {
            let height = shares[index] * HEIGHT;
            if height >= 0.5 {
                // Stacked from the bottom up, running first.
                let below: f64 = shares[..index].iter().sum();
                let top = HEIGHT - below * HEIGHT - height;
                let _ = write!(path, "M{x} {top:.0}h1v{height:.0}h-1z");
            }
        }
        if !path.is_empty() {
            let _ = write!(svg, "<path class=\"{}\" d=\"{path}\"/>", state.key());
        }
    }
    svg + "</svg>"
}

/// Shares of the states in each column, 0..=1.
fn columns(segments: &[Segment], span_ns: u64) -> Vec<[f64; 7]> {
    let width = span_ns.max(1) as f64 / COLUMNS as f64;
    let mut columns = vec![[0.0; 7]; COLUMNS];
    for segment in segments {
        let first = (segment.start as f64 / width) as usize;
        let last = ((segment.end as f64 / width) as usize).min(COLUMNS - 1);
        for (x, column) in columns.iter_mut().enumerate().take(last + 1).skip(first) {
            let start = (segment.start as f64).max(x as f64 * width);
            let end = (segment.end as f64).min((x + 1) as f64 * width);
            column[segment.state as usize] += (end - start).max(0.0) / width;
        }
    }
    columns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_hold_shares() {
        let segments = [
            Segment { start: 0, end: 720, state: State::Running },
            Segment { start: 720, end: 960, state: State::Ready },
        ];
        let columns = columns(&segments, 960);
        assert_eq!(columns[0][State::Running as usize], 1.0);
        assert_eq!(columns[479][State::Ready as usize], 1.0);
        let sum: f64 = columns.iter().flatten().sum();
        assert!((sum - COLUMNS as f64).abs() < 1e-6);
    }
}
