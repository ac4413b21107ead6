//! The only source of chance: one seed, one sequence, on every computer.

/// SplitMix64 (Steele, Lea, Flood 2014): small, and good enough to draw loads from.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A sequence of its own for each seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Any number.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number of `low..=high`.
    pub const fn within(&mut self, low: u64, high: u64) -> u64 {
        low + (((self.next() as u128) * ((high - low) as u128 + 1)) >> 64) as u64
    }

    /// One of several.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.within(0, from.len() as u64 - 1) as usize]
    }

    /// A duration of an exponential distribution, at most 20 times its mean.
    pub fn exponential(&mut self, mean: u64) -> u64 {
        let unit = (self.next() >> 11) as f64 / (1_u64 << 53) as f64;
        ((1.0 - unit).ln().abs().min(20.0) * mean as f64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stays_within_its_bounds() {
        let mut rng = Rng::new(1);
        let mut seen = [false; 4];
        for _ in 0..100 {
            seen[rng.within(3, 6) as usize - 3] = true;
        }
        assert_eq!(seen, [true; 4]);
        let mean = (0..10_000).map(|_| rng.exponential(1000)).sum::<u64>() / 10_000;
        assert!((950..1050).contains(&mean), "{mean}");
    }
}
