//! `office`: what a person does with a tablet or a laptop, in five shapes after PCMark for Android's tests, which
//! reference 2 measured with.
//!
//! A shape is a circle of steps. In each, a main thread is woken at the end of the pause before it, works, hands a part of
//! the step to helpers that work side by side, waits for them, and pauses as a person does who reads, thinks or types.
//! Work is an amount, not a time: milliseconds at the CPU's full speed. The figure is a score: 1,000 where all steps take
//! what they would at full speed with a CPU for each thread, half of that where they take twice as long. Pauses do not
//! count. What PCMark works on is not here, only how work and pauses follow each other: the lengths are ours.

use crate::clock::now_ns;
use crate::hand::Hand;
use crate::session::{Common, Session};
use crate::spin::{full_rate, work};
use crate::sync::{Counter, Phase};
use anyhow::Result;
use clap::ValueEnum;
use entrain_workloads::catalog;
use std::process::ExitCode;
use std::time::Duration;

/// Work and pauses as of a person at a tablet, in shapes after PCMark's tests: a score of how soon each step is done
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    common: Common,
    /// Which of the shapes
    #[arg(long, value_enum)]
    part: Part,
    /// Iterations of `spin` per second at full speed; measured at the start where nothing is said
    #[arg(long, value_name = "N")]
    full_rate: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Pages are loaded, scrolled and searched: layout, then rasters side by side
    Web,
    /// A film is cut: effects frame by frame at 30 Hz, then an export without pauses
    Video,
    /// Keys are typed; now and then the document is saved and encrypted
    Writing,
    /// Filters over a picture: long steps, some of them side by side, with pauses to look
    Photo,
    /// Tables are read, then charts drawn that move at 60 Hz
    Data,
}

/// One step: work of the main thread, then of each helper, in ms at full speed; `times` in a row, each followed by a pause.
struct Step {
    times: u32,
    main: f64,
    helpers: f64,
    pause: f64,
}

const fn step(times: u32, main: f64, helpers: f64, pause: f64) -> Step {
    Step { times, main, helpers, pause }
}

impl Part {
    fn steps(self) -> &'static [Step] {
        match self {
            Self::Web => const { &[step(1, 40.0, 30.0, 250.0), step(12, 3.0, 4.0, 16.0), step(1, 25.0, 0.0, 300.0)] },
            Self::Video => const { &[step(20, 8.0, 10.0, 10.0), step(6, 6.0, 25.0, 0.0)] },
            Self::Writing => const { &[step(15, 4.0, 0.0, 110.0), step(1, 60.0, 0.0, 200.0)] },
            Self::Photo => const { &[step(2, 90.0, 0.0, 150.0), step(2, 10.0, 70.0, 200.0)] },
            Self::Data => const { &[step(1, 70.0, 20.0, 80.0), step(15, 5.0, 3.0, 8.0), step(1, 0.0, 0.0, 250.0)] },
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let session = Session::new(&args.common)?;
    let rate = args.full_rate.unwrap_or_else(full_rate);
    let (phase, steps) = (Phase::default(), args.part.steps());
    let hands: Vec<Hand> = (1..session.threads()).map(|_| Hand::default()).collect();
    // Steps; what they would have taken at full speed; what they took, ns.
    let counters = Counter::many(3);
    let measured = std::thread::scope(|scope| {
        let (session, hands, phase, counters) = (&session, &hands, &phase, &counters);
        for (index, hand) in hands.iter().enumerate() {
            scope.spawn(move || {
                session.enter(index + 1);
                hand.serve();
            });
        }
        scope.spawn(move || {
            session.enter(0);
            if phase.wait_start() {
                while phase.running() {
                    go_round(steps, rate, hands, phase, counters);
                }
            }
            hands.iter().for_each(Hand::end);
        });
        session.measure(phase, || Counter::values(counters), |_, _| Ok(()))
    })?;
    let [steps, nominal, took] = [0, 1, 2].map(|n| (measured.after[n] - measured.before[n]) as f64);
    if let Some(score) = score(nominal, took) {
        session.out.metric(&catalog::SCORE, score)?;
        session.out.metric(&catalog::STEP_MEAN, took / steps / 1e6)?;
    }
    session.out.end(measured.reason, measured.seconds)?;
    Ok(ExitCode::SUCCESS)
}

/// Once through all steps, or until the run ends.
fn go_round(steps: &[Step], rate: f64, hands: &[Hand], phase: &Phase, counters: &[Counter]) {
    let iterations = |ms: f64| (rate * ms / 1e3) as u32;
    for step in steps {
        for _ in 0..step.times {
            if !phase.running() {
                return;
            }
            std::thread::sleep(Duration::from_secs_f64(step.pause / 1e3));
            let (begin, given) = (now_ns(), iterations(step.helpers));
            work(iterations(step.main));
            if given > 0 {
                hands.iter().for_each(|hand| hand.give(given));
                hands.iter().for_each(|hand| hand.await_done(given));
                // Alone, the main thread does it itself.
                if hands.is_empty() {
                    work(given);
                }
            }
            counters[0].add(1);
            counters[1].add(((step.main + step.helpers) * 1e6) as u64);
            counters[2].add(now_ns() - begin);
        }
    }
}

/// 1,000 at full speed; nothing where nothing was done.
fn score(nominal: f64, took: f64) -> Option<f64> {
    (nominal > 0.0 && took > 0.0).then(|| 1000.0 * nominal / took)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_the_speed_is_half_the_score() {
        assert_eq!(score(10.0, 20.0), Some(500.0));
        assert_eq!(score(0.0, 0.0), None, "nothing was done");
    }

    #[test]
    fn a_step_is_shared_out_and_waited_for() {
        let (hands, phase, counters) = ([Hand::default(), Hand::default()], Phase::default(), Counter::many(3));
        phase.measure();
        std::thread::scope(|scope| {
            hands.iter().for_each(|hand| drop(scope.spawn(|| hand.serve())));
            go_round(&[step(2, 0.1, 0.2, 0.0)], 1e6, &hands, &phase, &counters);
            hands.iter().for_each(Hand::end);
        });
        assert_eq!((counters[0].get(), counters[1].get()), (2, 600_000));
        assert!(counters[2].get() > 0);
    }

    #[test]
    fn every_shape_works_and_pauses() {
        for part in Part::value_variants() {
            let steps = part.steps();
            let sum = |of: fn(&Step) -> f64| steps.iter().map(|step| f64::from(step.times) * of(step)).sum::<f64>();
            let (work, pauses) = (sum(|step| step.main + step.helpers), sum(|step| step.pause));
            assert!(work > 50.0 && pauses > 50.0, "{part:?}: {work} ms of work, {pauses} of pauses");
            assert!(
                steps.iter().all(|step| step.main + step.helpers < 250.0),
                "{part:?}: a person waits for no longer"
            );
        }
    }
}
