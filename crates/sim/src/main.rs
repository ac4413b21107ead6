//! `entrain-sim`: the schedulers of host and guest in a simulated kernel.

mod commands;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use entrain_cli::pipe;

use commands::{fleet, list, references, replay, report, run, search, trace, validate};

/// Runs the schedulers of host and guest, as they ship, in a simulated kernel.
#[derive(Parser)]
#[command(name = "entrain-sim", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs a scenario and prints what it has shown.
    Run(run::Args),
    /// Names the scenarios.
    List,
    /// Shows a window of a run: who ran, waited, spun; or why a task waited.
    Trace(trace::Args),
    /// Runs what a recording of a real host holds, under each scheduler.
    Replay(replay::Args),
    /// Draws machines and loads, and looks for what must not be.
    Search(search::Args),
    /// Runs a fleet of hosts full of VMs as a public cloud has them: which overcommit does each scheduler sustain?
    Fleet(fleet::Args),
    /// Puts the files of a fleet's shards together; a run that comes twice counts once.
    Merge(fleet::MergeArgs),
    /// Predicts the figures of the published works on their own machines.
    References(references::Args),
    /// Makes the pages of tables that `validate` and `references` have kept as JSON.
    Report(report::Args),
    /// Compares what the simulator predicts with what the lab has measured.
    Validate(validate::Args),
}

fn main() -> ExitCode {
    let command = Cli::parse().command;
    pipe::until_closed(|| match run(command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("entrain-sim: {error:#}");
            ExitCode::FAILURE
        }
    })
}

/// Whether all is as it should be.
fn run(command: Command) -> Result<bool> {
    match command {
        Command::Run(args) => run::run(args),
        Command::List => list::run(),
        Command::Trace(args) => trace::run(args),
        Command::Replay(args) => replay::run(&args),
        Command::Search(args) => search::run(&args),
        Command::Fleet(args) => fleet::run(&args),
        Command::Merge(args) => fleet::merge(&args),
        Command::References(args) => references::run(&args),
        Command::Report(args) => report::run(&args),
        Command::Validate(args) => validate::run(&args),
    }
}
