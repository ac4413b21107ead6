//! `entrain-sim fleet` and `entrain-sim merge`.

use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result, bail, ensure};
use entrain_results::output;
use entrain_sim::fleet::{Job, Row, Shard, Sweep, sustain, table};
use entrain_sim::jobs;
use entrain_sim::scenario::Arm;

use super::progress::Progress;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Hosts of the fleet.
    #[arg(long, default_value_t = 1000)]
    hosts: u32,
    /// VMs of each.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1000))]
    vms: u32,
    /// vCPUs for each pCPU.
    #[arg(long, value_delimiter = ',', default_values_t = [1.0, 2.0, 3.0, 4.0, 6.0, 8.0])]
    ratios: Vec<f64>,
    /// Who schedules: `stock`, `host` (Entrain on the host alone), `guest`, `both`.
    #[arg(long = "arm", value_delimiter = ',', default_values = ["stock", "host", "both"])]
    arms: Vec<String>,
    /// Simulated time of each run, ms; its first third is not measured.
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(3..=3_600_000))]
    length: u64,
    /// What all is drawn from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Runs the hosts of one part alone: I of N, from 0; `entrain-sim merge` puts the parts together.
    #[arg(long, default_value = "0/1")]
    shard: Shard,
    /// Runs at a time [default: all cores]
    #[arg(long)]
    threads: Option<NonZero<usize>>,
    /// The 99th percentile of the requests' waits that is to be kept, ms.
    #[arg(long, default_value_t = 2.0)]
    target: f64,
    /// The file: a line of JSON for each run, or Parquet where the name ends so [default: fleet-I-of-N.jsonl]
    #[arg(short, long)]
    output: Option<PathBuf>,
}

#[derive(clap::Args)]
pub(crate) struct MergeArgs {
    /// Files of `entrain-sim fleet`, or folders of them.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// The 99th percentile of the requests' waits that is to be kept, ms.
    #[arg(long, default_value_t = 2.0)]
    target: f64,
    /// The one file, in which each run is once: JSON lines, or Parquet where the name ends so.
    #[arg(short, long)]
    output: Option<PathBuf>,
    /// Writes what each arm comes to at each ratio to a file.
    #[arg(long)]
    json: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<bool> {
    for ratio in &args.ratios {
        ensure!((0.1..=100.0).contains(ratio), "a ratio of {ratio} vCPUs for each pCPU is out of range: 0.1 to 100");
    }
    for arm in &args.arms {
        super::arm(arm)?;
    }
    let mut ratios = args.ratios.clone();
    ratios.sort_by(f64::total_cmp);
    ratios.dedup();
    let mut arms: Vec<String> = Arm::NAMES.iter().map(|arm| (*arm).to_owned()).collect();
    arms.retain(|arm| args.arms.contains(arm));
    let sweep = Sweep { hosts: args.hosts, vms: args.vms, ratios, arms, length_ms: args.length, seed: args.seed };
    let Shard { index, of } = args.shard;
    let path = args.output.clone().unwrap_or_else(|| format!("fleet-{index}-of-{of}.jsonl").into());
    check(&path)?;
    let jobs = sweep.jobs(args.shard);
    ensure!(!jobs.is_empty(), "{} hosts leave none for shard {index} of {of}", args.hosts);
    let stop = interrupted()?;
    let progress = Progress::new(jobs.len());
    let told = |job: &Job, _: &Row| {
        progress.done(&format!("host {} {} {}", job.host, job.arm, job.ratio));
        !stop.load(Ordering::Relaxed)
    };
    let rows = jobs::run(&jobs, args.threads.unwrap_or_else(jobs::all_cores), |job| sweep.run(job), told);
    drop(progress);
    let Some(rows) = rows else { bail!("interrupted: {} is not written", path.display()) };
    table::write(&path, &rows)?;
    println!("{}", sustain::text(&sustain::cells(&rows, args.target), args.target));
    println!("{} runs in {}; `entrain-sim merge` puts such files together", rows.len(), path.display());
    Ok(true)
}

/// Before hours of work: whether the file can be written.
fn check(path: &Path) -> Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    ensure!(!path.is_dir(), "{} is a folder: name a file", path.display());
    Ok(table::check_name(path)?)
}

/// Set by Ctrl-C and by what ends a job: then no further run is begun. The second time the process ends at once.
fn interrupted() -> Result<std::sync::Arc<AtomicBool>> {
    let stop = std::sync::Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 130, stop.clone()).context("cannot handle signals")?;
        signal_hook::flag::register(signal, stop.clone()).context("cannot handle signals")?;
    }
    Ok(stop)
}

pub(crate) fn merge(args: &MergeArgs) -> Result<bool> {
    let mut files = Vec::new();
    for path in &args.files {
        if path.is_dir() {
            let entries = std::fs::read_dir(path).with_context(|| path.display().to_string())?;
            let mut here: Vec<PathBuf> =
                entries.map(|entry| Ok(entry?.path())).collect::<Result<_, std::io::Error>>()?;
            here.retain(|file| file.extension().is_some_and(|end| end == "jsonl" || end == "parquet"));
            here.sort();
            files.extend(here);
        } else {
            files.push(path.clone());
        }
    }
    // The result may stand among the parts: its rows are theirs.
    ensure!(!files.is_empty(), "no file ends in .jsonl or .parquet there");
    if let Some(path) = &args.output {
        check(path)?;
    }
    let (rows, twice) = table::merge(&files)?;
    ensure!(!rows.is_empty(), "there is no run in {} files", files.len());
    let cells = sustain::cells(&rows, args.target);
    println!("{}", sustain::text(&cells, args.target));
    println!("{} runs of {} files; {twice} rows were of runs that another row has", rows.len(), files.len());
    if let Some(path) = &args.output {
        table::write(path, &rows)?;
    }
    if let Some(path) = &args.json {
        output::write(path, serde_json::to_string_pretty(&cells)?.as_bytes())?;
    }
    Ok(true)
}
