//! `frames`: a frame pipeline, as of a game or an animation.
//!
//! A UI thread begins a frame at a tick of the 60 Hz display, works, and hands it to a render thread, which works too. The
//! next frame begins at the first tick after that: a frame that misses its tick costs a whole one. Every second begins
//! with a burst of heavier frames. Work is an amount, not a time: shares of one frame's time at the CPU's full speed.

use crate::clock::now_ns;
use crate::hand::Hand;
use crate::output::{latencies, quantile_us};
use crate::session::{Common, Session};
use crate::spin::{full_rate, work};
use crate::sync::{Counter, Phase};
use anyhow::Result;
use entrain_workloads::catalog;
use hdrhistogram::Histogram;
use std::process::ExitCode;
use std::time::Duration;

/// UI thread and render thread make frames for a 60 Hz display: frames per second, and how many came in time
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    common: Common,
    /// Work of the UI thread, in percent of a frame's time at full speed
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=100), value_name = "PERCENT")]
    ui: u64,
    /// Work of the render thread, in percent of a frame's time at full speed
    #[arg(long, default_value_t = 25, value_parser = clap::value_parser!(u64).range(1..=100), value_name = "PERCENT")]
    render: u64,
    /// Work of a heavy frame, in percent of an ordinary one's
    #[arg(long, default_value_t = 180, value_parser = clap::value_parser!(u64).range(100..=1000), value_name = "PERCENT")]
    heavy: u64,
    /// Heavy frames at the begin of each second
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u64).range(0..=60), value_name = "N")]
    burst: u64,
    /// Iterations of `spin` per second at full speed; measured at the start where nothing is said
    #[arg(long, value_name = "N")]
    full_rate: Option<f64>,
}

/// Ticks of the display per second.
const HZ: u64 = 60;
const PERIOD_NS: u64 = 1_000_000_000 / HZ;

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let session = Session::new(&args.common)?;
    let rate = args.full_rate.unwrap_or_else(full_rate);
    let frame = rate / HZ as f64;
    let iterations = |percent: u64, heavy: bool| {
        let share = percent as f64 / 100.0 * if heavy { args.heavy as f64 / 100.0 } else { 1.0 };
        ((frame * share) as u32).max(1)
    };
    let (hand, phase) = (Hand::default(), Phase::default());
    let counters = Counter::many(2);
    let mut times = latencies();
    let measured = std::thread::scope(|scope| {
        scope.spawn(|| {
            session.enter(1);
            if phase.wait_start() {
                hand.serve();
            }
        });
        let ui = scope.spawn(|| {
            session.enter(0);
            let mut times = latencies();
            if phase.wait_start() {
                let amounts = |heavy| (iterations(args.ui, heavy), iterations(args.render, heavy));
                make_frames(&phase, &hand, &counters, args.burst, amounts, &mut times);
            }
            hand.end();
            times
        });
        let measured = session.measure(&phase, || Counter::values(&counters), |_, _| Ok(()))?;
        times = ui.join().expect("the UI thread does not panic");
        anyhow::Ok(measured)
    })?;
    let frames = (measured.after[0] - measured.before[0]) as f64;
    let in_time = (measured.after[1] - measured.before[1]) as f64;
    session.out.metric(&catalog::FRAMES, frames / measured.seconds)?;
    session.out.metric(&catalog::FRAMES_IN_TIME, in_time / measured.seconds)?;
    if !times.is_empty() {
        session.out.metric(&catalog::FRAME_P50, quantile_us(&times, 0.5) / 1e3)?;
        session.out.metric(&catalog::FRAME_P99, quantile_us(&times, 0.99) / 1e3)?;
    }
    session.out.end(measured.reason, measured.seconds)?;
    Ok(ExitCode::SUCCESS)
}

/// The UI thread. Counts frames, and those that were done before the next tick.
fn make_frames(
    phase: &Phase,
    hand: &Hand,
    counters: &[Counter],
    burst: u64,
    amounts: impl Fn(bool) -> (u32, u32),
    times: &mut Histogram<u64>,
) {
    let origin = now_ns();
    let mut tick = 1;
    while phase.running() {
        let begin = origin + tick * PERIOD_NS;
        std::thread::sleep(Duration::from_nanos(begin.saturating_sub(now_ns())));
        let (ui, render) = amounts(tick % HZ < burst);
        work(ui);
        hand.give(render);
        hand.await_done(render);
        let now = now_ns();
        counters[0].add(1);
        counters[1].add(u64::from(now <= begin + PERIOD_NS));
        if phase.measuring() {
            times.saturating_record(now - begin);
        }
        tick = next_tick(now - origin);
    }
}

/// The first tick after a time since the origin.
fn next_tick(since_ns: u64) -> u64 {
    since_ns / PERIOD_NS + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_that_misses_its_tick_costs_a_whole_one() {
        assert_eq!(next_tick(PERIOD_NS + PERIOD_NS / 2), 2, "begun at tick 1 and done in time: the next is 2");
        assert_eq!(next_tick(2 * PERIOD_NS + 1), 3, "begun at tick 1 and late: tick 2 is lost");
    }
}
