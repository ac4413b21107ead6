//! A machine of the lab: a KVM host in QEMU, with real KVM guests inside it.
use std::{fmt, path::PathBuf, str::FromStr, time::Duration};

use entrain_cpufreq_emulation::tables::Choice as Frequency;
use serde::{Deserialize, Serialize};

use self::{pace::Pace, topology::Topology};

pub use self::run::{Machine, Running};

pub mod accel;
mod awake;
mod calibrate;
mod clock;
pub mod console;
mod frequency;
mod link;
pub mod pace;
pub mod profile;
pub mod recipe;
mod run;
mod spread;
pub mod topology;

/// Architecture of host machine and guests (the development machine's own does not matter).
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, Hash, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Arch {
    /// 64-bit Arm with EL2 under TCG: the reliable one, hence the default.
    #[default]
    Aarch64,
    /// x86-64 with AMD SVM under TCG, or with KVM where nested KVM works.
    #[serde(rename = "x86_64")]
    X86_64,
}

impl Arch {
    /// The architecture that this program was built for, if the lab knows it.
    pub fn native() -> Option<Self> {
        std::env::consts::ARCH.parse().ok()
    }

    /// As `uname -m` and QEMU name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Aarch64 => "aarch64",
            Self::X86_64 => "x86_64",
        }
    }

    /// As Debian names it.
    pub fn debian(self) -> &'static str {
        match self {
            Self::Aarch64 => "arm64",
            Self::X86_64 => "amd64",
        }
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Arch {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "aarch64" | "arm64" => Ok(Self::Aarch64),
            "x86_64" | "amd64" => Ok(Self::X86_64),
            _ => Err(format!("unknown architecture '{s}': aarch64 and x86_64 are known")),
        }
    }
}

/// How the host machine's CPUs are made.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, Hash, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Accel {
    /// KVM if it really works here with nesting, else TCG.
    #[default]
    Auto,
    /// Emulation.
    Tcg,
    /// Nested KVM.
    Kvm,
}

impl FromStr for Accel {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "auto" => Ok(Self::Auto),
            "tcg" => Ok(Self::Tcg),
            "kvm" => Ok(Self::Kvm),
            _ => Err(format!("unknown accelerator '{s}': auto, tcg and kvm are known")),
        }
    }
}

/// Where a command runs.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Target {
    /// The host machine.
    Host,
    /// Its guest of this index.
    Guest(usize),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("host machine"),
            Self::Guest(n) => write!(f, "guest {n}"),
        }
    }
}

impl FromStr for Target {
    type Err = String;
    /// `host`, `guest1`, or `1` for a guest.
    fn from_str(s: &str) -> Result<Self, String> {
        if s == "host" {
            return Ok(Self::Host);
        }
        let number = s.strip_prefix("guest").unwrap_or(s).parse().ok();
        number.map(Self::Guest).ok_or_else(|| format!("'{s}' is neither 'host' nor a guest ('guest0' or '0')"))
    }
}

/// A host machine and the guests that are to be up when it has booted.
#[derive(Clone, Debug, Serialize)]
pub struct MachineSpec {
    /// Architecture of host machine and guests.
    pub arch: Arch,
    /// How its CPUs are made.
    pub accel: Accel,
    /// The PREEMPT_RT flavour of the kernel (host machine and guests).
    pub rt: bool,
    /// A kernel image of one's own instead of the archive's newest, or the name of a release ([`crate::archive::Release`]).
    pub kernel: Option<PathBuf>,
    /// The same for guests that shall boot another kernel than the host machine; modules lie beside it.
    pub guest_kernel: Option<PathBuf>,
    /// Modules of that kernel: the folder `lib/modules/RELEASE`.
    pub modules: Option<PathBuf>,
    /// CPUs of the host machine (pCPUs of the experiment).
    pub pcpus: u32,
    /// How its CPUs stand to one another.
    pub topology: Topology,
    /// Memory of the host machine, MiB.
    pub memory_mib: u32,
    /// CPUs whose frequency can be scaled, emulated; aarch64 only.
    pub frequency: Option<Frequency>,
    /// Whether guests run in it. Without them [`Accel::Kvm`] takes a KVM that can't nest, too.
    pub nested: bool,
    /// The livepatch module of `entrain isolate qpw`, built for its kernel, lies where `qpw load` looks for it.
    pub qpw: bool,
    /// Modules of its kernel that lie in `/usr/lib/entrain/extra`, not loaded.
    pub extra_modules: Vec<String>,
    /// Modules of its kernel that its guests load as they boot.
    pub guest_modules: Vec<String>,
    /// More parameters for the host machine's kernel.
    pub cmdline: Vec<String>,
    /// Programs wanted in host machine and guests: Debian's (`dbench`, …) and peers (`scx_bpfland`, …).
    pub programs: Vec<String>,
    /// How much slower than the computer's its time passes once it is up, if it is emulated.
    pub dilation: Pace,
    /// Where its guests' QEMUs lie among its cgroups.
    pub cgroups: Cgroups,
    /// Guests to be started with it.
    pub guests: Vec<GuestSpec>,
    /// How long host machine and guests may take to come up, instead of the lab's own deadlines.
    pub boot_limit: Option<Duration>,
}

