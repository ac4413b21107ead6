//! `run`: Debian's own load programs, with parameters that suit small guests, and their output as JSON lines.
//!
//! Each program has a file here: how it is called, and a parser of what it prints. A program that is missing, hangs
//! or prints something else than expected is an error that says so, never a missing or made-up figure.

mod child;
mod cyclictest;
mod dbench;
mod fio;
mod hackbench;
mod stress_ng;

use anyhow::Result;
use std::process::ExitCode;

/// One of Debian's load programs, its results in the same form as those of our own loads
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    program: Program,
}

#[derive(clap::Subcommand)]
enum Program {
    Dbench(dbench::Args),
    Hackbench(hackbench::Args),
    Cyclictest(cyclictest::Args),
    StressNg(stress_ng::Args),
    Fio(fio::Args),
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    match &args.program {
        Program::Dbench(args) => dbench::run(args),
        Program::Hackbench(args) => hackbench::run(args),
        Program::Cyclictest(args) => cyclictest::run(args),
        Program::StressNg(args) => stress_ng::run(args),
        Program::Fio(args) => fio::run(args),
    }
}

/// A program printed something that its parser does not know.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{program} printed no {wanted}; it ended with: {tail}")]
pub(crate) struct Unknown {
    program: &'static str,
    wanted: &'static str,
    tail: String,
}

impl Unknown {
    fn new(program: &'static str, wanted: &'static str, text: &str) -> Self {
        let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let tail = match &lines[lines.len().saturating_sub(4)..] {
            [] => "nothing at all".into(),
            tail => tail.join(" | ").chars().take(400).collect(),
        };
        Self { program, wanted, tail }
    }
}
