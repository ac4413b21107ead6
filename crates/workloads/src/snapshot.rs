//! `probe`: prints the machine's counters at this moment.

use crate::clock::now_ns;
use anyhow::Result;
use entrain_system::Root;
use entrain_workloads::probe::{self, Snapshot};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// The machine's counters at this moment: context switches, interrupts, VM exits, directed yields, steal, sched_ext
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
    /// Where /proc and /sys are
    #[arg(long, default_value = "/", value_name = "DIR", hide = true)]
    root: PathBuf,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let snapshot = probe::take(&Root::at(&args.root), now_ns())?;
    let text = if args.json { serde_json::to_string(&snapshot)? } else { table(&snapshot) };
    writeln!(std::io::stdout(), "{text}")?;
    Ok(ExitCode::SUCCESS)
}

fn table(snapshot: &Snapshot) -> String {
    let mut lines = Vec::new();
    let mut line = |name: &str, value: u64, unit: &str| lines.push(format!("{name:<40} {value:>16} {unit}"));
    line("context switches", snapshot.context_switches, "");
    let cpu = &snapshot.cpu;
    for (name, ns) in [
        ("user", cpu.user_ns),
        ("system", cpu.system_ns),
        ("idle", cpu.idle_ns),
        ("steal", cpu.steal_ns),
        ("guest", cpu.guest_ns),
    ] {
        line(&format!("CPU time, {name}"), ns / 1_000_000, "ms");
    }
    for (name, count) in &snapshot.interrupts {
        line(&format!("interrupts, {name}"), *count, "");
    }
    for vm in &snapshot.vms {
        for (name, count) in &vm.counters {
            line(&format!("{} ({}) {name}", vm.name, vm.id), *count, "");
        }
        for vcpu in &vm.vcpus {
            line(&format!("{} ({}) vCPU thread {} ran", vm.name, vm.id, vcpu.tid), vcpu.run_ns / 1_000_000, "ms");
            line(&format!("{} ({}) vCPU thread {} waited", vm.name, vm.id, vcpu.tid), vcpu.wait_ns / 1_000_000, "ms");
        }
    }
    if let Some(scx) = &snapshot.sched_ext {
        line(&format!("sched_ext {} {}", scx.state, scx.ops.as_deref().unwrap_or("")), scx.loads, "loads");
        for (name, count) in &scx.events {
            line(&format!("sched_ext {name}"), *count, "");
        }
    }
    lines.join("\n")
}
