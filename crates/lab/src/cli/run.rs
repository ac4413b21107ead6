//! `entrain lab list` and `entrain lab run`.

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use entrain_lab_machine::image::{self, own_kernel, peers};
use entrain_lab_machine::machine::{Accel, Arch, Machine, MachineSpec, pace::Pace};
use entrain_lab_machine::progress::Spinner;
use entrain_lab_machine::{Cache, Progress};

use crate::bar::Bar;
use crate::experiment::{self, Experiment, STOCK};
use crate::output::{self, Output};
use crate::report::{Report, SCHEMA, html, table};
use crate::rig::Rig;
use crate::runner::{self, Choice};

/// Status when the command line or the experiment file is wrong.
const USAGE: u8 = 2;
/// Status when a check failed or the lab did.
const FAILED: u8 = 1;

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
    /// A kernel image of your own instead of the archive's, or 'running' for this computer's
    #[arg(long, value_name = "FILE|running")]
    kernel: Option<PathBuf>,
    /// Modules of that kernel: the folder lib/modules/RELEASE, if they do not lie beside it or in this system
    #[arg(long, value_name = "DIR", requires = "kernel")]
    modules: Option<PathBuf>,
    /// Write samples, summary and checks as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
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

/// Options of `entrain lab report`.
#[derive(Debug, clap::Args)]
pub struct ReportArgs {
    /// What `entrain lab run --json` wrote
    file: PathBuf,
    /// Write the page with plots
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// Shows a report that was kept as JSON once more.
pub(super) fn report(args: &ReportArgs) -> anyhow::Result<ExitCode> {
    let files = Files { source: Some(args.file.clone()), ..Files::new(None, args.html.as_deref())? };
    let name = args.file.display();
    let text = std::fs::read_to_string(&args.file).with_context(|| format!("cannot read {name}"))?;
    let report: Report = serde_json::from_str(&text)
        .with_context(|| format!("{name} is no report of 'entrain lab run --json' in schema {SCHEMA}"))?;
    anyhow::ensure!(report.schema == SCHEMA, "{name} has schema {}; this program knows {SCHEMA}", report.schema);
    show(&report, &files)
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
    let files = Files::new(args.json.as_deref(), args.html.as_deref())?;
    if let Some(kernel) = &args.kernel {
        own_kernel::find(kernel, args.modules.as_deref(), arch)?;
    }
    let report = measure(&experiment, &args, arch)?;
    show(&report, &files)
}

/// The files that the user asked for.
struct Files {
    json: Option<Output>,
    html: Option<Output>,
    /// Where the report was read from, if it was: there it is safe.
    source: Option<PathBuf>,
}

impl Files {
    /// Looks whether they can be written.
    fn new(json: Option<&Path>, html: Option<&Path>) -> anyhow::Result<Self> {
        Ok(Self { json: json.map(Output::new).transpose()?, html: html.map(Output::new).transpose()?, source: None })
    }

    /// Writes both. If one fails, the report is kept as JSON elsewhere, unless it is safe already.
    fn write(&self, report: &Report) -> anyhow::Result<()> {
        let json = serde_json::to_string_pretty(report)? + "\n";
        let write = |file: &Option<Output>, text: &dyn Fn() -> String| {
            let file = file.as_ref()?;
            file.write(text().as_bytes()).err().map(|error| output::why(file.name(), &error))
        };
        let failed = [write(&self.json, &|| json.clone()), write(&self.html, &|| html::render(report))];
        let written = self.json.as_ref().filter(|_| failed[0].is_none()).map(|file| file.name().to_owned());
        let failed: Vec<String> = failed.into_iter().flatten().collect();
        if failed.is_empty() {
            return Ok(());
        }
        let what = failed.join("; ");
        let safe = written.or_else(|| self.source.clone());
        let kept = safe.or_else(|| output::keep(json.as_bytes(), &report.experiment));
        let Some(kept) = kept else {
            output::tell(io::stdout(), &json);
            let temp = std::env::temp_dir();
            bail!("{what}. Neither the cache nor {} takes it: the report is printed above, as JSON", temp.display());
        };
        let kept = kept.display();
        bail!(
            "{what}. Nothing is lost: the report is kept in {kept}; 'entrain lab report {kept} --html FILE' shows it again"
        )
    }
}

fn show(report: &Report, files: &Files) -> anyhow::Result<ExitCode> {
    let color = io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let written = files.write(report);
    output::tell(io::stdout(), &table::render(report, color));
    written?;
    Ok(if report.ok() { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}

fn measure(experiment: &Experiment, args: &RunArgs, arch: Arch) -> anyhow::Result<Report> {
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
    let cache = Cache::open()?;
    // Minutes of building are no part of the run, nor of the time that a quick one has.
    // Nor may a build or an installation meanwhile change what later boots are made of.
    let images = image::prepare(&cache, &spec, &Spinner::new())?;
    let boot = |spec: &MachineSpec, progress: &dyn Progress| -> entrain_lab_machine::Result<Box<dyn Rig>> {
        Ok(Box::new(Machine::boot_from(&cache, &images, spec, progress)?))
    };
    let bar = Bar::new();
    let gathered = runner::run(experiment, &choice, &spec, &boot, &bar);
    drop(bar);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    Ok(Report::new(experiment, &choice, &spec, gathered, now))
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
