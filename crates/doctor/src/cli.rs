//! The subcommand `entrain doctor`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};

use crate::finding::{Report, SCHEMA};
use crate::machine::Machine;
use crate::purpose::{self, Purpose};
use crate::{guest, host, kernel, running, vm};

/// What the machine is examined as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Role {
    /// A KVM host
    Host,
    /// A virtual machine
    Guest,
}

/// Says what this machine can do for Entrain, what it lacks, and the remedy.
///
/// Exit status: 0 if nothing is missing, 1 if something is, 2 if the machine could not be examined. Findings with a limit
/// (warn) do not count as missing. With --for only what that purpose needs is looked at, told and counted.
#[derive(Clone, Debug, Args)]
pub struct DoctorArgs {
    /// Examine the machine as this; without it, as what it is, which may be both
    #[arg(long, value_enum)]
    role: Option<Role>,
    /// Only what is needed for this
    #[arg(long = "for", value_enum, value_name = "PURPOSE")]
    purpose: Option<Purpose>,
    /// JSON
    #[arg(long)]
    json: bool,
    /// Examine the machine whose /proc, /sys, /dev and /run are in this folder
    #[arg(long, hide = true, default_value = "/", value_name = "DIR")]
    root: PathBuf,
}

/// Runs the command.
pub fn run(args: DoctorArgs) -> anyhow::Result<ExitCode> {
    let report = match examine(&Machine::at(&args.root), args.role, args.purpose) {
        Ok(report) => report,
        Err(what) => {
            eprintln!("entrain doctor: {what}");
            return Ok(ExitCode::from(2));
        }
    };
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{}", report.text());
    }
    Ok(ExitCode::from(report.exit_status()))
}

/// Looks at everything. An error when this is no Linux machine that can be examined.
pub fn examine(machine: &Machine, role: Option<Role>, purpose: Option<Purpose>) -> Result<Report, String> {
    let missing = |path: &str| format!("cannot read {}: is /proc mounted?", machine.root.path(path).display());
    let kernel = machine.release().ok_or_else(|| missing("proc/sys/kernel/osrelease"))?;
    if !machine.root.exists("proc/self/status") {
        return Err(missing("proc/self/status"));
    }
    let is_guest = role.map_or(machine.is_guest(), |role| role == Role::Guest);
    // A machine that is neither could still become a host: it is told what it lacks for that.
    let is_host = role.map_or(machine.is_host() || !is_guest, |role| role == Role::Host);
    let features = machine.features();
    let mut findings = kernel::examine(machine, &features, !is_host);
    let mut vms = Vec::new();
    if is_host {
        let daemon = host::ask(machine);
        findings.extend(host::examine(machine, &features, daemon.as_ref()));
        vms = running::find(machine);
        let vcpus = vms.iter().map(|vm| vm.vcpus).sum();
        findings.extend(host::polling(machine, vcpus));
        findings.extend(host::trapping(machine, &features, vcpus));
        findings.extend(vms.iter().flat_map(|vm| vm::examine(vm, daemon.as_ref())));
    }
    if is_guest {
        findings.extend(guest::examine(machine));
    }
    if let Some(purpose) = purpose {
        findings.retain(|finding| purpose.needs(finding));
        findings.extend(purpose::examine(machine, purpose, vms.len()));
    }
    let roles = [(is_host, "host"), (is_guest, "guest")];
    let roles = roles.into_iter().filter_map(|(is, name)| is.then_some(name)).collect();
    Ok(Report { schema: SCHEMA, version: env!("CARGO_PKG_VERSION"), kernel, roles, purpose, findings, vms })
}
