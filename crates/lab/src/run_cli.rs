//! `entrain lab list` and `entrain lab run`.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;

use crate::experiment::{self, Experiment, STOCK};
use crate::machine::{Accel, Arch, Machine, MachineSpec};
use crate::report::{Report, SCHEMA, html, table};
use crate::runner::{self, Bar, Choice, Rig};
use crate::{Cache, Progress};

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
    /// Only this arm beside stock; may be given several times
    #[arg(long = "arm", value_name = "ARM")]
    arms: Vec<String>,
    /// Architecture of the machines: aarch64 or x86_64
    #[arg(long, default_value_t)]
    arch: Arch,
    /// How the host machine's CPUs are made: auto, tcg or kvm
    #[arg(long, default_value = "auto")]
    accel: Accel,
    /// A kernel image of your own instead of the archive's
    #[arg(long, value_name = "FILE")]
    kernel: Option<PathBuf>,
    /// Modules of that kernel: the folder lib/modules/RELEASE
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
pub fn report(args: &ReportArgs) -> anyhow::Result<ExitCode> {
    let name = args.file.display();
    let text = std::fs::read_to_string(&args.file).with_context(|| format!("cannot read {name}"))?;
    let report: Report = serde_json::from_str(&text)
        .with_context(|| format!("{name} is no report of 'entrain lab run --json' in schema {SCHEMA}"))?;
    anyhow::ensure!(report.schema == SCHEMA, "{name} has schema {}; this program knows {SCHEMA}", report.schema);
    show(&report, None, args.html.as_deref())
}

/// Lists the built-in experiments.
pub fn list() -> anyhow::Result<ExitCode> {
    for entry in experiment::list()? {
        println!("{:<14} {}", entry.name, entry.title);
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs an experiment, shows its report, and writes the files asked for.
pub fn run(args: RunArgs) -> anyhow::Result<ExitCode> {
    let usage = |message: String| {
        eprintln!("entrain lab run: {message}");
        Ok(ExitCode::from(USAGE))
    };
    let experiment = match experiment::load(&args.name) {
        Ok(experiment) => experiment,
        Err(error) => return usage(error.to_string()),
    };
    if let Some(message) = refuse(&experiment, &args) {
        return usage(message);
    }
    // Before the run and not after it: minutes of figures must not be lost to a misspelt folder.
    for path in [&args.json, &args.html].into_iter().flatten() {
        std::fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(path)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    let report = measure(&experiment, &args)?;
    show(&report, args.json.as_deref(), args.html.as_deref())
}

fn show(report: &Report, json: Option<&Path>, page: Option<&Path>) -> anyhow::Result<ExitCode> {
    let color = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    print!("{}", table::render(report, color));
    write(json, || Ok(serde_json::to_string_pretty(report)? + "\n"))?;
    write(page, || Ok(html::render(report)))?;
    Ok(if report.ok() { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}

fn measure(experiment: &Experiment, args: &RunArgs) -> anyhow::Result<Report> {
    let choice =
        Choice { boots: args.boots, arms: args.arms.clone(), quick: args.quick, seed: args.seed, arch: args.arch };
    let spec = MachineSpec {
        accel: args.accel,
        kernel: args.kernel.clone(),
        modules: args.modules.clone(),
        ..runner::machine(experiment, &choice)
    };
    let cache = Cache::open()?;
    let boot = |spec: &MachineSpec, progress: &dyn Progress| -> crate::Result<Box<dyn Rig>> {
        Ok(Box::new(Machine::boot(&cache, spec, progress)?))
    };
    let bar = Bar::new();
    let gathered = runner::run(experiment, &choice, &spec, &boot, &bar);
    drop(bar);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    Ok(Report::new(experiment, &choice, &spec, gathered, now))
}

fn refuse(experiment: &Experiment, args: &RunArgs) -> Option<String> {
    if !experiment.arch.contains(&args.arch) {
        let arch: Vec<&str> = experiment.arch.iter().map(|arch| arch.name()).collect();
        return Some(format!("{} runs on {} only", args.name, arch.join(" and ")));
    }
    let known: Vec<&str> = experiment.arms.iter().map(|arm| arm.name.as_ref().as_str()).collect();
    let unknown = args.arms.iter().find(|arm| !known.contains(&arm.as_str()))?;
    Some(format!("{} has no arm '{unknown}'; there are: {} ({STOCK} always runs)", args.name, known.join(", ")))
}

/// Writes a file whole or not at all.
fn write(path: Option<&Path>, text: impl FnOnce() -> anyhow::Result<String>) -> anyhow::Result<()> {
    let Some(path) = path else { return Ok(()) };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let save = || -> anyhow::Result<()> {
        // A pipe or /dev/stdout can't be replaced.
        if path.exists() && !path.is_file() {
            return Ok(std::fs::write(path, text()?)?);
        }
        let file = tempfile::NamedTempFile::new_in(folder)?;
        std::fs::write(file.path(), text()?)?;
        // Temporary files are for their owner alone; a report is as readable as any file the user makes.
        std::fs::set_permissions(file.path(), std::os::unix::fs::PermissionsExt::from_mode(0o644))?;
        file.persist(path)?;
        Ok(())
    };
    save().with_context(|| format!("cannot write {}", path.display()))
}
