//! cyclictest: how late timers fire for a real-time thread on each CPU.

use super::{Unknown, child};
use crate::session::{Common, Session};
use crate::tmp::Scratch;
use anyhow::{Context, Result};
use entrain_workloads::catalog;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::process::{Command, ExitCode};

/// cyclictest, one FIFO thread a CPU
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    common: Common,
    /// Interval of the timers in microseconds
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u64).range(100..=1_000_000), value_name = "US")]
    interval: u64,
    /// Real-time priority; 0 for ordinary threads
    #[arg(long, default_value_t = 80, value_parser = clap::value_parser!(u32).range(0..=99), value_name = "PRIORITY")]
    priority: u32,
}

/// Latencies above this many microseconds are in no bin of cyclictest's histogram. It prints every bin, also empty
/// ones: a hundred times as many take longer to print than a small guest has.
const HISTOGRAM_US: u64 = 100_000;

#[derive(Deserialize)]
struct Report {
    thread: BTreeMap<String, Thread>,
}

#[derive(Deserialize)]
struct Thread {
    #[serde(default)]
    histogram: BTreeMap<String, u64>,
    cycles: u64,
    max: f64,
    avg: f64,
}

#[derive(Debug, PartialEq)]
struct Results {
    avg: f64,
    p50: f64,
    p99: f64,
    max: f64,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let session = Session::new(&args.common)?;
    let scratch = Scratch::new(None, &session)?;
    let report = scratch.path().join("report.json");
    // Its duration is in whole seconds. It has no warm-up: the first timers are measured as all others.
    let seconds = args.common.seconds.ceil().max(1.0);
    let mut command = Command::new("cyclictest");
    command.args(["--quiet", "--mlockall", "--distance=0", "--default-system"]);
    command.arg(format!("--duration={seconds}")).arg(format!("--threads={}", session.threads())).arg("--affinity");
    command.arg(format!("--interval={}", args.interval)).arg(format!("--histogram={HISTOGRAM_US}"));
    match args.priority {
        0 => command.arg("--policy=other"),
        priority => command.arg(format!("--priority={priority}")),
    };
    command.arg(format!("--json={}", report.display()));
    session.wait_ready()?;
    session.out.start()?;
    let finished = child::run(&session, &mut command, "rt-tests", seconds * 2.0 + 60.0, child::Late::Fail)?
        .expect("being late is an error");
    let text = std::fs::read_to_string(&report).context("cyclictest left no report")?;
    let results = parse(&text)?;
    for (metric, value) in [
        (&catalog::TIMER_P99, results.p99),
        (&catalog::TIMER_AVG, results.avg),
        (&catalog::TIMER_P50, results.p50),
        (&catalog::TIMER_MAX, results.max),
    ] {
        session.out.metric(metric, value)?;
    }
    session.out.end(finished.reason, finished.seconds)?;
    Ok(ExitCode::SUCCESS)
}

/// All threads' histograms together. What overflowed the histogram counts as the longest latency.
fn parse(text: &str) -> Result<Results, Unknown> {
    let unknown = |wanted| Unknown::new("cyclictest", wanted, text);
    let report: Report = serde_json::from_str(text).map_err(|_| unknown("report with the threads' latencies"))?;
    let threads = report.thread.values();
    let cycles: u64 = threads.clone().map(|thread| thread.cycles).sum();
    let max = threads.clone().map(|thread| thread.max).fold(0.0, f64::max);
    let mut bins = BTreeMap::new();
    for (us, count) in threads.clone().flat_map(|thread| &thread.histogram) {
        let us: u64 = us.parse().map_err(|_| unknown("histogram in microseconds"))?;
        *bins.entry(us).or_insert(0u64) += count;
    }
    if cycles == 0 || bins.is_empty() {
        return Err(unknown("latency at all"));
    }
    let quantile = |q: f64| {
        let rank = (q * cycles as f64).ceil() as u64;
        let mut seen = 0;
        let found = bins.iter().find(|(_, count)| {
            seen += **count;
            seen >= rank
        });
        found.map_or(max, |(us, _)| *us as f64)
    };
    let avg = threads.map(|thread| thread.avg * thread.cycles as f64).sum::<f64>() / cycles as f64;
    Ok(Results { avg, p50: quantile(0.5), p99: quantile(0.99), max })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_taken_together() {
        let text = r#"{ "file_version": 1, "return_code": 0, "thread": {
            "0": { "histogram": { "8": 50, "100": 1 }, "cycles": 51, "min": 8, "max": 100, "avg": 10.0, "cpu": 0 },
            "1": { "histogram": { "9": 48 }, "cycles": 49, "min": 9, "max": 2000000, "avg": 20.0, "cpu": 1 } } }"#;
        let results = parse(text).unwrap();
        assert_eq!((results.p50, results.p99, results.max), (8.0, 100.0, 2_000_000.0));
        assert!((results.avg - 14.9).abs() < 1e-9);
    }

    #[test]
    fn an_empty_or_foreign_report_is_an_error() {
        for text in ["", "{}", r#"{"thread":{}}"#, r#"{"thread":{"0":{"cycles":3,"max":1,"avg":1}}}"#] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
