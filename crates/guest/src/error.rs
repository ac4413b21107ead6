//! What can go wrong in the guest's agent; every message says what to do.

use std::io;
use std::path::PathBuf;

use entrain_cli::exit;
use thiserror::Error;

/// An error of the agent. Whatever it had published is taken back before it is returned.
#[derive(Debug, Error)]
pub enum GuestError {
    /// Rights are missing.
    #[error("the agent needs {missing}: run it as root, or give it these capabilities")]
    Privileges {
        /// Names of capabilities.
        missing: String,
    },
    /// The kernel was built without BTF.
    #[error("{path} is missing: this kernel has no BTF (CONFIG_DEBUG_INFO_BTF); use a kernel that has, as Debian's", path = .0.display())]
    NoBtf(PathBuf),
    /// Lockdown forbids what the agent does.
    #[error(
        "kernel lockdown is in mode 'confidentiality': BPF may not read kernel memory; \
         boot with lockdown=integrity, or do without Entrain in this guest"
    )]
    Lockdown,
    /// No hypervisor.
    #[error(
        "this is not a virtual machine (no hypervisor bit in CPUID): run 'entrain guest' inside a guest, 'entrain host' here"
    )]
    NotAGuest,
    /// The BPF file system is not there.
    #[error("the BPF file system could not be mounted at {path}: {source}; mount it: mount -t bpf bpf {path}", path = path.display())]
    Bpffs {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Another agent runs.
    #[error("another agent runs in this guest (process {pid}); stop it with: entrain guest --release")]
    Running {
        /// Its process.
        pid: u32,
    },
    /// There is nothing to release or to show.
    #[error("nothing is registered in this guest; start the agent with: entrain guest --mode register")]
    NothingRegistered,
    /// The agent has not offered its pages yet.
    #[error("the agent (process {pid}) is starting: it offers its pages once its programs are loaded; ask again soon")]
    Starting {
        /// Its process.
        pid: u32,
    },
    /// The agent did not end.
    #[error("the agent (process {pid}) did not end within {seconds} s; end it with: kill -9 {pid}, then release again")]
    DoesNotEnd {
        /// Its process.
        pid: u32,
        /// How long it was waited for.
        seconds: u64,
    },
    /// The kernel keeps its variables in a way that this program does not know.
    #[error("unknown kernel layout: {0}; this version of Entrain can't register this kernel's {1}")]
    UnknownLayout(String, &'static str),
    /// No sched_ext.
    #[error(
        "this kernel has no sched_ext (CONFIG_SCHED_CLASS_EXT, since 6.12): \
         use --mode vcpud, or --mode register, which leave the scheduler alone"
    )]
    NoSchedExt,
    /// A sched_ext without functions that the scheduler calls.
    #[error(
        "this kernel's sched_ext is too old for this scheduler (Linux 6.19 or newer): \
         use --mode vcpud, or --mode register, which leave the scheduler alone"
    )]
    OldSchedExt,
    /// No cpuset controller.
    #[error("/sys/fs/cgroup has no cpuset controller: mount cgroup v2 there, or use --park-by hotplug")]
    NoCpuset,
    /// More CPUs than the scheduler has memory for.
    #[error(
        "{possible} CPUs are possible in this guest, and the scheduler serves {most}: \
         use --mode register, or give the VM a lower maximum of vCPUs (QEMU: -smp maxcpus=)"
    )]
    TooManyCpus {
        /// CPUs that may ever be there.
        possible: usize,
        /// What it serves.
        most: usize,
    },
    /// What was found failed its own check.
    #[error("self-check failed: {0}; nothing was published")]
    SelfCheck(String),
    /// A file of /proc or /sys cannot be read or understood.
    #[error(transparent)]
    Machine(#[from] entrain_system::SystemError),
    /// A file of the agent's, of BPF or of cgroups.
    #[error("{path}: {source}", path = path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Such a file says what was not expected.
    #[error("{path} says {found:?}, which is not understood", path = path.display())]
    Unexpected {
        /// Which.
        path: PathBuf,
        /// What it says.
        found: String,
    },
    /// The kernel refused something of BPF.
    #[error("{doing}: {source}")]
    Bpf {
        /// What was tried.
        doing: &'static str,
        /// Why it failed.
        source: libbpf_rs::Error,
    },
    /// A system call.
    #[error("{doing}: {source}")]
    System {
        /// What was tried.
        doing: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}

impl GuestError {
    /// The program's status, where another start would not cure it.
    pub fn exit_status(&self) -> Option<u8> {
        match self {
            Self::NoBtf(_)
            | Self::Lockdown
            | Self::NotAGuest
            | Self::UnknownLayout(..)
            | Self::NoSchedExt
            | Self::OldSchedExt
            | Self::NoCpuset
            | Self::TooManyCpus { .. } => Some(exit::UNAVAILABLE),
            Self::Privileges { .. } => Some(exit::NO_PERMISSION),
            _ => None,
        }
    }

    /// With what it comes from, for a line of the log.
    pub(crate) fn with_source(&self) -> String {
        let source = std::error::Error::source(self).map(|source| format!(": {source}"));
        format!("{self}{}", source.unwrap_or_default())
    }

    /// For `map_err` on results of libbpf.
    pub(crate) fn bpf(doing: &'static str) -> impl FnOnce(libbpf_rs::Error) -> Self {
        move |source| Self::Bpf { doing, source }
    }

    /// For `map_err` on results of system calls.
    pub(crate) fn system<E: Into<io::Error>>(doing: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::System { doing, source: source.into() }
    }
}

/// Result of the agent's functions.
pub type Result<T> = std::result::Result<T, GuestError>;
