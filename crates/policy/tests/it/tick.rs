//! A guest's tick is told from its other timers, whatever its period and wherever its clock stands.

use entrain_policy::host::{Tick, tick_alone};
use proptest::prelude::*;

const MS: u64 = 1_000_000;
const PERIODS: [u64; 4] = [10 * MS, 4 * MS, 1_000_000_000 / 300, MS];

/// A vCPU with timers of these periods and phases, ns, is taken off `times` times: when it has been let in for the next
/// one, else `turn` ns later. `judge`: when that expires, and whether it was taken for a tick alone.
fn leaves(tick: &mut Tick, timers: &[(u64, u64)], times: usize, turn: u64, mut judge: impl FnMut(u64, bool)) {
    let mut now = timers.iter().map(|(_, phase)| *phase).max().unwrap_or_default().max(tick.at);
    for _ in 0..times {
        let next = |(period, phase): &(u64, u64)| phase + ((now - phase) / period + 1) * period;
        let at = timers.iter().map(next).min().expect("there is a timer");
        let alone = tick_alone(tick, at);
        judge(at, alone);
        now = if alone { now.max(at) + turn } else { at };
    }
}

proptest! {
    #[test]
    fn a_tick_alone_is_known(period in prop::sample::select(&PERIODS), phase in 1_000 * MS..u64::MAX / 4, turn in 0..200 * MS) {
        let mut tick = Tick::default();
        let mut judged = 0;
        leaves(&mut tick, &[(period, phase)], 1_000, turn, |_, alone| judged += u64::from(alone));
        let learns = 3 + 128 * MS / period;
        prop_assert!((1_000 - learns..1_000).contains(&judged), "{judged}");
    }

    /// A clock that begins after the tick is known is let in whenever it is the next to expire.
    #[test]
    fn a_clock_that_begins_is_let_in(hz in 0..4usize, clock in MS / 5..50 * MS, off in 0.02..0.98f64, turn in 0..8 * MS) {
        let period = PERIODS[hz];
        let ticks = (period, 1_000 * MS);
        let mut tick = Tick::default();
        leaves(&mut tick, &[ticks], 1_000, turn, |_, _| ());
        let clocks = (clock, ticks.1 + (off * period as f64) as u64);
        let mut wrong = 0;
        leaves(&mut tick, &[ticks, clocks], 1_000, turn, |at, alone| {
            let miss = (at - ticks.1) % period;
            wrong += usize::from(alone && miss.min(period - miss) > period / 8);
        });
        prop_assert_eq!(wrong, 0);
    }

    /// Whoever has had a clock beside the tick all the time is let in for each timer that he has.
    #[test]
    fn a_tick_with_others_is_let_in(hz in 0..4usize, clock in MS / 5..50 * MS, off in 0.1..0.9f64, turn in 0..8 * MS) {
        let period = PERIODS[hz];
        // One of another period than the tick's comes close to it now and then.
        let clock = if clock > period { clock / period * period } else { clock };
        prop_assume!(clock > period || period % clock != 0);
        let timers = [(period, 1_000 * MS), (clock, 1_000 * MS + (off * period as f64) as u64)];
        let mut tick = Tick::default();
        let mut alone = 0;
        leaves(&mut tick, &timers, 4_000, turn, |_, taken| alone += usize::from(taken));
        prop_assert_eq!(alone, 0);
    }

    #[test]
    fn any_timers_are_judged(times in prop::collection::vec(any::<u64>(), 200)) {
        let mut tick = Tick::default();
        for at in times {
            tick_alone(&mut tick, at);
            prop_assert!(tick.row < 256 * MS);
        }
    }
}

/// The kernel of a guest keeps its period: a clock of whole milliseconds is not taken for the tick of a faster kernel.
#[test]
fn a_tick_that_is_known_stays() {
    let mut tick = Tick::default();
    assert!((250..350u64).map(|n| tick_alone(&mut tick, n * 4 * MS)).last().expect("some"));
    let clock = (0..1_000u64).map(|n| 1_400 * MS + n * 2 * MS);
    assert!(!clock.map(|at| tick_alone(&mut tick, at)).last().expect("some"), "a 2 ms clock on the tick's own grid");
}
