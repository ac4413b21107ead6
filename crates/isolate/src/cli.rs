//! The subcommand `entrain isolate`.

use std::process::ExitCode;

use clap::{Args, Subcommand};

use crate::check::CheckArgs;
use crate::watch::WatchArgs;

/// Isolated and real-time CPUs that stay undisturbed.
#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub struct IsolateArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Who interrupts isolated CPUs, how often and for how long
    Watch(WatchArgs),
    /// The set-up of this host or guest against what real-time work needs; can correct it
    Check(CheckArgs),
    /// Drains of per-CPU caches that leave isolated CPUs alone: a livepatch for PREEMPT_RT kernels
    Qpw(entrain_qpw::cli::QpwArgs),
}

/// Runs the subcommand.
pub fn run(args: IsolateArgs) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::Watch(args) => crate::watch::run(args),
        Command::Check(args) => crate::check::run(args),
        Command::Qpw(args) => entrain_qpw::cli::run(args),
    }
}
