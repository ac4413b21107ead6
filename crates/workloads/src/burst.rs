//! `burst`: how long a CPU takes to become fast once somebody needs it.
//!
//! A thread sleeps, then works for some hundred milliseconds, again and again. While it sleeps it wakes up for moments, as
//! threads do that wait for events: without that, who remembers what a task used when it last ran (the kernel's util_est)
//! would know of the burst in advance, whatever it is told. The rate of its work, in windows of some
//! milliseconds, tells the CPU's speed from inside the guest: the time until it first reaches nine tenths of what it is
//! at the burst's end is what raising the frequency took, with everything that is part of it.

use crate::clock::now_ns;
use crate::output::{latencies, quantile_us};
use crate::session::{Common, Session};
use crate::spin::{full_rate, iteration, work};
use crate::sync::Phase;
use anyhow::Result;
use entrain_workloads::catalog;
use std::process::ExitCode;
use std::time::Duration;

/// Sleeps, then works: time until the CPU is as fast as it gets
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    common: Common,
    /// Time of each burst of work, in milliseconds
    #[arg(long, default_value_t = 400, value_parser = clap::value_parser!(u64).range(50..=10_000), value_name = "MS")]
    work: u64,
    /// Sleep before each, in milliseconds
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u64).range(10..=10_000), value_name = "MS")]
    sleep: u64,
    /// Time between two short wake-ups of that sleep, in milliseconds; 0 = it sleeps through
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(0..=1000), value_name = "MS")]
    wake: u64,
    /// Iterations of `spin` per second at full speed; measured at the start where nothing is said
    #[arg(long, value_name = "N")]
    full_rate: Option<f64>,
}

/// Windows in which the rate is taken. A vCPU of the emulated hardware runs and stalls within 1 to 2 ms.
const WINDOW_NS: u64 = 4_000_000;
/// Work of a short wake-up: a share of the time between two of them, at full speed.
const LIGHT: f64 = 0.01;
/// Share of the last speed that counts as reached.
const REACHED: f64 = 0.9;

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let session = Session::new(&args.common)?;
    let rate = args.full_rate.unwrap_or_else(full_rate);
    let phase = Phase::default();
    let (measured, bursts) = std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            session.enter(0);
            let mut bursts = Vec::new();
            while phase.wait_start() {
                doze(args, rate, &phase);
                let counting = phase.measuring();
                let burst = ramp(&one_burst(args.work * 1_000_000, &phase));
                if counting && phase.running() {
                    bursts.extend(burst);
                }
            }
            bursts
        });
        let measured = session.measure(&phase, || (), |_, _| Ok(()))?;
        anyhow::Ok((measured, worker.join().expect("the worker does not panic")))
    })?;
    let (mut times, mut speed) = (latencies(), 0.0);
    for burst in &bursts {
        times.saturating_record(burst.reached_ns.max(1));
        speed += burst.last_rate / rate / bursts.len() as f64;
    }
    if bursts.is_empty() {
        session
            .out
            .note("no burst ended within the time: --seconds must be longer than --sleep and --work together")?;
    } else {
        session.out.metric(&catalog::RAMP_P50, quantile_us(&times, 0.5) / 1e3)?;
        session.out.metric(&catalog::RAMP_P90, quantile_us(&times, 0.9) / 1e3)?;
        session.out.metric(&catalog::SPEED, speed)?;
    }
    session.out.end(measured.reason, measured.seconds)?;
    Ok(ExitCode::SUCCESS)
}

/// The sleep before a burst, with its short wake-ups.
fn doze(args: &Args, rate: f64, phase: &Phase) {
    let end = now_ns() + args.sleep * 1_000_000;
    let nap = Duration::from_millis(if args.wake == 0 { args.sleep } else { args.wake });
    let light = (rate * nap.as_secs_f64() * LIGHT) as u32;
    loop {
        let left = Duration::from_nanos(end.saturating_sub(now_ns()));
        if left.is_zero() || !phase.running() {
            return;
        }
        std::thread::sleep(left.min(nap));
        if args.wake > 0 && left > nap {
            work(light.max(1));
        }
    }
}

/// Works for so long; the time from the start at which each iteration ended, ns.
fn one_burst(length_ns: u64, phase: &Phase) -> Vec<u64> {
    let start = now_ns();
    let mut ends = Vec::with_capacity(1 << 16);
    while phase.running() {
        iteration();
        let now = now_ns() - start;
        ends.push(now);
        if now >= length_ns {
            break;
        }
    }
    ends
}

#[derive(Debug, PartialEq)]
struct Burst {
    /// End of the first window that was as fast as the last ones.
    reached_ns: u64,
    /// Iterations per second in the last quarter.
    last_rate: f64,
}

/// When the speed of the burst's end was reached; nothing where the burst was cut short.
fn ramp(ends: &[u64]) -> Option<Burst> {
    let length = *ends.last()?;
    if length < 8 * WINDOW_NS {
        return None;
    }
    let before = |at: u64| ends.partition_point(|end| *end <= at);
    let quarter = length - length / 4;
    let last = (ends.len() - before(quarter)) as f64 / (length - quarter) as f64;
    let wanted = REACHED * last * WINDOW_NS as f64;
    let steps = (WINDOW_NS..=length).step_by(WINDOW_NS as usize / 8);
    let reached = steps.into_iter().find(|to| (before(*to) - before(to - WINDOW_NS)) as f64 >= wanted)?;
    Some(Burst { reached_ns: reached, last_rate: last * 1e9 })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An iteration takes `slow` until `change`, then `fast`.
    fn ends(slow: u64, change: u64, fast: u64, length: u64) -> Vec<u64> {
        let next = |now: &u64| Some(now + if *now < change { slow } else { fast });
        std::iter::successors(Some(0), next).skip(1).take_while(|end| *end <= length).collect()
    }

    #[test]
    fn the_moment_of_the_change_is_found() {
        let burst = ramp(&ends(40_000, 80_000_000, 10_000, 400_000_000)).unwrap();
        assert!((80_000_000..90_000_000).contains(&burst.reached_ns), "{burst:?}");
        assert!((burst.last_rate / 1e5 - 1.0).abs() < 0.01);
    }

    #[test]
    fn a_cpu_that_is_fast_at_once_takes_one_window() {
        assert_eq!(ramp(&ends(10_000, 0, 10_000, 400_000_000)).unwrap().reached_ns, WINDOW_NS);
        assert_eq!(ramp(&ends(10_000, 0, 10_000, 10_000_000)), None);
        assert_eq!(ramp(&[]), None);
    }
}
