//! The `entrain` command line.
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

/// Lets the scheduler of a KVM host and the schedulers of its guests work together.
#[derive(Debug, Parser)]
#[command(version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// The nested lab: stock KVM hosts with real guests, on any machine
    Lab(entrain_lab::cli::LabArgs),
}

fn main() -> anyhow::Result<ExitCode> {
    // RUST_LOG overrides; stdout belongs to results.
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    match Cli::parse().command {
        Command::Lab(args) => entrain_lab::cli::run(args),
    }
}
