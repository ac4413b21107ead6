//! `entrain-guest`: the agent as a program of its own, for guests that need nothing else. `entrain guest` is the same.

use std::process::ExitCode;

use clap::Parser;
use entrain_cli::exit;
use entrain_cli::log::{self, Level};
use entrain_guest::cli::{GuestArgs, run};
use entrain_guest::error::GuestError;

/// Tells the host about this guest, and this guest about its host
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    #[command(flatten)]
    args: GuestArgs,
}

fn main() -> ExitCode {
    let args = Cli::parse().args;
    log::start(Level::INFO);
    exit::status(run(args), |error| error.downcast_ref::<GuestError>()?.exit_status())
}
