//! What the doctor finds, and how it is told.

use std::fmt::Write;

use clap::ValueEnum;
use serde::Serialize;

use crate::purpose::Purpose;
use crate::running::RunningVm;

/// Raised when a field of the JSON form changes its meaning or goes away.
pub(crate) const SCHEMA: u32 = 1;

/// How something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// As it should be.
    Ok,
    /// Works, with the limit that is told.
    Warn,
    /// What needs it does not work.
    Missing,
}

/// One thing that was looked at.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// Its name, the same in every version.
    pub id: &'static str,
    /// How it is.
    pub status: Status,
    /// The VMM's process, where it is about one VM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
    /// What is there.
    pub found: String,
    /// What does not work without it, or works less well.
    pub needed_for: &'static str,
    /// What to do; one line each, empty where nothing is to be done.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub remedy: Vec<String>,
}

impl Finding {
    /// All is well.
    pub(crate) fn ok(id: &'static str, needed_for: &'static str, found: impl Into<String>) -> Self {
        Self { id, status: Status::Ok, pid: None, found: found.into(), needed_for, remedy: Vec::new() }
    }

    /// It works, with a limit.
    pub(crate) fn warn(
        id: &'static str,
        needed_for: &'static str,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { status: Status::Warn, remedy: vec![remedy.into()], ..Self::ok(id, needed_for, found) }
    }

    /// It does not work.
    pub(crate) fn missing(
        id: &'static str,
        needed_for: &'static str,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { status: Status::Missing, ..Self::warn(id, needed_for, found, remedy) }
    }

    /// About the VM of this process.
    pub(crate) fn of(mut self, pid: i32) -> Self {
        self.pid = Some(pid);
        self
    }
}

/// Everything.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Of this program.
    pub version: &'static str,
    /// Of the kernel, as `uname -r` has it.
    pub kernel: String,
    /// What the machine was examined as: `host`, `guest`, or both where VMs run inside a VM.
    pub roles: Vec<&'static str>,
    /// What it is wanted for, if that was asked.
    #[serde(rename = "for", skip_serializing_if = "Option::is_none")]
    pub purpose: Option<Purpose>,
    /// The machine first, then each VM.
    pub findings: Vec<Finding>,
    /// The VMs that run here.
    pub vms: Vec<RunningVm>,
}

impl Report {
    /// 0: nothing is missing; 1: something is.
    pub fn exit_status(&self) -> u8 {
        u8::from(self.findings.iter().any(|finding| finding.status == Status::Missing))
    }

    /// The finding of this id; of a VM, if `pid` is given.
    pub fn find(&self, id: &str, pid: Option<i32>) -> Option<&Finding> {
        self.findings.iter().find(|finding| finding.id == id && finding.pid == pid)
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut text = format!("entrain {} on Linux {}, as {}", self.version, self.kernel, self.roles.join(" and "));
        let purpose = self.purpose.and_then(|purpose| Some(purpose.to_possible_value()?.get_name().to_owned()));
        text += &purpose.map_or(String::new(), |name| format!(", for {name}"));
        text += "\n\n";
        for finding in self.findings.iter().filter(|finding| finding.pid.is_none()) {
            line(&mut text, finding);
        }
        for vm in &self.vms {
            let _ = writeln!(text, "\nVM {} (pid {}, {}, {} vCPUs)", vm.identity.name, vm.pid, vm.vmm.name(), vm.vcpus);
            for finding in self.findings.iter().filter(|finding| finding.pid == Some(vm.pid)) {
                line(&mut text, finding);
            }
        }
        let count = |status| self.findings.iter().filter(|finding| finding.status == status).count();
        let (missing, warnings) = (count(Status::Missing), count(Status::Warn));
        let _ = match (missing, warnings) {
            (0, 0) => writeln!(text, "\nAll is well."),
            _ => writeln!(text, "\n{missing} missing, {warnings} with a limit."),
        };
        text
    }
}

fn line(text: &mut String, finding: &Finding) {
    let mark = match finding.status {
        Status::Ok => "ok",
        Status::Warn => "warn",
        Status::Missing => "MISSING",
    };
    let _ = writeln!(text, "{mark:<8} {:<18} {}", finding.id, finding.found);
    if finding.status != Status::Ok {
        let _ = writeln!(text, "{:<27} needed for: {}", "", finding.needed_for);
        for remedy in &finding.remedy {
            let _ = writeln!(text, "{:<27} > {remedy}", "");
        }
    }
}
