//! What the vCPUs did during the last minute.

use std::collections::{HashMap, VecDeque};

use super::rows::Row;

/// How far back, ns.
const SPAN_NS: u64 = 60_000_000_000;
/// Samples of a vCPU at most, whatever the interval.
const SAMPLES: usize = 600;

/// One interval of one vCPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sample {
    pub(super) end_ns: u64,
    /// Shares of the interval, %.
    pub(super) run: f64,
    pub(super) ready: f64,
}

/// Samples by vCPU thread, oldest first.
#[derive(Debug, Default)]
pub(super) struct History {
    samples: HashMap<i32, VecDeque<Sample>>,
}

impl History {
    /// Adds an interval; `rows` are those of all vCPUs. vCPUs that are gone are forgotten.
    pub(super) fn add(&mut self, end_ns: u64, rows: &[Row]) {
        self.samples.retain(|tid, _| rows.iter().any(|row| row.tid == Some(*tid)));
        for row in rows {
            let Some(tid) = row.tid else { continue };
            let samples = self.samples.entry(tid).or_default();
            samples.push_back(Sample { end_ns, run: row.run, ready: row.ready });
            while samples.len() > SAMPLES || samples.front().is_some_and(|old| old.end_ns + SPAN_NS <= end_ns) {
                samples.pop_front();
            }
        }
    }

    /// The last minute of a vCPU as `columns` values in thousandths, the newest last; each is the highest of its time.
    pub(super) fn columns(&self, tid: i32, columns: usize, of: fn(&Sample) -> f64) -> Vec<u64> {
        let mut out = vec![0; columns];
        let Some(samples) = self.samples.get(&tid) else { return out };
        let Some(newest) = samples.back() else { return out };
        let mut free = 0;
        for sample in samples {
            let age = (newest.end_ns - sample.end_ns) as f64 / SPAN_NS as f64;
            let column = ((columns as f64 * (1.0 - age)).round() as usize).min(columns);
            // The first sample has one column; each later one all since the one before.
            let first = if free == 0 { column.saturating_sub(1) } else { free.min(column.saturating_sub(1)) };
            for value in &mut out[first..column] {
                *value = (*value).max((of(sample) * 10.0).round() as u64);
            }
            free = column;
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::rows::{rows, tests::status};

    #[test]
    fn a_minute_is_kept_newest_at_the_right() {
        let mut history = History::default();
        for second in 1..=90_u64 {
            let before = status(0, &[("a", &[(0, 0, 0)])]);
            let now = status(1_000_000_000, &[("a", &[(second * 10_000_000, 0, 0)])]);
            history.add(second * 1_000_000_000, &rows(&before, &now, false));
        }
        let columns = history.columns(0, 60, |sample| sample.run);
        assert_eq!((columns[59], columns[0]), (900, 310));
        assert_eq!(history.columns(0, 30, |sample| sample.run)[29], 900);
        assert!(history.columns(0, 170, |sample| sample.run)[3..].iter().all(|value| *value > 0), "no gaps");
        assert!(history.columns(77, 4, |sample| sample.run).iter().all(|value| *value == 0));
        history.add(1, &[]);
        assert!(history.samples.is_empty());
    }
}
