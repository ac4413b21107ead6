//! A guest's tick is told from its other timers, whatever its period and wherever its clock stands.

use entrain_policy::host::{Tick, tick_alone};
use proptest::prelude::*;

const MS: u64 = 1_000_000;
const PERIODS: [u64; 4] = [10 * MS, 4 * MS, 1_000_000_000 / 300, MS];

/// A vCPU with timers of these periods and phases, ns, is taken off `times` times: when it has been let in for the next
/// one, else `turn` ns later; `own` ns later each fourth time, as it has a turn of its own.
fn leaves(tick: &mut Tick, timers: &[(u64, u64)], times: usize, turn: u64, own: u64, mut judge: impl FnMut(u64, bool)) {
    let mut now = timers.iter().map(|(_, phase)| *phase).max().unwrap_or_default().max(tick.at);
    for n in 0..times {
        let next = |(period, phase): &(u64, u64)| phase + ((now - phase) / period + 1) * period;
        let at = timers.iter().map(next).min().expect("there is a timer");
        let alone = tick_alone(tick, at);
        judge(at, alone);
        now = at + if alone { turn } else { own * u64::from(n % 4 == 3) };
    }
}

proptest! {
    /// Also where the vCPU takes ticks in turns of its own, unseen: of three visits in a row two tell.
    #[test]
    fn a_tick_alone_is_known(period in prop::sample::select(&PERIODS), phase in 1_000 * MS..u64::MAX / 4, turn in 0..20 * MS) {
        let mut tick = Tick::default();
        let mut judged = 0;
        leaves(&mut tick, &[(period, phase)], 1_000, turn, turn.min(30 * period), |_, alone| judged += u64::from(alone));
        let learns = 8 + 128 * MS / period * 2;
        prop_assert!((1_000 - learns..1_000).contains(&judged), "{judged}");
    }

    /// A clock that begins after the tick is known is let in whenever it is the next to expire.
    #[test]
    fn a_clock_that_begins_is_let_in(hz in 0..4usize, clock in MS / 5..50 * MS, off in 0.02..0.98f64, turn in 0..8 * MS) {
        let period = PERIODS[hz];
        let ticks = (period, 1_000 * MS);
        let mut tick = Tick::default();
        leaves(&mut tick, &[ticks], 1_000, turn, 0, |_, _| ());
        let clocks = (clock, ticks.1 + (off * period as f64) as u64);
        let mut wrong = 0;
        leaves(&mut tick, &[ticks, clocks], 1_000, turn, 0, |at, alone| {
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
        prop_assume!(clock > period || !period.is_multiple_of(clock));
        let timers = [(period, 1_000 * MS), (clock, 1_000 * MS + (off * period as f64) as u64)];
        let mut tick = Tick::default();
        let mut alone = 0;
        leaves(&mut tick, &timers, 4_000, turn, 0, |_, taken| alone += usize::from(taken));
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

/// As many ticks of this period, ns; whether the last one counted as alone.
fn ticks(tick: &mut Tick, period: u64, count: u64) -> bool {
    let first = tick.at.max(1_000 * MS).next_multiple_of(10 * MS);
    (1..=count).map(|n| tick_alone(tick, first + n * period)).last().expect("there are some")
}

/// A clock of whole milliseconds is not taken for the tick of a faster kernel, but a kernel's tick for that of the firmware
/// that has booted it.
#[test]
fn a_tick_that_is_known_stays() {
    let mut tick = Tick::default();
    assert!(ticks(&mut tick, 10 * MS, 100), "firmware");
    assert!(ticks(&mut tick, 4 * MS, 100));
    assert!(!ticks(&mut tick, MS, 500), "a clock of 1 ms on the tick's own grid");
    assert!(ticks(&mut tick, 4 * MS, 100), "it has ended");
}

/// After a pause a timer may be any, until two have followed on one another.
#[test]
fn a_timer_after_a_pause_is_let_in() {
    let mut tick = Tick::default();
    assert!(ticks(&mut tick, 4 * MS, 100));
    let later = tick.at + 1_000 * MS;
    assert!(!tick_alone(&mut tick, later) && !tick_alone(&mut tick, later), "it is asked for again");
    assert!(ticks(&mut tick, 4 * MS, 3));
}
