//! `spin`: burns CPU in user mode.
//!
//! What it measures: how much CPU the guest gets and how evenly. An iteration is 1,000 dependent steps of a linear
//! congruential generator: no memory, no system call, so its rate is the CPU time times a constant of the machine.
//! `--duty` makes each thread work for that share of each `--period` and sleep for the rest. `--roam` makes each wander
//! from CPU to CPU.

use crate::clock::now_ns;
use crate::session::{Common, Session};
use crate::sync::{self, Counter, Pace, Phase};
use anyhow::Result;
use entrain_workloads::catalog;
use std::hint::black_box;
use std::process::ExitCode;
use std::time::Duration;

/// Burns CPU in user mode: how much the guest gets, and how evenly
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    common: Common,
    /// Share of the time that each thread works, in percent
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=100), value_name = "PERCENT")]
    duty: u64,
    /// With --duty below 100: length of one turn of work and sleep, in milliseconds
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=10_000), value_name = "MS")]
    period: u64,
    /// Let each thread move on to the next CPU after so many milliseconds, as noise that wanders about
    #[arg(long, conflicts_with = "pin", value_parser = clap::value_parser!(u64).range(1..=60_000), value_name = "MS")]
    roam: Option<u64>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let session = Session::new(&args.common)?;
    let counters = Counter::many(session.threads());
    let phase = Phase::default();
    let mut slowest = f64::INFINITY;
    let measured = std::thread::scope(|scope| {
        for (index, counter) in counters.iter().enumerate() {
            let (session, phase) = (&session, &phase);
            scope.spawn(move || {
                session.enter(index);
                if phase.wait_start() {
                    spin(args, phase, counter, |turn| session.cpu(index + turn));
                }
            });
        }
        let mut pace = Pace::default();
        session.measure(
            &phase,
            || Counter::values(&counters),
            |before, at| {
                let rate = pace.look(before, Counter::values(&counters), at);
                slowest = slowest.min(rate);
                session.out.progress(&catalog::ITERATIONS, rate, at)
            },
        )
    })?;
    let rate = sync::total(&measured.before, &measured.after) as f64 / measured.seconds;
    session.out.metric(&catalog::ITERATIONS, rate)?;
    session.out.metric(&catalog::FAIRNESS, sync::fairness(&measured.before, &measured.after))?;
    if slowest.is_finite() && rate > 0.0 {
        session.out.metric(&catalog::PROGRESS_MIN, slowest / rate)?;
    }
    session.out.end(measured.reason, measured.seconds)?;
    Ok(ExitCode::SUCCESS)
}

fn spin(args: &Args, phase: &Phase, counter: &Counter, cpu: impl Fn(usize) -> usize) {
    let period = args.period * 1_000_000;
    let work = period * args.duty / 100;
    let start = now_ns();
    let (mut turn, mut stay) = (start, None);
    while phase.running() {
        iteration();
        counter.add(1);
        if let Some(roam) = args.roam {
            let now = ((now_ns() - start) / (roam * 1_000_000)) as usize;
            if stay.replace(now) != Some(now) {
                // A CPU that went offline is left out: the thread stays where it is for this turn.
                let _ = crate::cpu::pin(cpu(now));
            }
        }
        if args.duty < 100 {
            let now = now_ns();
            if now >= turn + work {
                // A turn that came late is not made up for: the load is a share of the time, not an amount of work.
                turn = (turn + period).max(now);
                std::thread::sleep(Duration::from_nanos(turn.saturating_sub(now)));
            }
        }
    }
}

/// So many units of work.
pub(crate) fn work(iterations: u32) {
    for _ in 0..iterations {
        iteration();
    }
}

/// Iterations per second of this CPU now: the best of some short tries, since whatever disturbs one only makes it slower.
pub(crate) fn full_rate() -> f64 {
    let one = || {
        let (start, mut count) = (now_ns(), 0);
        while now_ns() - start < 20_000_000 {
            work(16);
            count += 16;
        }
        f64::from(count) * 1e9 / (now_ns() - start) as f64
    };
    (0..10).map(|_| one()).fold(0.0, f64::max)
}

/// One unit of work: 1,000 steps, each of which needs the one before.
pub(crate) fn iteration() {
    let mut x = black_box(1u64);
    for _ in 0..1000 {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    }
    black_box(x);
}
