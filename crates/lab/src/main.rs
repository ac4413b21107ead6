//! `entrain-lab`: the lab's command line. `entrain lab …` starts it.

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use entrain_cli::log::{self, Level};
use entrain_cli::{exit, generate, pipe};
use entrain_lab::cli::LabCommand;

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
    log::start(Level::WARN);
    let run = || match command {
        Command::Lab(command) => entrain_lab::cli::run(*command),
        Command::Generate(args) => generate::run(&args, Cli::command()).map(|()| ExitCode::SUCCESS),
    };
    pipe::until_closed(|| exit::status(run(), |_| None))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_contradicts_nothing() {
        Cli::command().debug_assert();
    }
}
