//! Requests and answers as they stand in the JSON.

use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::channel::Channel;
use crate::counters::ScheduleStatus;
use crate::culprits::WaitedFor;
use crate::figures::{FallbackStatus, LevelStatus, ProgramStatus};
use crate::identity::Identity;

/// Raised when a field changes its meaning or goes away; new fields do not raise it.
pub const SCHEMA: u32 = 1;
/// A client that says or takes nothing for so long is dropped.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);

/// A request; `{"request":"status"}`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "kebab-case")]
pub enum Request {
    /// All figures.
    Status {
        /// Also who runs while vCPUs wait; kept for 5 s after the last such request.
        #[serde(default)]
        waits: bool,
    },
}

/// What the daemon answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Answer {
    /// To [`Request::Status`].
    Status(Box<Status>),
    /// It could not be done.
    Error {
        /// Why.
        error: String,
    },
}

/// All figures at one moment. Counters start with the daemon; times are in ns of CLOCK_MONOTONIC.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Of the daemon.
    pub version: String,
    /// `observe` or `schedule`, as it was started.
    pub mode: String,
    /// Mode `schedule` only observes for now.
    #[serde(default)]
    pub fallback: Option<FallbackStatus>,
    /// Times that its scheduler has ended by itself.
    #[serde(default)]
    pub fallbacks: u64,
    /// Where its metrics are served: the port is known, also where any free one was asked for.
    #[serde(default)]
    pub metrics: Option<SocketAddr>,
    /// Why no guest can be paired with on this kernel, where that is so.
    #[serde(default)]
    pub unpaired: Option<String>,
    /// Of the daemon.
    pub pid: u32,
    /// When this was taken.
    pub now_ns: u64,
    /// Time that the daemon has run.
    pub uptime_ns: u64,
    /// The host's pCPUs.
    pub pcpus: Vec<PcpuStatus>,
    /// The VMs.
    pub vms: Vec<VmStatus>,
    /// What the daemon itself has done.
    pub work: Work,
    /// What the host's scheduler has done; mode `schedule` only.
    #[serde(default)]
    pub schedule: Option<ScheduleStatus>,
    /// The daemon's BPF programs; their times stand still unless `sysctl kernel.bpf_stats_enabled` is 1.
    #[serde(default)]
    pub programs: Vec<ProgramStatus>,
    /// Whether the kernel counts them.
    #[serde(default)]
    pub bpf_stats: bool,
    /// Who ran while vCPUs waited; only while a client asks for it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waits: Vec<WaitStatus>,
}

/// Somebody who had the pCPU that a waiting vCPU got. Counters start when a client asks for the first time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitStatus {
    /// Thread of the vCPU that waited.
    pub tid: i32,
    /// Who had the pCPU: thread of a vCPU, process of any other; 0 when it was idle.
    pub who: i32,
    /// The same for people.
    pub name: String,
    /// Why it waited.
    pub cause: WaitCause,
    /// How long, ns.
    pub ns: u64,
    /// How often.
    pub waits: u64,
}

/// Why a vCPU waited for a pCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WaitCause {
    /// It had halted and was woken.
    Woken,
    /// It was switched out while it ran.
    Preempted,
    /// The same, inside a critical section of the guest's kernel.
    Critical,
    /// It spun, and KVM gave its pCPU to another.
    GaveWay,
}

impl WaitCause {
    /// As it stands in the JSON and in labels.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Woken => "woken",
            Self::Preempted => "preempted",
            Self::Critical => "critical",
            Self::GaveWay => "gave-way",
        }
    }
}

/// One pCPU.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PcpuStatus {
    /// Its number.
    pub cpu: u32,
    /// It is idle.
    pub idle: bool,
    /// 0..=1024.
    pub capacity: u32,
    /// Performance level, 0..=1024.
    pub perf: u32,
    /// What it is asked to run at, where that is asked for.
    #[serde(default)]
    pub level: Option<LevelStatus>,
    /// Context switches to vCPUs.
    pub switches: u64,
    /// Transitions to and from idle.
    pub idles: u64,
    /// Instant bits that those changed.
    pub instants: u64,
    /// Wake-ups of vCPUs.
    pub wakeups: u64,
    /// Doorbells rung.
    pub doorbells: u64,
    /// Changes of capacity or level that a guest was told at once: as its vCPU came here, or as cpufreq changed it ...
    #[serde(default)]
    pub levels_told: u64,
    /// ... and at the next tick only, while its vCPU ran.
    #[serde(default)]
    pub levels_late: u64,
}

