//! Properties of the balance between groups of CPUs.

use entrain_policy::balance::*;
use proptest::prelude::*;

/// Shares of a thousand CPUs with a thousand tasks of the highest weight each.
const LOAD_MAX: u64 = 1_000_000 * (10_000 << 10);

fn group() -> impl Strategy<Value = Group> {
    (0..LOAD_MAX, 0..LOAD_MAX, 0..=1024u32).prop_map(|(a, b, cpus)| Group { low: a.min(b), high: a.max(b), cpus })
}

proptest! {
    #[test]
    fn an_average_lies_between_what_was_and_what_is(avg in 0..LOAD_MAX, load in 0..LOAD_MAX, elapsed in any::<u64>()) {
        let next = load_avg(avg, load, elapsed);
        prop_assert!(avg.min(load) <= next && next <= avg.max(load));
        prop_assert_eq!(load_avg(avg, load, 0), avg);
        prop_assert_eq!(load_avg(avg, load, 1_000_000_000), load, "a second ago is forgotten");
    }

    #[test]
    fn an_average_comes_nearer_with_time(avg in 0..LOAD_MAX, load in 0..LOAD_MAX, elapsed in 0..200_000_000u64, more in 0..200_000_000u64) {
        let (early, late) = (load_avg(avg, load, elapsed), load_avg(avg, load, elapsed + more));
        prop_assert!(late.abs_diff(load) <= early.abs_diff(load) + (early.abs_diff(load) >> 9) + 1);
        // Half of it in a half-life, to a thousandth.
        let half = load_avg(avg, load, 16_000_000).abs_diff(load);
        prop_assert!(half.abs_diff(avg.abs_diff(load) / 2) <= 1 + (avg.abs_diff(load) >> 10));
    }

    #[test]
    fn nobody_gives_and_takes(group in group(), mean in 0..LOAD_MAX) {
        prop_assert!(surplus(&group, mean) == 0 || deficit(&group, mean) == 0);
        prop_assert!(!imbalanced(&group, &group));
    }

    #[test]
    fn a_move_brings_both_nearer_to_the_mean(a in group(), b in group(), share in 1..LOAD_MAX) {
        // Steady loads: average and moment are the same.
        let (a, b) = (Group { low: a.low, high: a.low, ..a }, Group { low: b.low, high: b.low, ..b });
        prop_assume!(imbalanced(&a, &b));
        prop_assert!(!imbalanced(&b, &a));
        let mean = (a.low + b.low) / u64::from(a.cpus + b.cpus);
        let owed = surplus(&a, mean).min(deficit(&b, mean));
        if worth_moving(share, owed as i64) {
            let off = |load: u64, cpus: u32| load.abs_diff(mean * u64::from(cpus));
            let before = off(a.low, a.cpus).max(off(b.low, b.cpus));
            let after = off(a.low.saturating_sub(share), a.cpus).max(off(b.low + share, b.cpus));
            prop_assert!(after <= before + u64::from(a.cpus + b.cpus), "{} after {}", after, before);
        }
    }

    #[test]
    fn nothing_moves_where_nothing_is_owed(share in any::<u64>(), owed in i64::MIN..=0) {
        prop_assert!(!worth_moving(share, owed));
    }
}

/// Nine equal tasks on eight CPUs in two groups: to move one would only turn the imbalance round.
#[test]
fn an_odd_task_stays() {
    let one = 100 << 10;
    let (five, four) = (Group { low: 5 * one, high: 5 * one, cpus: 4 }, Group { low: 4 * one, high: 4 * one, cpus: 4 });
    let mean = 9 * one / 8;
    let owed = surplus(&five, mean).min(deficit(&four, mean));
    assert!(imbalanced(&five, &four) && owed > 0);
    assert!(!worth_moving(one, owed as i64));
}
