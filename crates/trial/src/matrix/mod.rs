//! `entrain trial matrix`: stock and Entrain in every cell of vCPUs, overcommit, PLE and paravirtual spinlocks, with VMs that
//! it starts itself, on a host that has no others.

mod cells;
mod console;
mod module;
mod vms;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use entrain_system::Root;
use serde::Serialize;

use self::cells::{Cell, Ple, Spin, cells};
use self::module::Module;
use self::vms::{Guest, Vms};
use crate::alarm::Limits;
use crate::command::Figure;
use crate::daemon::Side;
use crate::report::Report;
use crate::rounds::{self, Plan, Stop};
use crate::way_back;

pub(crate) use console::ConsoleArgs;
pub(crate) use console::run as console;

/// The VMs are of the host's architecture.
const QEMU: &str = if cfg!(target_arch = "x86_64") { "qemu-system-x86_64" } else { "qemu-system-aarch64" };

/// A matrix of trials with VMs of its own: for a host that is there for tests and runs no other VMs.
///
/// Each VM boots --kernel and --initrd, runs --guest-command by `sh -c` again and again, and the last number of each run
/// counts. In each cell stock (`observe`) and Entrain (`schedule`) take turns as in `entrain trial`. What a cell asks for and
/// this host cannot be set to ends the command before anything is started.
#[derive(Clone, Debug, Args)]
pub(crate) struct MatrixArgs {
    /// The guests' kernel
    #[arg(long, value_name = "FILE")]
    pub kernel: PathBuf,
    /// The guests' initramfs: with sh, mount, and what the command runs
    #[arg(long, value_name = "FILE")]
    pub initrd: PathBuf,
    /// What each guest runs, again and again; it prints a number
    #[arg(long, value_name = "COMMAND")]
    pub guest_command: String,
    /// What that number is called, with its unit; those of all VMs are added up
    #[arg(long, default_value = "the guests' figure", value_name = "NAME")]
    pub figure: String,
    /// QEMU
    #[arg(long, default_value = QEMU, value_name = "PROGRAM")]
    pub qemu: PathBuf,
    /// More arguments for QEMU, split at spaces
    #[arg(long, default_value = "", value_name = "ARGUMENTS", allow_hyphen_values = true)]
    pub qemu_args: String,
    /// vCPUs of each VM
    #[arg(long, default_values_t = [10, 20], value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=256))]
    pub vcpus: Vec<u32>,
    /// Overcommit: all VMs' vCPUs for each pCPU
    #[arg(long, default_values_t = [1, 2], value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=16))]
    pub overcommit: Vec<u32>,
    /// Pause-loop exiting (x86): as KVM has it by default, or off (ple_gap=0, pause_filter_count=0)
    #[arg(long, value_enum, default_values_t = [Ple::Default, Ple::Off], value_delimiter = ',')]
    pub ple: Vec<Ple>,
    /// Paravirtual spinlocks in the guests (x86): as the guests' kernel has them by default, or off (nopvspin)
    #[arg(long, value_enum, default_values_t = [Spin::Default, Spin::Off], value_delimiter = ',')]
    pub pvspin: Vec<Spin>,
    /// Memory of each VM, MiB
    #[arg(long, default_value_t = 1024, value_name = "MIB", value_parser = clap::value_parser!(u32).range(64..=1 << 20))]
    pub memory: u32,
    /// How long the VMs may take until each has printed its first number
    #[arg(long, default_value_t = 120, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub boot: u64,
    /// Rounds of each cell
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(2..=1000))]
    pub rounds: u32,
    /// Length of a window
    #[arg(long, default_value_t = 60, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(5..=86_400))]
    pub window: u64,
    /// Time that a side has before its window begins
    #[arg(long, default_value_t = 15, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(2..=3600))]
    pub settle: u64,
    /// Only look whether the matrix could begin, and say what it would do
    #[arg(long)]
    pub dry_run: bool,
    /// Write all cells as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Folder of the host's own daemon, which must not run
    #[arg(long, default_value = "/run/entrain", env = "ENTRAIN_RUN_DIR", hide = true)]
    pub run_dir: PathBuf,
}

/// A cell that was run.
#[derive(Debug, Serialize)]
struct Done {
    #[serde(flatten)]
    cell: Cell,
    report: Report,
}