/// One VM.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VmStatus {
    /// Its name, its UUID, its manager and what that calls it.
    #[serde(flatten)]
    pub identity: Identity,
    /// What its metrics have as `vm`: the UUID, else the name, with `@PID` where that alone would not tell it apart.
    #[serde(default)]
    pub key: String,
    /// The VMM's process.
    pub pid: i32,
    /// How host and guest are connected.
    pub channel: Channel,
    /// CPU time that it can have now, in 1/1024 pCPU.
    pub entitlement: u32,
    /// Of the classes in the configuration, if there is one.
    #[serde(default)]
    pub class: Option<String>,
    /// Complete searches of its memory for an agent.
    pub scans: u64,
    /// Pages looked at by those.
    pub scanned_pages: u64,
    /// What the host's scheduler has done for its vCPUs; mode `schedule` only.
    #[serde(default)]
    pub schedule: Option<ScheduleStatus>,
    /// For whom it waited; counted while metrics are scraped.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waited_for: Vec<WaitedFor>,
    /// Its vCPUs, by KVM's vcpu_id.
    pub vcpus: Vec<VcpuStatus>,
}

impl VmStatus {
    /// For people.
    pub fn name(&self) -> &str {
        &self.identity.name
    }
}

/// One vCPU.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VcpuStatus {
    /// KVM's vcpu_id.
    pub id: u32,
    /// Its thread.
    pub tid: i32,
    /// `running`, `halted`, `preempted` (runnable, waiting for a pCPU) or `unknown`.
    pub state: String,
    /// When it entered that state.
    pub since_ns: u64,
    /// The pCPU that it is on or was on last.
    pub pcpu: u32,
    /// Time on a pCPU.
    pub run_ns: u64,
    /// Time runnable but not on a pCPU.
    pub ready_ns: u64,
    /// Time halted.
    pub halted_ns: u64,
    /// Steal as KVM tells the guest: time that the kernel's accounting has its thread waiting for a pCPU, since it was
    /// made.
    pub steal_ns: u64,
    /// Times it was put on a pCPU.
    pub switches: u64,
    /// Times it was switched out while runnable.
    pub preemptions: u64,
    /// Of those, how often the guest's preempt count could be read.
    pub samples: u64,
    /// Of those, how often it was inside a critical section.
    pub preemptions_cs: u64,
    /// The preempt count as last read.
    pub preempt_count: u32,
    /// Boosts by the host's scheduler.
    pub boosts: u64,
    /// If kicked now it would run at once.
    pub instant: bool,
    /// Its page is paired.
    pub paired: bool,
    /// Utilisation that the guest registers, 0..=1024.
    pub util: u64,
    /// `uclamp_min` that `--uclamp` has set on its thread, 0..=1024.
    #[serde(default)]
    pub clamp: Option<u32>,
    /// Runnable tasks that the guest registers.
    pub runnable: u64,
    /// What the host's scheduler has done for it; mode `schedule` only.
    #[serde(default)]
    pub schedule: Option<ScheduleStatus>,
}

/// What the daemon has done since it started.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Work {
    /// Ticks (one every 100 ms).
    pub ticks: u64,
    /// Time spent in them, ns.
    pub tick_ns: u64,
    /// The longest time between two of them, ns: guests take the host for gone after a second.
    #[serde(default)]
    pub worst_tick_gap_ns: u64,
    /// Ticks that came more than 300 ms after the one before.
    #[serde(default)]
    pub late_ticks: u64,
    /// Discoveries of VMs (one a second, and after events).
    pub discoveries: u64,
    /// Time spent in them, ns.
    pub discovery_ns: u64,
    /// Time spent looking for agents and pairing, ns.
    pub pairing_ns: u64,
    /// Events of BPF that found no room in the ring buffer.
    #[serde(default)]
    pub dropped_events: u64,
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Of a host without VMs.
    pub(crate) fn empty() -> Status {
        Status {
            schema: SCHEMA,
            version: "0".into(),
            mode: "observe".into(),
            fallback: None,
            fallbacks: 0,
            metrics: None,
            unpaired: None,
            pid: 1,
            now_ns: 5,
            uptime_ns: 5,
            pcpus: vec![],
            vms: vec![],
            work: Work::default(),
            schedule: None,
            programs: vec![],
            bpf_stats: false,
            waits: vec![],
        }
    }
}
