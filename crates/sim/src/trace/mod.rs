//! What happened in a window of time: who ran, waited, spun, on the host and inside the guests.
//!
//! The world keeps [`Record`]s while it is told to (`World::record`); a [`Timeline`] makes intervals of them, [`text`]
//! prints them, [`perfetto`] writes them for <https://ui.perfetto.dev>, [`picture`] draws them, [`wait`] says why a task
//! waited. A run is repeated by its seed, so that what is found at its end can be recorded in a second run.

pub mod perfetto;
pub mod picture;
pub mod text;
pub mod timeline;
pub mod wait;

pub use timeline::Timeline;

use crate::kernel::{Clock, TaskId};
use crate::world::{Irq, MachineId};

/// What a task spins for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spin {
    /// A lock, by number.
    Lock(u32),
    /// A lock of user mode, by number.
    Mutex(u32),
    /// The answers to its broadcast.
    Answers,
    /// Others at a barrier, by number.
    Barrier(u32),
}

/// What happened on a CPU.
#[expect(missing_docs, reason = "a variant's own line says what its fields are")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A switch; `None` is the idle task. `waits`: the one that ran is still runnable.
    Switch { prev: Option<(TaskId, Clock)>, next: Option<(TaskId, Clock)>, waits: bool },
    /// A task that woke is in the CPU's queue; `by`: who ran on the waker's CPU.
    Queued { task: TaskId, clock: Clock, by: Option<TaskId> },
    /// A task's timer is due.
    Due(TaskId),
    /// A task runs for the first time since it was woken, so late.
    Begins { task: TaskId, late: u64 },
    /// An interrupt is handled.
    Interrupt(Irq),
    /// An interrupt waits until the vCPU is in its guest.
    Pends(Irq),
    /// A task begins to spin.
    Spins { task: TaskId, on: Spin },
    /// What it spun for has come.
    SpinOver(TaskId),
    /// A task takes a lock.
    Takes { task: TaskId, lock: u32 },
    /// A lock is given back.
    Gives { lock: u32 },
    /// The vCPU enters its guest.
    Enters,
    /// The vCPU leaves its guest.
    Leaves,
    /// The vCPU halts.
    Halts,
    /// The vCPU was trapped while it spun, and KVM asks for a yield to another one's thread. `None`: no point.
    Yields { to: TaskId, followed: Option<bool> },
}

/// One thing that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// When, ns.
    pub at: u64,
    /// Where: the machine ...
    pub machine: MachineId,
    /// ... and its CPU.
    pub cpu: u32,
    /// What.
    pub what: What,
}

/// Keeps records of a window.
#[derive(Debug)]
pub(crate) struct Recorder {
    from: u64,
    until: u64,
    /// The state at its beginning is recorded.
    pub begun: bool,
    pub records: Vec<Record>,
}

impl Recorder {
    pub(crate) fn new(from: u64, until: u64) -> Self {
        Self { from, until, begun: false, records: Vec::new() }
    }

    /// Whether the window is open.
    pub(crate) fn open(&self, now: u64) -> bool {
        now >= self.from && now <= self.until
    }
}
