//! `entrain-guest`: the agent as a program of its own, for guests that need nothing else. `entrain guest` is the same.

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Parser;
use entrain_guest::cli::{GuestArgs, run};
use entrain_guest::exit;
use tracing_subscriber::EnvFilter;

/// Tells the host about this guest, and this guest about its host
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    #[command(flatten)]
    args: GuestArgs,
}

fn main() -> ExitCode {
    let args = Cli::parse().args;
    // RUST_LOG overrides; stdout belongs to results.
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let colours = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colours).with_writer(std::io::stderr).init();
    exit::status(run(args))
}
