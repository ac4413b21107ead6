//! `entrain-lab`: the lab's command line. `entrain lab …` starts it.

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use entrain_cli::{exit, generate};
use entrain_lab::cli::LabCommand;
use tracing_subscriber::EnvFilter;

/// The nested lab: stock KVM hosts with real guests, on any machine
#[derive(Debug, Parser)]
#[command(version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[command(flatten)]
    Lab(Box<LabCommand>),
    /// Man pages and shell completions, for packages
    #[command(hide = true)]
    Generate(generate::GenerateArgs),
}

fn main() -> ExitCode {
    let command = Cli::parse().command;
    // RUST_LOG overrides; stdout belongs to results.
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    let colours = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colours).with_writer(std::io::stderr).init();
    exit::status(match command {
        Command::Lab(command) => entrain_lab::cli::run(*command),
        Command::Generate(args) => generate::run(&args, Cli::command()).map(|()| ExitCode::SUCCESS),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_contradicts_nothing() {
        Cli::command().debug_assert();
    }
}
