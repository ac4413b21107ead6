//! The subcommand `entrain trial`.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use clap::{Args, Subcommand};
use entrain_system::Root;

use crate::alarm::Limits;
use crate::command::Figure;
use crate::daemon::Side;
use crate::matrix::{self, ConsoleArgs, MatrixArgs};
use crate::report::Report;
use crate::rounds::{Plan, Stop};
use crate::way_back;

/// What `entrain trial` does beside a trial.
#[derive(Clone, Debug, Subcommand)]
enum What {
    /// Stock and Entrain with VMs of its own, in a matrix of sizes and settings; for a test host
    Matrix(Box<MatrixArgs>),
    /// The figure of a window of the matrix
    #[command(hide = true)]
    Console(ConsoleArgs),
}

/// Compares two ways to run this host, in turns, with its own VMs and their own work.
///
/// Side A is `observe` (the kernel's own scheduler) and side B `schedule` (Entrain's) unless told otherwise; either may be
/// a file as for `entrain host --config`. While it runs nobody else should change the host or its VMs' load. Ctrl-C ends it
/// and leaves the host as it was.
///
/// Exit status: 0 if all rounds were run, 1 if not (what was measured is told all the same).
#[derive(Clone, Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct TrialArgs {
    #[command(subcommand)]
    what: Option<What>,
    /// Side A: observe, schedule, or a file of classes (whose [host] says the mode; else observe)
    #[arg(long, default_value = "observe", value_name = "SIDE")]
    pub a: String,
    /// Side B: the same
    #[arg(long, default_value = "schedule", value_name = "SIDE")]
    pub b: String,
    /// Rounds: each has a window of A and one of B, in alternating order
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(2..=1000))]
    pub rounds: u32,
    /// Length of a window
    #[arg(long, default_value_t = 120, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(5..=86_400))]
    pub window: u64,
    /// Time that a side has before its window begins
    #[arg(long, default_value_t = 15, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(2..=3600))]
    pub settle: u64,
    /// Run this by `sh -c` in each window: the last number that it prints is a figure
    #[arg(long, value_name = "COMMAND")]
    pub command: Option<String>,
    /// What that figure is called, with its unit
    #[arg(long, default_value = "the command's figure", requires = "command", value_name = "NAME")]
    pub figure: String,
    /// Of that figure less is better
    #[arg(long, requires = "command")]
    pub lower_is_better: bool,
    /// End when a VM waits for a pCPU for more than this part of its vCPUs' time, for 5 s; without it, when one waits
    /// twice as much as any did in the windows of A
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub alarm_ready: Option<u32>,
    /// End when this command, run by `sh -c` every 5 s, fails or takes longer than 5 s
    #[arg(long, value_name = "COMMAND")]
    pub alarm_command: Option<String>,
    /// Only look whether the trial could begin, and say what it would do
    #[arg(long)]
    pub dry_run: bool,
    /// Write a report as a page
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Write all figures as JSON, without names of the host, its VMs or its users
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Folder of the host's own daemon, which must not run
    #[arg(long, default_value = "/run/entrain", env = "ENTRAIN_RUN_DIR", hide = true)]
    pub run_dir: PathBuf,
}

impl TrialArgs {
    fn plan(&self) -> anyhow::Result<Plan> {
        let side = |text: &str| Side::parse(text).with_context(|| format!("side {text}"));
        let (a, b) = (side(&self.a)?, side(&self.b)?);
        ensure!(a != b, "both sides are {a}: there is nothing to compare");
        Ok(Plan {
            sides: [a, b],
            rounds: self.rounds,
            window: Duration::from_secs(self.window),
            settle: Duration::from_secs(self.settle),
            figure: self.command.clone().map(|command| Figure {
                command,
                name: self.figure.clone(),
                lower_is_better: self.lower_is_better,
            }),
            limits: Limits {
                ready: self.alarm_ready.map(|percent| f64::from(percent) / 100.0),
                command: self.alarm_command.clone(),
            },
        })
    }
}

/// Runs the command.
pub fn run(args: TrialArgs) -> anyhow::Result<ExitCode> {
    match &args.what {
        Some(What::Matrix(args)) => return matrix::run(args),
        Some(What::Console(args)) => return matrix::console(args),
        None => {}
    }
    let plan = args.plan()?;
    // What cannot be written at the end is better known at the beginning.
    for file in [&args.html, &args.json].into_iter().flatten() {
        fs::OpenOptions::new().append(true).create(true).open(file).with_context(|| file.display().to_string())?;
    }
    let hindrances = way_back::hindrances(&Root::live(), &args.run_dir, plan.schedules());
    if !hindrances.is_empty() {
        bail!("the trial does not begin:\n  - {}", hindrances.join("\n  - "));
    }
    eprintln!("{}", plan.describe());
    if args.dry_run {
        return Ok(ExitCode::SUCCESS);
    }
    let stop = Stop::on_signals()?;
    let (rounds, ended) = crate::rounds::run(&plan, &stop);
    let report = Report::new(&plan, &rounds, ended.as_ref().err().map(ToString::to_string));
    print!("{}", report.text());
    if let Some(file) = &args.html {
        fs::write(file, report.html()).with_context(|| file.display().to_string())?;
    }
    if let Some(file) = &args.json {
        fs::write(file, serde_json::to_vec_pretty(&report)?).with_context(|| file.display().to_string())?;
    }
    let left = way_back::left(&Root::live());
    if let Some(left) = &left {
        eprintln!("entrain trial: {left}");
    }
    Ok(if ended.is_ok() && left.is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
