//! `entrain lab list` and `entrain lab run`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;
use entrain_lab_machine::image::{self, own_kernel, peers};
use entrain_lab_machine::machine::{Accel, Arch, Machine, MachineSpec, pace::Pace};
use entrain_lab_machine::progress::Spinner;
use entrain_lab_machine::{Cache, Progress};
use entrain_results::provenance::Provenance;

use crate::bar::Bar;
use crate::experiment::{self, Experiment, STOCK};
use crate::report::{Report, file};
use crate::rig::Rig;
use crate::runner::{self, Choice, Gathered};
use crate::sameness;

use super::files::{Files, show};

/// Status when the command line or the experiment file is wrong.
const USAGE: u8 = 2;

/// Options of `entrain lab run`.
#[derive(Debug, clap::Args)]
pub struct RunArgs {
    /// A built-in experiment (see `entrain lab list`), or the path of a file of your own
    name: String,
    /// Boots of the host machine instead of the experiment's own number
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    boots: Option<u32>,
    /// Only this arm beside stock; may be given several times. Arms with a peer (scx_bpfland, …) run only when named
    #[arg(long = "arm", value_name = "ARM")]
    arms: Vec<String>,
    /// Architecture of the machines: aarch64 or x86_64 [default: aarch64 where the experiment runs on it]
    #[arg(long)]
    arch: Option<Arch>,
    /// How the host machine's CPUs are made: auto, tcg or kvm
    #[arg(long, default_value = "auto")]
    accel: Accel,
    /// How many times slower than this computer's the machines' time passes while loads are measured, instead of the
    /// experiment's own pace: a number, or 'auto' to measure it
    #[arg(long, value_name = "N|auto")]
    dilation: Option<Pace>,
    /// A kernel image of your own, debian:SERIES for the archive's newest of that series, or 'running' for this computer's
    #[arg(long, value_name = "FILE|debian:6.12|running")]
    kernel: Option<PathBuf>,
    /// Modules of that kernel: the folder lib/modules/RELEASE, if they do not lie beside it or in this system
    #[arg(long, value_name = "DIR", requires = "kernel")]
    modules: Option<PathBuf>,
    /// Write samples, summary and checks as JSON; compressed where the name ends in .gz
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Go on with the run in this file, if it is there: what it has is not measured again. The file gets both, unless
    /// --json names another
    #[arg(long = "continue", value_name = "FILE")]
    go_on: Option<PathBuf>,
    /// Write a page with plots of every sample; one file that needs no network
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Fewer boots and shorter windows, for a first look
    #[arg(long)]
    quick: bool,
    /// Seed of whatever is random
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Lists the built-in experiments.
pub(super) fn list() -> anyhow::Result<ExitCode> {
    for entry in experiment::list()? {
        println!("{:<14} {}", entry.name, entry.title);
    }
    let peers = peers::PEERS.iter().map(|peer| format!("{} {} ({})", peer.name, peer.version, peer.license));
    println!("\nPeers that 'run overcommit --arm NAME' builds: {}", peers.collect::<Vec<_>>().join(", "));
    Ok(ExitCode::SUCCESS)
}

/// Runs an experiment, shows its report, and writes the files asked for.
pub(super) fn run(args: RunArgs) -> anyhow::Result<ExitCode> {
    let usage = |message: String| {
        eprintln!("entrain lab run: {message}");
        Ok(ExitCode::from(USAGE))
    };
    let experiment = match experiment::load(&args.name) {
        Ok(experiment) => experiment,
        Err(error) => return usage(error.to_string()),
    };
    let arch = args.arch.unwrap_or_else(|| experiment.usual_arch());
    if let Some(message) = refuse(&experiment, &args, arch) {
        return usage(message);
    }
    // Before the run and not after it: an hour of figures must not be lost to a misspelt folder.
    let files = Files::new(args.json.as_deref().or(args.go_on.as_deref()), args.html.as_deref())?;
    if let Some(kernel) = args.kernel.as_deref().filter(|kernel| own_kernel::of_archive(kernel).is_none()) {
        own_kernel::find(kernel, args.modules.as_deref(), arch)?;
    }
    let report = measure(&experiment, &args, arch, &files)?;
    let status = show(&report, &files)?;
    files.tell_rest(&report);
    Ok(status)
}

fn measure(experiment: &Experiment, args: &RunArgs, arch: Arch, files: &Files) -> anyhow::Result<Report> {
    let choice = Choice {
        boots: args.boots,
        arms: args.arms.clone(),
        quick: args.quick,
        seed: args.seed,
        arch,
        dilation: args.dilation,
    };
    let spec = MachineSpec {
        accel: args.accel,
        kernel: args.kernel.clone(),
        modules: args.modules.clone(),
        ..runner::machine(experiment, &choice)
    };
    // A file that is none is told before anything is built.
    let begun = args.go_on.as_deref().filter(|path| sameness::is_begun(path));
    let begun = begun.map(|path| Ok::<_, anyhow::Error>((path, file::read(path)?))).transpose()?;
    let built = Provenance::of_this_program();
    let cache = Cache::open()?;
    // Minutes of building are no part of the run, nor of the time that a quick one has.
    // Nor may a build or an installation meanwhile change what later boots are made of.
    let images = image::prepare(&cache, &spec, &Spinner::new())?;
    let earlier = match begun {
        None => Gathered::default(),
        Some((path, report)) => runner::earlier(report, experiment, &choice, &spec, &images.release, &built)
            .with_context(|| format!("{} cannot be gone on with", path.display()))?,
    };
    let boot = |spec: &MachineSpec, progress: &dyn Progress| -> entrain_lab_machine::Result<Box<dyn Rig>> {
        Ok(Box::new(Machine::boot_from(&cache, &images, spec, progress)?))
    };
    let bar = Bar::new();
    let report = |gathered| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        Report::new(experiment, &choice, &spec, gathered, now)
    };
    let earlier = Gathered { built, ..earlier };
    let mut after_boot = |gathered: &Gathered| files.write_part(&report(gathered.clone()));
    let gathered = runner::go_on(experiment, &choice, &spec, &boot, &bar, earlier, &mut after_boot);
    drop(bar);
    Ok(report(gathered))
}

