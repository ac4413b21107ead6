//! Order statistics and the bootstrap interval of a paired ratio.
//!
//! Medians throughout: one sample that a busy neighbour spoilt moves a mean by any amount, a median by one rank.

/// Resamples drawn for one interval; the ends of a 95 % interval then rest on about 50 draws each.
const RESAMPLES: usize = 2000;

/// Median, smallest and greatest of some values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// How many values there were.
    pub n: usize,
    /// The middle value; the mean of the two middle ones where `n` is even.
    pub median: f64,
    /// The smallest value.
    pub min: f64,
    /// The greatest value.
    pub max: f64,
}

/// A ratio with its 95 % interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ratio {
    /// Median of the pairs' ratios.
    pub median: f64,
    /// Ends of the interval; none where there are fewer than two pairs, from which nothing can be said of the spread.
    pub interval: Option<(f64, f64)>,
    /// How many pairs there were.
    pub pairs: usize,
}

/// Median of `values`, which need not be sorted; none where there is no value.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    median_of_sorted(&sorted)
}

/// Median and range of `values`; none where there is no value.
pub fn spread(values: &[f64]) -> Option<Spread> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let median = median_of_sorted(&sorted)?;
    Some(Spread { n: sorted.len(), median, min: sorted[0], max: sorted[sorted.len() - 1] })
}

/// The value below which the share `q` (0 to 1) of `sorted` lies, interpolated linearly.
pub fn quantile(sorted: &[f64], q: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let at = q.clamp(0.0, 1.0) * last as f64;
    let below = at.floor() as usize;
    let above = at.ceil() as usize;
    Some(sorted[below] + (sorted[above] - sorted[below]) * (at - below as f64))
}

/// Median of paired ratios with a percentile bootstrap interval (Efron 1979).
///
/// `boots` holds the ratios boot by boot. Whole boots are drawn anew, not single pairs, since samples of one boot
/// resemble each other; where there is one boot only, its pairs are drawn. The same `seed` gives the same interval.
pub fn ratio(boots: &[Vec<f64>], seed: u64) -> Option<Ratio> {
    let boots: Vec<&[f64]> = boots.iter().map(Vec::as_slice).filter(|pairs| !pairs.is_empty()).collect();
    let all: Vec<f64> = boots.iter().flat_map(|pairs| pairs.iter().copied()).collect();
    let middle = median(&all)?;
    if all.len() < 2 {
        return Some(Ratio { median: middle, interval: None, pairs: all.len() });
    }
    let single: Vec<&[f64]> = all.chunks(1).collect();
    let units = if boots.len() > 1 { &boots } else { &single };
    let mut random = SplitMix64(seed);
    let mut medians: Vec<f64> = Vec::with_capacity(RESAMPLES);
    let mut drawn: Vec<f64> = Vec::with_capacity(all.len());
    for _ in 0..RESAMPLES {
        drawn.clear();
        for _ in 0..units.len() {
            drawn.extend_from_slice(units[random.below(units.len())]);
        }
        medians.extend(median(&drawn));
    }
    medians.sort_by(f64::total_cmp);
    let interval = quantile(&medians, 0.025).zip(quantile(&medians, 0.975));
    Some(Ratio { median: middle, interval, pairs: all.len() })
}

/// How likely it is by chance alone that of `ratios` so many lie on one side of 1: the two-sided p value of the exact sign
/// test (Conover, Practical Nonparametric Statistics, 3.4). Ratios of 1 say nothing and are left out. A bootstrap of few
/// pairs is too sure of itself: three that happen to lie on one side, as they do in a quarter of all cases, leave 1 out.
pub fn sign_test(ratios: &[f64]) -> f64 {
    let above = ratios.iter().filter(|ratio| **ratio > 1.0).count();
    let below = ratios.iter().filter(|ratio| **ratio < 1.0).count();
    let n = above + below;
    // Binomial coefficients over 2^n, one from the other.
    let mut part = 0.5f64.powi(n as i32);
    let mut tail = 0.0;
    for i in 0..=above.min(below) {
        tail += part;
        part *= (n - i) as f64 / (i + 1) as f64;
    }
    (2.0 * tail).min(1.0)
}

