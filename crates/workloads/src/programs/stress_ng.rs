//! stress-ng: one of its stressors, as many instances as threads.

use super::{Unknown, child};
use crate::session::{Common, Session};
use crate::tmp::Scratch;
use anyhow::{Context, Result, ensure};
use entrain_workloads::catalog;
use entrain_workloads::wire::Reason;
use std::process::{Command, ExitCode};

/// One of stress-ng's stressors, one instance a thread
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    common: Common,
    /// Which stressor: cpu, futex, switch, fork, pipe, …
    #[arg(long, default_value = "futex", value_name = "NAME")]
    stressor: String,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let known = |c: char| c.is_ascii_alphanumeric() || c == '-';
    ensure!(
        args.stressor.starts_with(|c: char| c.is_ascii_alphabetic()) && args.stressor.chars().all(known),
        "{:?} is no stressor's name; `stress-ng --stressors` lists them",
        args.stressor
    );
    let session = Session::new(&args.common)?;
    let scratch = Scratch::new(None, &session)?;
    let report = scratch.path().join("report.yaml");
    let seconds = args.common.seconds.ceil().max(1.0);
    let mut command = Command::new("stress-ng");
    command.arg(format!("--{}", args.stressor)).arg(session.threads().to_string());
    command.arg("--timeout").arg(format!("{seconds}s")).arg("--metrics");
    command.arg("--temp-path").arg(scratch.path()).arg("--yaml").arg(&report);
    session.wait_ready()?;
    session.out.start()?;
    let finished = child::run(&session, &mut command, "stress-ng", seconds * 2.0 + 60.0, child::Late::Fail)?
        .expect("being late is an error");
    let text = std::fs::read_to_string(&report).context("stress-ng left no report")?;
    let rate = parse(&text)?;
    // Some stressors count only when they end by themselves.
    ensure!(rate > 0.0 || finished.reason == Reason::Time, "stress-ng was interrupted before it counted anything");
    session.out.metric(&catalog::BOGO_OPS, rate)?;
    session.out.end(finished.reason, finished.seconds)?;
    Ok(ExitCode::SUCCESS)
}

/// The first stressor's rate. The report is YAML of a flat kind: `bogo-ops-per-second-real-time: 112537.578845`.
fn parse(text: &str) -> Result<f64, Unknown> {
    text.lines()
        .find_map(|line| line.trim().strip_prefix("bogo-ops-per-second-real-time:")?.trim().parse().ok())
        .filter(|rate: &f64| rate.is_finite())
        .ok_or_else(|| Unknown::new("stress-ng", "bogo-ops-per-second-real-time in its report", text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_read() {
        let text = "---\nmetrics:\n    - stressor: futex\n      bogo-ops: 225143\n      \
                    bogo-ops-per-second-usr-sys-time: 56409.258071\n      bogo-ops-per-second-real-time: 112537.578845\n";
        assert_eq!(parse(text), Ok(112_537.578_845));
        assert!(parse("metrics:\n").is_err());
        assert!(parse("bogo-ops-per-second-real-time: nan").is_err());
    }
}
