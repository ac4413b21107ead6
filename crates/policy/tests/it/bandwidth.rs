//! Properties of limits of CPU time, for every limit that the kernel lets one write and every use of it.

use entrain_policy::bandwidth::*;
use proptest::prelude::*;

const MS: u64 = 1_000_000;
const SEC: u64 = 1_000 * MS;

/// As `cpu.max` takes them: quota from 1 ms on, period 1 ms to 1 s, burst at most the quota.
fn limit() -> impl Strategy<Value = (u64, u64, u64)> {
    let quota = prop_oneof![MS..100 * SEC, Just(MS), Just(((1 << 44) - 1) * 1000)];
    (quota, MS..=SEC, 0..=1000_u64).prop_map(|(quota, period, part)| (quota, period, quota / 1000 * part))
}

fn set(limit: (u64, u64, u64), now: u64) -> Bandwidth {
    let mut bw = Bandwidth::default();
    bw.set(limit.0, limit.1, limit.2, now);
    bw
}

proptest! {
    /// What CPUs can use in any time: the quota of the periods that began in it, the pool that was there, no more.
    #[test]
    fn no_more_than_the_quota_is_used(limit in limit(), now in 0..u64::MAX / 4,
                                      uses in prop::collection::vec((0..200 * MS, 0..50 * MS, 0..30 * MS), 1..200)) {
        let mut bw = set(limit, now);
        let (mut at, mut used, mut most) = (now, 0_i128, 0_i128);
        for (pause, want, ran) in uses {
            at += pause;
            bw.refill(at);
            let got = bw.take(want);
            // The turn ends at a tick: later, or earlier.
            if got > 0 {
                most = most.max(i128::from(ran.saturating_sub(got)));
                used += i128::from(ran);
                bw.give(got as i64 - ran as i64);
            }
            let periods = i128::from((at - now) / limit.1) + 1;
            let may = periods * i128::from(limit.0) + i128::from(limit.2);
            // Beyond it only what one turn can overrun, which is a debt from then on.
            prop_assert!(used <= may + most, "{used} of {may} + {most}");
            prop_assert!(bw.pool <= bw.cap());
        }
    }

    /// A group that always wants has its whole quota, whatever the slices and ticks.
    #[test]
    fn no_less_than_the_quota_is_had(quota in MS..100 * MS, period in 10 * MS..=SEC, tick in 1..10 * MS) {
        let mut bw = set((quota, period, 0), 7);
        let (mut at, mut used) = (7, 0_u64);
        let end = at + 100 * period;
        while at < end {
            bw.refill(at);
            let got = bw.take(5 * MS);
            if got == 0 {
                at += bw.due(at).max(1);
                continue;
            }
            let ran = got.next_multiple_of(tick);
            at += ran;
            used += ran;
            bw.give(got as i64 - ran as i64);
        }
        let should = (100 * quota).min(100 * period);
        // One quota and one overrun at the end.
        prop_assert!(used + quota + 20 * MS >= should && used <= should + quota + 20 * MS, "{used} of {should}");
    }

    /// Time that nobody used is saved up to the burst; a day of it brings no more than that.
    #[test]
    fn what_is_saved_is_bounded(limit in limit(), idle in 0..100_000 * SEC, debt in 0..10 * SEC) {
        let mut bw = set(limit, 0);
        bw.pool = -(debt as i64);
        bw.refill(idle);
        prop_assert!(bw.pool <= bw.cap());
        let periods = i128::from(idle / limit.1);
        let full = periods * i128::from(limit.0) - i128::from(debt);
        prop_assert_eq!(i128::from(bw.pool), full.min(bw.cap().into()));
        prop_assert!(bw.start <= idle && idle - bw.start < limit.1);
        prop_assert!(bw.due(idle) > 0 && bw.due(idle) <= limit.1);
    }

    /// Whoever may write the limit gains nothing by writing it to and fro.
    #[test]
    fn writing_again_gains_nothing(first in limit(), between in limit(), used in 0..10 * SEC) {
        let mut bw = set(first, 0);
        bw.give(-(used as i64));
        let before = bw.pool;
        bw.set(between.0, between.1, between.2, 1);
        prop_assert!(bw.pool <= bw.cap());
        bw.set(first.0, first.1, first.2, 2);
        prop_assert!(bw.pool <= before, "{} after {before}", bw.pool);
        let once = bw.pool;
        bw.set(first.0, first.1, first.2, 3);
        prop_assert_eq!(bw.pool, once);
    }

    /// A raised limit is felt at once.
    #[test]
    fn a_raise_counts_at_once(quota in MS..SEC, more in MS..SEC, used in 0..SEC) {
        let mut bw = set((quota, SEC, 0), 0);
        bw.give(-(used as i64));
        let before = bw.pool;
        bw.set(quota + more, SEC, 0, 1);
        prop_assert_eq!(bw.pool, before + more as i64);
    }

    /// What lies on CPUs is half a quota at most, or a task of the group waits for time that lies elsewhere.
    #[test]
    fn little_lies_about(quota in any::<u64>(), cpus in 0..100_000_u32) {
        prop_assert!(u128::from(keep(quota, cpus)) * u128::from(cpus) <= u128::from(quota / 2));
        prop_assert!(keep(quota, cpus) <= MS);
    }

    /// The mean lies between what it was and what came, up to rounding.
    #[test]
    fn a_mean_is_between(mean in 1..SEC, ran in 0..SEC) {
        let after = turn(mean, ran);
        prop_assert!(after + 2 >= mean.min(ran) && after <= mean.max(ran) + 1, "{after} of {mean} and {ran}");
        prop_assert!(after >= 1);
    }

    /// Somebody is let go while there is anything in the pool, nobody while there is not.
    #[test]
    fn a_pool_lets_somebody_go(pool in any::<i64>(), turn in any::<u64>()) {
        prop_assert_eq!(admits(pool, turn) > 0, pool > 0);
        prop_assert!(pool <= 0 || admits(pool, turn) <= pool as u64 + 1);
    }

    /// Whoever came a second earlier goes first, whatever both have had.
    #[test]
    fn nobody_waits_behind_a_stream(now in 0..u64::MAX / 2, mine in any::<i64>(), other in any::<i64>()) {
        prop_assert!(place(now, mine) <= place(now + SEC, other));
        prop_assert!(place(now, mine) >= now);
    }
}
