//! The watchdog: a runnable task that gets no CPU ends the scheduler.

use super::super::{Kernel, TaskId};

/// A task that waited longer than the scheduler's timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stall {
    /// The task.
    pub task: TaskId,
    /// Runnable without a CPU for so long, ns.
    pub waited: u64,
}

impl Kernel {
    /// `check_rq_for_timeouts()` for all CPUs.
    pub fn check_timeouts(&self) -> Option<Stall> {
        // SCX_WATCHDOG_MAX_TIMEOUT, where the scheduler names none.
        let timeout = match self.scx.ops?.timeout_ms {
            0 => 30_000,
            ms => ms,
        } * 1_000_000;
        self.tasks.iter().find_map(|task| {
            let waited = self.now.saturating_sub(task.scx.runnable_at?);
            (waited > timeout && !self.runs(task.id)).then_some(Stall { task: task.id, waited })
        })
    }
}