impl Default for MachineSpec {
    /// The default architecture, 2 pCPUs, 4 GiB, no guests.
    fn default() -> Self {
        Self {
            arch: Arch::default(),
            accel: Accel::default(),
            rt: false,
            kernel: None,
            guest_kernel: None,
            modules: None,
            pcpus: 2,
            topology: Topology::default(),
            memory_mib: 4096,
            frequency: None,
            nested: true,
            qpw: false,
            extra_modules: Vec::new(),
            guest_modules: Vec::new(),
            cmdline: Vec::new(),
            programs: Vec::new(),
            dilation: Pace::default(),
            cgroups: Cgroups::default(),
            guests: Vec::new(),
            boot_limit: None,
        }
    }
}

/// Where guests' QEMUs lie among the host machine's cgroups.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Cgroups {
    /// In a scope of `machine.slice` each, every vCPU in a threaded cgroup of its own: as on a server with libvirt.
    #[default]
    Libvirt,
    /// All in the root: as where QEMU is started by hand.
    Flat,
}

/// What a guest's memory is made of on the host machine.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, Hash, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MemoryBackend {
    /// A shared memfd (`share=on`): the host's daemon can map it.
    #[default]
    Shared,
    /// Private anonymous memory, QEMU's default.
    Private,
    /// A shared memfd of 2 MiB huge pages, which the agent reserves.
    Hugetlb,
}

/// One guest.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct GuestSpec {
    /// Its name, also QEMU's process name on the host machine.
    pub name: String,
    /// Its vCPUs.
    pub vcpus: u32,
    /// Its memory, MiB.
    pub memory_mib: u32,
    /// What the memory is made of.
    #[serde(default)]
    pub memory: MemoryBackend,
    /// Whether it halts without an exit to the host: QEMU's `-overcommit cpu-pm=on`.
    #[serde(default)]
    pub cpu_pm: bool,
    /// More parameters for its kernel.
    #[serde(default)]
    pub cmdline: Vec<String>,
    /// Another image than the lab's, a path in the host machine.
    #[serde(default)]
    pub initrd: Option<String>,
}

impl GuestSpec {
    /// A guest with shared memory of 384 MiB.
    pub fn new(name: impl Into<String>, vcpus: u32) -> Self {
        Self {
            name: name.into(),
            vcpus,
            memory_mib: 384,
            memory: MemoryBackend::Shared,
            cpu_pm: false,
            cmdline: Vec::new(),
            initrd: None,
        }
    }
}

/// A command to run in a machine.
#[derive(Clone, Debug)]
pub struct Command {
    /// Program and arguments; the program is searched on the machine's PATH.
    pub argv: Vec<String>,
    /// Variables beside the agent's own.
    pub env: Vec<(String, String)>,
    /// Given to it on stdin.
    pub stdin: Vec<u8>,
    /// It is killed when it has not ended after this long.
    pub deadline: Duration,
}

impl Command {
    /// A command with a deadline of 60 s.
    pub fn new<S: Into<String>>(argv: impl IntoIterator<Item = S>) -> Self {
        Self {
            argv: argv.into_iter().map(Into::into).collect(),
            env: Vec::new(),
            stdin: Vec::new(),
            deadline: Duration::from_secs(60),
        }
    }

    /// A shell line.
    pub fn shell(line: &str) -> Self {
        Self::new(["sh", "-c", line])
    }

    /// The same with another deadline.
    pub fn within(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }
}

/// How a command ended.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Exit status; 128 + the signal if one ended it.
    pub status: i32,
    /// What it wrote to stdout.
    pub stdout: Vec<u8>,
    /// What it wrote to stderr.
    pub stderr: Vec<u8>,
}

impl Outcome {
    /// Did it end with status 0?
    pub fn ok(&self) -> bool {
        self.status == 0
    }

    /// stdout as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }
}

/// CPU time of the emulator's vCPU threads on the development machine; the difference of two readings tells the
/// share of CPU that the machine got between them.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize)]
pub struct CpuClock {
    /// Time that they ran, ns (first field of `/proc/PID/task/TID/schedstat`).
    pub ran_ns: u64,
    /// Time that they were runnable but waited for a CPU, ns (second field).
    pub waited_ns: u64,
    /// Time stolen from the development machine itself, ns (`steal` of `/proc/stat`).
    pub steal_ns: u64,
    /// CPU time that the development machine had to give until now, all CPUs that this process may use together, ns; 0 if
    /// not known.
    pub capacity_ns: u64,
}

impl CpuClock {
    /// Share of the CPU time that the machine asked for which it got since `earlier`, 0 to 1.
    ///
    /// `ran / (min(ran + waited, capacity) + steal)`: emulated CPUs that outnumber those of the development machine wait
    /// for one another, which nobody else is to blame for, so nothing beyond its capacity counts as asked for. Steal is of
    /// all CPUs, so this is a lower bound.
    pub fn share_since(&self, earlier: &Self) -> f64 {
        let since = |now: u64, then: u64| now.saturating_sub(then);
        let ran = since(self.ran_ns, earlier.ran_ns);
        let asked = ran + since(self.waited_ns, earlier.waited_ns);
        let asked = match since(self.capacity_ns, earlier.capacity_ns) {
            0 => asked,
            capacity => asked.min(capacity).max(ran),
        };
        let asked = asked + since(self.steal_ns, earlier.steal_ns);
        if ran == 0 { 1.0 } else { ran as f64 / asked as f64 }
    }
}
