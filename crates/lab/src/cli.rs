//! `entrain lab …`.
use std::process::ExitCode;

use crate::cancel;

pub mod machine_args;
mod shell;

/// The nested lab.
#[derive(Debug, clap::Args)]
pub struct LabArgs {
    #[command(subcommand)]
    command: LabCommand,
}

#[derive(Debug, clap::Subcommand)]
enum LabCommand {
    /// List the experiments
    List,
    /// Run an experiment and report what it found
    Run(crate::run_cli::RunArgs),
    /// Boot a host machine with guests and open a shell in it (or run a command)
    Shell(shell::ShellArgs),
    /// Serve the lab inside a machine (started by its init).
    #[command(hide = true)]
    Agent,
}

/// Runs `entrain lab …`.
pub fn run(args: LabArgs) -> anyhow::Result<ExitCode> {
    match args.command {
        LabCommand::List => crate::run_cli::list(),
        LabCommand::Run(args) => with_signals(|| crate::run_cli::run(args)),
        LabCommand::Shell(args) => with_signals(|| shell::run(args)),
        LabCommand::Agent => {
            crate::agent::serve::serve()?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Ctrl-C ends what runs here in good order.
fn with_signals(work: impl FnOnce() -> anyhow::Result<ExitCode>) -> anyhow::Result<ExitCode> {
    cancel::on_signals()?;
    work()
}
