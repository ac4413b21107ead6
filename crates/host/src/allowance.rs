//! A part of one CPU's time for a kind of work whose amount others decide: guests, users, events.
//!
//! What is not used is saved up to a bound, so that what comes now and then is done at once, and what comes without end
//! takes its part and no more.

use std::time::{Duration, Instant};

/// Such a part.
#[derive(Debug)]
pub(crate) struct Allowance {
    /// One part in so many of the time that passes.
    part: u32,
    /// What can be saved up, ns.
    most: i128,
    /// What is there at `at`, ns; below zero where more was taken.
    left: i128,
    at: Instant,
}

impl Allowance {
    /// One part in `part` of the time, with as much saved already as can be.
    pub(crate) fn new(now: Instant, part: u32, saved: Duration) -> Self {
        let most = saved.as_nanos() as i128;
        Self { part, most, left: most, at: now }
    }

    /// What may be taken now.
    pub(crate) fn left(&mut self, now: Instant) -> Duration {
        let passed = now.saturating_duration_since(self.at).as_nanos() as i128;
        self.left = (self.left + passed / i128::from(self.part)).min(self.most);
        self.at = now;
        Duration::from_nanos(self.left.max(0) as u64)
    }

    /// So much was taken.
    pub(crate) fn take(&mut self, took: Duration) {
        self.left -= took.as_nanos() as i128;
    }

    /// When something may be taken again: `now`, or once what was taken too much has passed.
    pub(crate) fn ready(&mut self, now: Instant) -> Instant {
        self.left(now);
        now + Duration::from_nanos((-self.left).max(0) as u64) * self.part
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn it_is_a_part_of_the_time_and_what_was_saved() {
        let start = Instant::now();
        let mut allowance = Allowance::new(start, 25, 1600 * MS);
        let (mut now, mut taken) = (start, Duration::ZERO);
        while now < start + Duration::from_secs(1000) {
            let piece = allowance.left(now).min(40 * MS);
            allowance.take(piece);
            taken += piece;
            now += 100 * MS;
        }
        assert!((Duration::from_secs(41)..Duration::from_secs(42)).contains(&taken), "{taken:?}");
    }

    /// A user who makes each look for VMs long, and asks for one without end; one event after a quiet time is served at once.
    #[test]
    fn work_that_cannot_be_cut_waits_afterwards() {
        let start = Instant::now();
        let mut allowance = Allowance::new(start, 50, 200 * MS);
        let (mut now, mut taken) = (start, Duration::ZERO);
        while now < start + Duration::from_secs(100) {
            assert_eq!(allowance.ready(now), now);
            allowance.take(60 * MS);
            taken += 60 * MS;
            now = allowance.ready(now + 60 * MS);
        }
        assert!(taken <= Duration::from_secs(2) + 260 * MS, "{taken:?}");
        now += Duration::from_secs(30);
        for _ in 0..3 {
            assert_eq!(allowance.ready(now), now, "what was saved");
            allowance.take(60 * MS);
        }
    }
}
