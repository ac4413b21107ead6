//! What was seen, in lines that name cause, sender and remedy: what view, page and JSON show.

use entrain_system::CpuSet;
use serde::Serialize;

use super::interface::Kind;
use super::over::Found;
use super::remedy::Advice;

/// One cause on one CPU.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) cpu: u32,
    pub(crate) kind: Kind,
    /// What interrupted: function, thread, device.
    pub(crate) cause: String,
    /// The task that caused it; empty when it is not known, and when it was an interrupt (`via`): that can come upon
    /// any task.
    pub(crate) sender: String,
    /// Its process, the last one of that name; 0 when it is not known. A task without a sender: its own thread.
    pub(crate) pid: u32,
    /// Its cgroup's path.
    pub(crate) cgroup: String,
    /// The system call that it was in.
    pub(crate) syscall: Option<String>,
    /// The interrupt that caused it.
    pub(crate) via: Option<&'static str>,
    /// The sender's kernel stack, innermost function first; of several the one that took most time.
    pub(crate) stack: Vec<String>,
    pub(crate) count: u64,
    /// Time taken from the CPU, ns.
    pub(crate) total_ns: u64,
    pub(crate) max_ns: u64,
    /// What helps, or why nothing is to be done.
    #[serde(flatten)]
    pub(crate) advice: Advice,
}

/// What one CPU lost.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Cpu {
    pub(crate) cpu: u32,
    pub(crate) count: u64,
    pub(crate) total_ns: u64,
    /// Of the time watched, in %.
    pub(crate) share: f64,
}

/// Everything at one moment; the JSON.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    /// Raised when a field changes its meaning.
    pub(crate) schema: u32,
    pub(crate) cpus: CpuSet,
    pub(crate) seconds: f64,
    pub(crate) kernel: String,
    /// Causes that need tracepoints which this kernel does not have.
    pub(crate) skipped: Vec<String>,
    /// Causes that found no place, and interruptions missing in the timeline.
    pub(crate) lost_causes: u64,
    pub(crate) lost_events: u64,
    pub(crate) per_cpu: Vec<Cpu>,
    /// Most time first.
    pub(crate) rows: Vec<Row>,
    /// With `--over`: what took too long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) over: Option<Found>,
}
