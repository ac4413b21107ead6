//! `entrain lab …`.
use std::process::ExitCode;

use crate::{Cache, cancel, image, machine::accel, progress::Spinner};

mod doctor;
pub mod machine_args;
mod reliability;
mod script;
mod shell;
mod terminal;

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
    /// Show a report that was kept as JSON, and make its page
    Report(crate::run_cli::ReportArgs),
    /// Boot a host machine with guests and open a shell in it (or run a command)
    Shell(shell::ShellArgs),
    /// Say what the lab needs and whether it is there
    Doctor,
    /// Fetch and build all that a machine boots, and stop there (then the lab works without network)
    Images(machine_args::MachineArgs),
    /// Remove the lab's cache: the next run fetches and builds everything anew
    Clean,
    /// Count how many sessions under load end well
    Reliability(reliability::ReliabilityArgs),
    /// Break the lab on purpose in many ways, and see whether it ends well each time
    Selftest(crate::selftest::SelftestArgs),
    /// Serve the lab inside a machine (started by its init).
    #[command(hide = true)]
    Agent,
}

/// Runs `entrain lab …`.
pub fn run(args: LabArgs) -> anyhow::Result<ExitCode> {
    match args.command {
        LabCommand::List => crate::run_cli::list(),
        LabCommand::Run(args) => with_signals(|| crate::run_cli::run(args)),
        LabCommand::Report(args) => crate::run_cli::report(&args),
        LabCommand::Shell(args) => with_signals(|| shell::run(args)),
        LabCommand::Doctor => doctor::run(),
        LabCommand::Images(args) => with_signals(|| images(&args)),
        LabCommand::Clean => with_signals(clean),
        LabCommand::Reliability(args) => with_signals(|| reliability::run(args)),
        LabCommand::Selftest(args) => with_signals(|| crate::selftest::run(&args)),
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

fn images(args: &machine_args::MachineArgs) -> anyhow::Result<ExitCode> {
    let (cache, spec) = (Cache::open()?, args.spec());
    let spinner = Spinner::new();
    accel::qemu(&cache, spec.arch, &spinner)?;
    let images = image::prepare(&cache, &spec, &spinner)?;
    drop(spinner);
    println!("{}: Linux {}, images in {}", spec.arch, images.release, cache.root().display());
    Ok(ExitCode::SUCCESS)
}

fn clean() -> anyhow::Result<ExitCode> {
    let cache = Cache::open()?;
    let freed = cache.clean()?;
    println!("{}: removed, {} MiB", cache.root().display(), freed >> 20);
    Ok(ExitCode::SUCCESS)
}
