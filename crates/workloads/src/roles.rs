//! `roles`: one heavy thread and light ones, whose roles go round.
//!
//! Each thread keeps to a CPU of its own. In every turn one works all the time and the others a little; then the next
//! one is the heavy one. On a host with big and small CPUs, the vCPU of the heavy one belongs on a big one.

use crate::clock::now_ns;
use crate::cpu;
use crate::session::{Common, Session};
use crate::spin::iteration;
use crate::sync::{Counter, Phase, total};
use anyhow::Result;
use entrain_workloads::catalog;
use std::process::ExitCode;
use std::time::Duration;

/// One heavy thread and light ones, each on a CPU of its own; roles go round
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    common: Common,
    /// Time until the roles go round, in milliseconds
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(100..=60_000), value_name = "MS")]
    turn: u64,
    /// Share of the time that the light ones work, in percent
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=99), value_name = "PERCENT")]
    light: u64,
}

/// Light threads work once in this time.
const PERIOD_NS: u64 = 20_000_000;

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let session = Session::new(&args.common)?;
    let counters = Counter::many(session.threads());
    let phase = Phase::default();
    let origin = now_ns();
    let measured = std::thread::scope(|scope| {
        for (index, counter) in counters.iter().enumerate() {
            let (session, phase, threads) = (&session, &phase, counters.len() as u64);
            scope.spawn(move || {
                // As with --pin: a CPU that went offline leaves the thread where it may run.
                let _ = cpu::pin(session.cpu(index));
                if phase.wait_start() {
                    play(args, phase, counter, origin, index as u64, threads);
                }
            });
        }
        session.measure(&phase, || Counter::values(&counters), |_, _| Ok(()))
    })?;
    let done = total(&measured.before, &measured.after) as f64;
    session.out.metric(&catalog::ITERATIONS, done / measured.seconds)?;
    session.out.end(measured.reason, measured.seconds)?;
    Ok(ExitCode::SUCCESS)
}

fn play(args: &Args, phase: &Phase, counter: &Counter, origin: u64, index: u64, threads: u64) {
    let turn = args.turn * 1_000_000;
    while phase.running() {
        let since = now_ns() - origin;
        if is_heavy(since, turn, index, threads) {
            iteration();
            counter.add(1);
            continue;
        }
        let begin = now_ns();
        while now_ns() - begin < PERIOD_NS * args.light / 100 {
            iteration();
            counter.add(1);
        }
        // Not beyond the turn's end: the next turn may be this thread's.
        let left = (turn - (now_ns() - origin) % turn).min(PERIOD_NS - PERIOD_NS * args.light / 100);
        std::thread::sleep(Duration::from_nanos(left));
    }
}

/// Whether a thread is the heavy one at a time since the begin.
fn is_heavy(since: u64, turn: u64, index: u64, threads: u64) -> bool {
    since / turn % threads == index
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_is_heavy_at_any_time() {
        for since in [0, 99, 100, 199, 200, 1234] {
            assert_eq!((0..3).filter(|index| is_heavy(since, 100, *index, 3)).count(), 1);
        }
        assert!(is_heavy(150, 100, 1, 2) && is_heavy(250, 100, 0, 2));
    }
}
