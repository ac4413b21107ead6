//! dbench: a file server's mix of system calls on a folder in memory, one client a thread.

use super::{Unknown, child};
use crate::session::{Common, Session};
use crate::tmp::Scratch;
use anyhow::Result;
use entrain_workloads::catalog;
use entrain_workloads::wire::Reason;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

/// dbench on a folder in memory, one client a thread
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    common: Common,
    /// Where it works; by default a tmpfs
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// The file that tells which system calls to make
    #[arg(long, default_value = "/usr/share/dbench/client.txt", value_name = "FILE")]
    loadfile: PathBuf,
}

#[derive(Debug, PartialEq)]
struct Results {
    mb_per_s: f64,
    max_latency_ms: Option<f64>,
    /// Seconds that the figure is for, if it was cut short.
    seconds: Option<f64>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let session = Session::new(&args.common)?;
    let scratch = Scratch::new(args.dir.as_deref(), &session)?;
    // dbench takes whole seconds, and leaves the first fifth of them out of its figure: that is the warm-up.
    let seconds = (args.common.seconds + args.common.warmup).ceil().max(2.0);
    let mut command = Command::new("dbench");
    command.arg("-c").arg(&args.loadfile).arg("-D").arg(scratch.path());
    command.arg("-t").arg(seconds.to_string()).arg(session.threads().to_string());
    session.wait_ready()?;
    session.out.start()?;
    let finished = child::run(&session, &mut command, "dbench", seconds * 2.0 + 60.0, child::Late::Fail)?
        .expect("being late is an error");
    let results = parse(&finished.stdout, finished.reason)?;
    session.out.metric(&catalog::THROUGHPUT, results.mb_per_s)?;
    if let Some(latency) = results.max_latency_ms {
        session.out.metric(&catalog::LATENCY_MAX, latency)?;
    }
    session.out.end(finished.reason, results.seconds.unwrap_or(seconds))?;
    Ok(ExitCode::SUCCESS)
}

/// The summary line, or if dbench was interrupted the last of its lines per second:
/// `Throughput 143.2 MB/sec  4 clients  4 procs  max_latency=12.345 ms`,
/// `   4    174752  1920.94 MB/sec  execute   1 sec  latency 2.905 ms`.
fn parse(text: &str, reason: Reason) -> Result<Results, Unknown> {
    let summary = text.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let ["Throughput", rate, "MB/sec", ..] = words[..] else { return None };
        let latency = words.iter().find_map(|word| word.strip_prefix("max_latency=")).and_then(|v| v.parse().ok());
        Some(Results { mb_per_s: rate.parse().ok()?, max_latency_ms: latency, seconds: None })
    });
    let partial = || {
        text.lines().rev().find_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [_, _, rate, "MB/sec", "execute", seconds, "sec", ..] = words[..] else { return None };
            Some(Results { mb_per_s: rate.parse().ok()?, max_latency_ms: None, seconds: seconds.parse().ok() })
        })
    };
    summary
        .or_else(|| if reason == Reason::Signal { partial() } else { None })
        .filter(|results| results.mb_per_s.is_finite())
        .ok_or_else(|| Unknown::new("dbench", "throughput behind its warm-up", text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const OUTPUT: &str = "dbench version 4.00 - Copyright Andrew Tridgell 1999-2004

Running for 3 seconds with load 'client.txt' and minimum warmup 0 secs
2 of 2 processes prepared for launch   0 sec
releasing clients
   2    174752  1920.94 MB/sec  execute   1 sec  latency 2.905 ms
   2    327061  1780.39 MB/sec  execute   2 sec  latency 2.600 ms
   2  cleanup   3 sec

 Operation      Count    AvgLat    MaxLat
 ----------------------------------------
 NTCreateX     170942     0.007     0.529
";

    #[test]
    fn the_summary_is_read() {
        let text = format!("{OUTPUT}\nThroughput 1780.39 MB/sec  2 clients  2 procs  max_latency=2.905 ms\n");
        let results = Results { mb_per_s: 1780.39, max_latency_ms: Some(2.905), seconds: None };
        assert_eq!(parse(&text, Reason::Time), Ok(results));
    }

    #[test]
    fn only_an_interrupted_run_gives_a_partial_figure() {
        let error = parse(OUTPUT, Reason::Time).unwrap_err().to_string();
        assert!(error.contains("throughput") && error.contains("NTCreateX"), "{error}");
        let results = Results { mb_per_s: 1780.39, max_latency_ms: None, seconds: Some(2.0) };
        assert_eq!(parse(OUTPUT, Reason::Signal), Ok(results));
    }

    proptest! {
        #[test]
        fn garbage_is_an_error_not_a_panic(text in "\\PC{0,300}") {
            let text = text.replace("MB/sec", "");
            prop_assert!(parse(&text, Reason::Signal).is_err());
        }
    }
}
