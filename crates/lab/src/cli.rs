//! `entrain lab …`.
use std::process::ExitCode;

/// The nested lab.
#[derive(Debug, clap::Args)]
pub struct LabArgs {
    #[command(subcommand)]
    command: LabCommand,
}

#[derive(Debug, clap::Subcommand)]
enum LabCommand {
    /// Serve the lab inside a machine (started by its init).
    #[command(hide = true)]
    Agent,
}

/// Runs `entrain lab …`.
pub fn run(args: LabArgs) -> anyhow::Result<ExitCode> {
    match args.command {
        LabCommand::Agent => anyhow::bail!("not built yet"),
    }
}