fn median_of_sorted(sorted: &[f64]) -> Option<f64> {
    let half = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        n if n % 2 == 1 => Some(sorted[half]),
        _ => Some((sorted[half - 1] + sorted[half]) / 2.0),
    }
}

/// Steele, Lea and Flood's SplitMix64 (OOPSLA 2014): enough for resampling, and the same on every machine.
struct SplitMix64(u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`; the bias of the multiplication is below n/2^64.
    fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.next()) * n as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn median_of_odd_even_and_none() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn first_numbers_of_splitmix64_are_the_published_ones() {
        // The sequence for seed 1234567 that the reference implementation gives.
        let mut random = SplitMix64(1_234_567);
        assert_eq!([random.next(), random.next()], [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]);
    }

    #[test]
    fn a_sign_test_needs_six_of_a_kind() {
        let p = |above: usize, below: usize| sign_test(&[vec![2.0; above], vec![0.5; below], vec![1.0]].concat());
        assert_eq!((p(3, 0), p(5, 0), p(0, 6)), (0.25, 0.0625, 0.03125));
        assert!((p(9, 1) - 22.0 / 1024.0).abs() < 1e-12 && (p(7, 2) - 2.0 * 46.0 / 512.0).abs() < 1e-12);
        assert_eq!((p(0, 0), p(3, 3)), (1.0, 1.0));
    }

    #[test]
    fn one_pair_has_no_interval() {
        let one = ratio(&[vec![], vec![1.5]], 1).unwrap();
        assert_eq!((one.median, one.interval, one.pairs), (1.5, None, 1));
    }

    #[test]
    fn boots_that_differ_widen_the_interval_more_than_pairs_that_differ() {
        let apart = ratio(&[vec![1.0, 1.0, 1.0], vec![3.0, 3.0, 3.0]], 7).unwrap().interval.unwrap();
        let mixed = ratio(&[vec![1.0, 3.0, 1.0, 3.0, 1.0, 3.0]], 7).unwrap().interval.unwrap();
        assert_eq!(apart, (1.0, 3.0));
        assert!(mixed.0 >= apart.0 && mixed.1 <= apart.1);
    }

    proptest! {
        #[test]
        fn spread_is_ordered(values in prop::collection::vec(-1e9f64..1e9, 1..50)) {
            let s = spread(&values).unwrap();
            prop_assert_eq!(s.n, values.len());
            prop_assert!(s.min <= s.median && s.median <= s.max);
        }

        #[test]
        fn interval_holds_the_range_and_scales(
            boots in prop::collection::vec(prop::collection::vec(0.01f64..100.0, 1..5), 1..8),
            seed: u64,
        ) {
            let one = ratio(&boots, seed).unwrap();
            let all: Vec<f64> = boots.concat();
            let range = spread(&all).unwrap();
            prop_assert_eq!(one.pairs, all.len());
            if let Some((lo, hi)) = one.interval {
                prop_assert!(range.min <= lo && lo <= hi && hi <= range.max);
            }
            prop_assert_eq!(ratio(&boots, seed), Some(one));
            let doubled: Vec<Vec<f64>> = boots.iter().map(|b| b.iter().map(|v| v * 2.0).collect()).collect();
            let two = ratio(&doubled, seed).unwrap();
            prop_assert_eq!(two.interval, one.interval.map(|(lo, hi)| (lo * 2.0, hi * 2.0)));
        }

        #[test]
        fn equal_values_have_an_interval_of_no_width(value in 0.1f64..10.0, n in 2usize..20, seed: u64) {
            let r = ratio(&[vec![value; n]], seed).unwrap();
            prop_assert_eq!(r.interval, Some((value, value)));
        }
    }
}