/// Runs the command.
pub(crate) fn run(args: &MatrixArgs) -> anyhow::Result<ExitCode> {
    let root = Root::live();
    let pcpus = root.cpus_or_none("sys/devices/system/cpu/online").len() as u32;
    let cells = cells(args, pcpus)?;
    let module = Module::of(&root);
    let mut hindrances = way_back::hindrances(&root, &args.run_dir, true);
    hindrances.extend(hindrances_of(args, &root, module.as_ref(), &cells));
    if !hindrances.is_empty() {
        bail!("the matrix does not begin:\n  - {}", hindrances.join("\n  - "));
    }
    let plan = Plan {
        sides: [Side::Observe, Side::Schedule],
        rounds: args.rounds,
        window: Duration::from_secs(args.window),
        settle: Duration::from_secs(args.settle),
        figure: None,
        // VMs of one's own may wait as long as they like.
        limits: Limits { ready: Some(2.0), command: None },
    };
    let minutes = (plan.window + plan.settle).as_secs() * 2 * u64::from(args.rounds) * cells.len() as u64 / 60;
    eprintln!("{} cells on {pcpus} pCPUs, {} rounds each: {minutes} min at least", cells.len(), args.rounds);
    cells.iter().for_each(|cell| eprintln!("  {cell}"));
    if args.dry_run {
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(file) = &args.json {
        fs::OpenOptions::new().append(true).create(true).open(file).with_context(|| file.display().to_string())?;
    }
    let stop = Stop::on_signals()?;
    let mut done = Vec::new();
    let ended = all(args, &cells, module.as_ref(), &plan, &stop, &mut done);
    print!("{}", table(&done, &args.figure));
    if let Some(file) = &args.json {
        fs::write(file, serde_json::to_vec_pretty(&done)?).with_context(|| file.display().to_string())?;
    }
    if let Err(error) = &ended {
        eprintln!("Not run to its end: {error:#}");
    }
    let left = way_back::left(&root);
    if let Some(left) = &left {
        eprintln!("entrain trial: {left}");
    }
    Ok(if ended.is_ok() && left.is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What this host cannot be set to, or be given back from.
fn hindrances_of(args: &MatrixArgs, root: &Root, module: Option<&Module>, cells: &[Cell]) -> Vec<String> {
    let mut all = Vec::new();
    for file in [&args.kernel, &args.initrd] {
        if !file.is_file() {
            all.push(format!("{} is no file", file.display()));
        }
    }
    if !root.exists("dev/kvm") {
        all.push("there is no /dev/kvm".to_owned());
    }
    let sets_ple = cells.iter().any(|cell| cell.ple == Ple::Off);
    if sets_ple {
        match module {
            None => all.push("--ple off: KVM has no pause-loop exiting here (x86 has): give --ple default".to_owned()),
            Some(module) => all.extend(module.hindrance(root)),
        }
    }
    if cells.iter().any(|cell| cell.pvspin == Spin::Off) && cfg!(not(target_arch = "x86_64")) {
        all.push("--pvspin off: only x86 has the parameter nopvspin: give --pvspin default".to_owned());
    }
    all
}

fn all(
    args: &MatrixArgs,
    cells: &[Cell],
    module: Option<&Module>,
    plan: &Plan,
    stop: &Stop,
    done: &mut Vec<Done>,
) -> anyhow::Result<()> {
    // KVM is given back as it was, however this ends.
    let mut ple = None;
    for (number, cell) in cells.iter().enumerate() {
        eprintln!("cell {} of {}: {cell}", number + 1, cells.len());
        if cell.ple == Ple::Off && ple.is_none() {
            ple = module.map(Module::without_ple).transpose()?;
        } else if cell.ple == Ple::Default {
            drop(ple.take());
        }
        let guest = Guest { args, cell };
        let vms = Vms::start(&guest, stop).with_context(|| format!("the VMs of the cell: {cell}"))?;
        let figure = Figure { command: vms.figure(plan.window), name: args.figure.clone(), lower_is_better: false };
        let plan = Plan { figure: Some(figure), sides: plan.sides.clone(), limits: plan.limits.clone(), ..*plan };
        let (rounds, ended) = rounds::run(&plan, stop);
        vms.check()?;
        let report = Report::new(&plan, &rounds, ended.as_ref().err().map(ToString::to_string));
        print!("{cell}\n{}\n", report.text());
        done.push(Done { cell: *cell, report });
        ended?;
    }
    Ok(())
}

fn table(done: &[Done], figure: &str) -> String {
    let mut text = format!("{figure}: Entrain/stock [95 %]\n");
    for one in done {
        text.push_str(&format!("{:<60} {}\n", one.cell.to_string(), one.report.told_of_command()));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_do_not_fit_are_refused() {
        use clap::Parser;
        #[derive(Parser)]
        struct Line {
            #[command(flatten)]
            args: MatrixArgs,
        }
        let line = |more: &[&str]| {
            let fixed = ["x", "--kernel", "k", "--initrd", "i", "--guest-command", "c"];
            Line::try_parse_from(fixed.iter().chain(more)).expect("a command line").args
        };
        let all = cells(&line(&[]), 20).expect("cells");
        assert_eq!(all.len(), 16);
        assert_eq!(all[0].vms, 2, "20 pCPUs, 10 vCPUs, once");
        assert!(all.iter().any(|cell| cell.vcpus == 20 && cell.overcommit == 2 && cell.vms == 2));
        // PLE changes as rarely as can be: KVM's module is loaded anew for it.
        assert_eq!(all.windows(2).filter(|pair| pair[0].ple != pair[1].ple).count(), 1);
        let error = cells(&line(&["--vcpus", "4"]), 2).expect_err("too wide").to_string();
        assert!(error.contains("4 vCPUs") && error.contains("2 pCPUs"), "{error}");
        assert_eq!(
            cells(&line(&["--vcpus", "2", "--ple", "default", "--pvspin", "default"]), 2).expect("cells").len(),
            2
        );
        ensure_kernel_is_told();
    }

    fn ensure_kernel_is_told() {
        let machine = entrain_system::fake::Machine::default();
        let args = MatrixArgs {
            kernel: "/nowhere".into(),
            initrd: "/nowhere".into(),
            guest_command: String::new(),
            figure: String::new(),
            qemu: PathBuf::new(),
            qemu_args: String::new(),
            vcpus: vec![1],
            overcommit: vec![1],
            ple: vec![Ple::Off],
            pvspin: vec![Spin::Default],
            memory: 64,
            boot: 1,
            rounds: 2,
            window: 5,
            settle: 2,
            dry_run: true,
            json: None,
            run_dir: PathBuf::new(),
        };
        let all = cells(&args, 1).expect("cells");
        let told = hindrances_of(&args, &machine.root(), None, &all).join("\n");
        assert!(told.contains("/nowhere") && told.contains("/dev/kvm") && told.contains("--ple off"), "{told}");
    }
}
