//! When a prediction is right, and how many of many are.

use std::fmt;

/// A figure counts as unchanged within this part of what it is compared with.
const EVEN: f64 = 0.1;
/// A prediction is near when it is within this part of what it predicts.
pub const NEAR: f64 = 0.25;

/// Whether two ratios say the same: more, less, or about as much.
pub fn same_direction(one: f64, other: f64) -> bool {
    let direction = |ratio: f64| match ratio {
        ratio if ratio > 1.0 + EVEN => 1,
        ratio if ratio < 1.0 / (1.0 + EVEN) => -1,
        _ => 0,
    };
    direction(one) == direction(other)
}

/// How one row of a table came out.
#[derive(Clone, Copy, Debug)]
pub struct Verdict {
    /// Whether its direction is right; `None`: it is a figure by itself, compared with nothing that could give it one.
    pub sign: Option<bool>,
    /// Predicted by what it predicts, less one.
    pub error: f64,
}

impl Verdict {
    /// Whether it is within [`NEAR`] of what it predicts.
    pub fn near(self) -> bool {
        self.error.abs() <= NEAR
    }
}

/// How many rows came out how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// All.
    pub rows: usize,
    /// Those that have a direction.
    pub signs: usize,
    /// Those whose direction is right.
    pub right: usize,
    /// Those that are near.
    pub near: usize,
}

impl FromIterator<Verdict> for Totals {
    fn from_iter<I: IntoIterator<Item = Verdict>>(verdicts: I) -> Self {
        let mut totals = Self::default();
        for verdict in verdicts {
            totals.rows += 1;
            totals.signs += usize::from(verdict.sign.is_some());
            totals.right += usize::from(verdict.sign == Some(true));
            totals.near += usize::from(verdict.near());
        }
        totals
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rows, signs, right, near } = self;
        write!(f, "{rows} rows: direction right in {right} of {signs}, within {:.0} % in {near}", NEAR * 100.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenth_is_no_change() {
        assert!(same_direction(2.0, 1.6) && same_direction(1.05, 0.95) && same_direction(0.5, 0.1));
        assert!(!same_direction(2.0, 0.8) && !same_direction(2.0, 1.0) && !same_direction(1.0, 0.9));
    }

    #[test]
    fn rows_without_a_direction_are_counted_apart() {
        let rows = [(Some(true), 0.25), (Some(false), -0.3), (None, f64::NAN)];
        let totals: Totals = rows.into_iter().map(|(sign, error)| Verdict { sign, error }).collect();
        assert_eq!(totals, Totals { rows: 3, signs: 2, right: 1, near: 1 });
        assert_eq!(totals.to_string(), "3 rows: direction right in 1 of 2, within 25 % in 1");
    }
}
