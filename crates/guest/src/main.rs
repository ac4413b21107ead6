//! `entrain-guest`: the agent as a program of its own, for guests that need nothing else. `entrain guest` is the same.

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Parser;
use entrain_cli::exit;
use entrain_guest::cli::{GuestArgs, run};
use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::prelude::*;

/// Tells the host about this guest, and this guest about its host
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    #[command(flatten)]
    args: GuestArgs,
}

fn main() -> ExitCode {
    let args = Cli::parse().args;
    // RUST_LOG overrides; stdout belongs to results. Levels by target only (`debug`, `entrain_guest=debug`): the filter of
    // `entrain`, which also knows spans and values, would make this program a quarter bigger by its regular expressions.
    let wish = std::env::var("RUST_LOG").ok().filter(|wish| !wish.is_empty());
    let filter = wish.and_then(|wish| wish.parse().ok()).unwrap_or_else(|| Targets::new().with_default(Level::INFO));
    let output =
        tracing_subscriber::fmt::layer().with_ansi(std::io::stderr().is_terminal()).with_writer(std::io::stderr);
    tracing_subscriber::registry().with(output).with(filter).init();
    exit::status(run(args))
}