fn refuse(experiment: &Experiment, args: &RunArgs, arch: Arch) -> Option<String> {
    if !experiment.arch.contains(&arch) {
        let arch: Vec<&str> = experiment.arch.iter().map(|arch| arch.name()).collect();
        return Some(format!("{} runs on {} only", args.name, arch.join(" and ")));
    }
    let arms = || experiment.arms.iter().filter(|arm| arm.arch.contains(&arch));
    let unknown = args.arms.iter().find(|name| arms().all(|arm| arm.name.as_ref() != *name))?;
    let known: Vec<&str> = arms().map(|arm| arm.name.as_ref().as_str()).collect();
    Some(format!(
        "{} has no arm '{unknown}' on {arch}; there are: {} ({STOCK} always runs)",
        args.name,
        known.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: RunArgs,
    }

    #[test]
    fn an_arm_that_cannot_run_is_refused() {
        let mut experiment = experiment::load("overcommit").unwrap();
        let arm = experiment.arms.iter_mut().find(|arm| arm.name.as_ref() != STOCK).unwrap();
        arm.arch = vec![Arch::X86_64];
        let name = arm.name.as_ref().clone();
        let refused = |name: &str, arch| {
            let args = Cli::parse_from(["run", "overcommit", "--arm", name]).args;
            refuse(&experiment, &args, arch)
        };
        assert_eq!(refused(&name, Arch::X86_64), None);
        let message = refused(&name, Arch::Aarch64).unwrap();
        assert!(message.starts_with(&format!("overcommit has no arm '{name}' on aarch64; there are: ")), "{message}");
        assert!(refused("unheard-of", Arch::X86_64).is_some());
        assert_eq!(refused(STOCK, Arch::Aarch64), None);
    }
}
