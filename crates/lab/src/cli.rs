//! The lab's commands: `entrain-lab …`, or `entrain lab …`.
use std::process::ExitCode;

use entrain_lab_machine::{Cache, cancel, image, machine::accel, progress::Spinner};

use crate::kernels;
use crate::proving::{reliability, selftest};

mod doctor;
mod files;
pub mod machine_args;
mod report;
mod run;
mod script;
mod shell;
mod terminal;

/// What the lab can be told to do.
#[derive(Debug, clap::Subcommand)]
pub enum LabCommand {
    /// List the experiments
    List,
    /// Run an experiment and report what it found
    Run(run::RunArgs),
    /// Show reports that were kept as JSON, and make their pages
    Report(report::ReportArgs),
    /// Boot a host machine with guests and open a shell in it (or run a command)
    Shell(shell::ShellArgs),
    /// Say what the lab needs and whether it is there
    Doctor,
    /// Fetch and build all that a machine boots, and stop there (then the lab works without network)
    Images(machine_args::MachineArgs),
    /// Say what works on which distribution's kernel: tries it on each (some minutes a kernel)
    Kernels(kernels::KernelsArgs),
    /// Remove the lab's cache: the next run fetches and builds everything anew
    Clean,
    /// Count how many sessions under load end well
    Reliability(reliability::ReliabilityArgs),
    /// Break the lab on purpose in many ways, and see whether it ends well each time
    Selftest(selftest::SelftestArgs),
}

/// Runs a command.
pub fn run(command: LabCommand) -> anyhow::Result<ExitCode> {
    match command {
        LabCommand::List => run::list(),
        LabCommand::Run(args) => with_signals(|| run::run(args)),
        LabCommand::Report(args) => report::run(&args),
        LabCommand::Shell(args) => with_signals(|| shell::run(args)),
        LabCommand::Doctor => doctor::run(),
        LabCommand::Images(args) => with_signals(|| images(&args)),
        LabCommand::Kernels(args) => with_signals(|| kernels::run(&args)),
        LabCommand::Clean => with_signals(clean),
        LabCommand::Reliability(args) => with_signals(|| reliability::run(args)),
        LabCommand::Selftest(args) => with_signals(|| selftest::run(&args)),
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
