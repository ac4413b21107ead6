//! hackbench: groups of tasks that send each other small messages through pipes, in rounds until the time is over.
//!
//! One round of a contended guest can take a hundred times as long as one of an idle guest, so the work is cut into
//! small rounds and the time is bounded, not the work. hackbench times its message phase itself: the creation of its
//! tasks is not in the figures.

use super::{Unknown, child};
use crate::clock::now_ns;
use crate::session::{Common, Session};
use anyhow::{Result, bail};
use entrain_workloads::catalog;
use entrain_workloads::wire::Reason;
use std::process::{Command, ExitCode};

/// hackbench cuts its time to whole milliseconds: so much is lost of a round in the mean, s.
const CUT: f64 = 0.0005;

/// hackbench over pipes, rounds until the time is over
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    common: Common,
    /// Groups of senders and receivers; by default one for two threads
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1000), value_name = "N")]
    groups: Option<u64>,
    /// Senders, and as many receivers, of a group
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=40), value_name = "N")]
    fds: u64,
    /// Messages from each sender to each receiver in a round
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=1_000_000), value_name = "N")]
    loops: u64,
    /// What senders and receivers are
    #[arg(long, value_enum, default_value = "processes")]
    tasks: Tasks,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Tasks {
    /// A process each, as by hackbench's own default: to switch changes the address space
    Processes,
    /// Threads of one process
    Threads,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let session = Session::new(&args.common)?;
    let groups = args.groups.unwrap_or((session.threads() as u64 / 2).max(1));
    let messages = groups * args.fds * args.fds * args.loops;
    let round = |seconds: f64| -> Result<Option<(f64, Reason)>> {
        let mut command = Command::new("hackbench");
        for (flag, value) in [("-g", groups), ("-f", args.fds), ("-l", args.loops)] {
            command.arg(flag).arg(value.to_string());
        }
        command.arg("--pipe").arg(match args.tasks {
            Tasks::Processes => "--process",
            Tasks::Threads => "--threads",
        });
        match child::run(&session, &mut command, "rt-tests", seconds, child::Late::End)? {
            // An interrupted round has no figure.
            Some(done) if done.reason == Reason::Signal => Ok(Some((0.0, Reason::Signal))),
            Some(done) => Ok(Some((parse(&done.stdout)?, Reason::Time))),
            None => Ok(None),
        }
    };
    session.wait_ready()?;
    warm_up(&args.common, &round)?;
    session.out.start()?;
    let start = now_ns();
    let elapsed = || (now_ns() - start) as f64 / 1e9;
    let mut times = Vec::new();
    let reason = loop {
        let left = args.common.seconds - elapsed();
        if left <= 0.0 {
            break Reason::Time;
        }
        match round(left)? {
            Some((time, Reason::Time)) => times.push(time),
            Some((_, Reason::Signal)) => break Reason::Signal,
            None => break Reason::Time,
        }
    };
    let seconds = elapsed();
    if times.is_empty() {
        bail!("no round of hackbench ended within {seconds:.1} s: measure longer, or take fewer --loops or --fds");
    }
    times.sort_by(f64::total_cmp);
    let total = times.iter().map(|time| time + CUT).sum::<f64>();
    session.out.metric(&catalog::MESSAGES, messages as f64 * times.len() as f64 / total)?;
    session.out.metric(&catalog::ROUND_TIME, times[times.len() / 2])?;
    session.out.metric(&catalog::ROUNDS, times.len() as f64)?;
    session.out.end(reason, seconds)?;
    Ok(ExitCode::SUCCESS)
}

/// Runs rounds for the warm-up time, one at least; a round that outlasts it is cut off.
fn warm_up(common: &Common, round: &impl Fn(f64) -> Result<Option<(f64, Reason)>>) -> Result<()> {
    let end = now_ns() + (common.warmup * 1e9) as u64;
    loop {
        let left = end.saturating_sub(now_ns()) as f64 / 1e9;
        if left <= 0.0 {
            return Ok(());
        }
        if let Some((_, Reason::Signal)) = round(left)? {
            bail!("ended by a signal during warm-up: nothing was measured");
        }
    }
}

/// The line `Time: 0.123`, in seconds.
fn parse(text: &str) -> Result<f64, Unknown> {
    text.lines()
        .find_map(|line| line.trim().strip_prefix("Time:")?.trim().parse().ok())
        .filter(|time: &f64| time.is_finite() && *time >= 0.0)
        .ok_or_else(|| Unknown::new("hackbench", "line `Time: SECONDS`", text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_time_is_read() {
        let text = "Running in process mode with 1 groups using 8 file descriptors each (== 8 tasks)\n\
                    Each sender will pass 100 messages of 100 bytes\nTime: 1.034\n";
        assert_eq!(parse(text), Ok(1.034));
        let error = parse("fork() (error: Resource temporarily unavailable)").unwrap_err().to_string();
        assert!(error.contains("Resource temporarily"), "{error}");
        assert!(parse("Time: NaN").is_err());
        assert!(parse("").unwrap_err().to_string().ends_with("nothing at all"));
    }

    proptest! {
        #[test]
        fn any_time_is_read_back(time in 0.0f64..1e6) {
            prop_assert_eq!(parse(&format!("x\nTime: {time}\n")), Ok(time));
        }
    }
}
