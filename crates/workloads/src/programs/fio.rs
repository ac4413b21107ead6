//! fio: random 4 KiB reads and writes on files in memory or on a block device, one job a thread.

use super::{Unknown, child};
use crate::session::{Common, Session};
use crate::tmp::Scratch;
use anyhow::Result;
use entrain_workloads::catalog;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

/// fio, random 4 KiB reads and writes on a folder in memory or on a block device
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    common: Common,
    /// Where it works; by default a tmpfs
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Size of each job's file in MiB
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=1 << 20), value_name = "MIB")]
    size: u64,
    /// What it does: randrw, read, randread, write or randwrite
    #[arg(long, default_value = "randrw", value_name = "KIND",
          value_parser = ["randrw", "read", "randread", "write", "randwrite"])]
    pattern: String,
    /// A block device in place of a folder, past the page cache. What is on it is lost
    #[arg(long, value_name = "FILE", conflicts_with = "dir")]
    device: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Report {
    jobs: Vec<Job>,
}

#[derive(Deserialize)]
struct Job {
    error: i64,
    read: Side,
    write: Side,
}

#[derive(Deserialize)]
struct Side {
    iops: f64,
    #[serde(default)]
    clat_ns: Latency,
}

#[derive(Deserialize, Default)]
struct Latency {
    #[serde(default)]
    percentile: BTreeMap<String, f64>,
}

#[derive(Debug, PartialEq)]
struct Results {
    read_iops: f64,
    write_iops: f64,
    /// Microseconds; None if there was nothing of that kind.
    read_p99: Option<f64>,
    write_p99: Option<f64>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let session = Session::new(&args.common)?;
    let seconds = args.common.seconds.ceil().max(1.0);
    let mut command = Command::new("fio");
    command.args(["--name=entrain", "--ioengine=psync", "--bs=4k", "--thread", "--group_reporting"]);
    command.args(["--time_based", "--fallocate=none", "--randrepeat=1", "--output-format=json"]);
    let scratch = match &args.device {
        Some(_) => None,
        None => Some(Scratch::new(args.dir.as_deref(), &session)?),
    };
    if let Some(folder) = &scratch {
        command.arg(format!("--directory={}", folder.path().display()));
    }
    if let Some(device) = &args.device {
        command.arg(format!("--filename={}", device.display())).arg("--direct=1");
    }
    command.arg(format!("--size={}m", args.size));
    command.arg(format!("--runtime={seconds}")).arg(format!("--ramp_time={}", args.common.warmup.ceil()));
    command.arg(format!("--numjobs={}", session.threads()));
    command.arg(format!("--rw={}", args.pattern));
    session.wait_ready()?;
    session.out.start()?;
    let limit = (seconds + args.common.warmup) * 2.0 + 60.0;
    let finished =
        child::run(&session, &mut command, "fio", limit, child::Late::Fail)?.expect("being late is an error");
    let results = parse(&finished.stdout)?;
    if !args.pattern.ends_with("write") {
        session.out.metric(&catalog::READ_IOPS, results.read_iops)?;
    }
    if !args.pattern.ends_with("read") {
        session.out.metric(&catalog::WRITE_IOPS, results.write_iops)?;
    }
    if let Some(us) = results.read_p99 {
        session.out.metric(&catalog::READ_P99, us)?;
    }
    if let Some(us) = results.write_p99 {
        session.out.metric(&catalog::WRITE_P99, us)?;
    }
    session.out.end(finished.reason, finished.seconds)?;
    Ok(ExitCode::SUCCESS)
}

/// fio's JSON, perhaps with messages before and behind it; --group_reporting leaves one job.
fn parse(text: &str) -> Result<Results, Unknown> {
    let unknown = |wanted| Unknown::new("fio", wanted, text);
    let json = text.find('{').map(|start| &text[start..]).ok_or_else(|| unknown("JSON"))?;
    let report = serde_json::Deserializer::from_str(json).into_iter::<Report>().next();
    let Some(Ok(report)) = report else { return Err(unknown("report with its jobs")) };
    match &report.jobs[..] {
        [job] if job.error == 0 => {
            let p99 = |side: &Side| side.clat_ns.percentile.get("99.000000").map(|ns| ns / 1e3);
            Ok(Results {
                read_iops: job.read.iops,
                write_iops: job.write.iops,
                read_p99: p99(&job.read),
                write_p99: p99(&job.write),
            })
        }
        _ => Err(unknown("job without an error")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = r#"fio: a note
{ "fio version": "fio-3.33", "jobs": [ { "jobname": "entrain", "error": 0,
  "read": { "iops": 1500.5, "clat_ns": { "percentile": { "50.000000": 900, "99.000000": 12000 } } },
  "write": { "iops": 0.0, "clat_ns": { "min": 0 } } } ] }
"#;

    #[test]
    fn rates_and_percentiles_are_read() {
        let wanted = Results { read_iops: 1500.5, write_iops: 0.0, read_p99: Some(12.0), write_p99: None };
        assert_eq!(parse(REPORT), Ok(wanted));
    }

    #[test]
    fn a_job_with_an_error_has_no_figures() {
        assert!(parse(&REPORT.replace("\"error\": 0", "\"error\": 28")).is_err());
        assert!(parse("fio: no such file").is_err());
        assert!(parse("{}").is_err());
    }
}
