//! The tasks that wait for a CPU, the one that waits longest first.

use std::collections::VecDeque;

use super::looks::looked;
use super::{Kernel, TaskId};

/// Tasks in the order in which they began to wait. Those that wait no more stay in it until somebody looks, or until
/// they are more than the tasks that there are.
#[derive(Debug, Default)]
pub(super) struct Waiting(VecDeque<(u64, TaskId)>);

/// As many entries beside those of tasks before the list is made shorter.
const SPARE: usize = 64;

impl Waiting {
    /// A task begins to wait now, or goes on to.
    pub(super) fn begin(&mut self, since: u64, id: TaskId) {
        self.0.push_back((since, id));
    }
}

impl Kernel {
    /// Forgets who waits no more, where that is many. Not while a task is taken off for a change: its wait goes on.
    pub(super) fn waiting_tidy(&mut self) {
        if self.waiting.0.len() > 2 * self.tasks.len() + SPARE {
            looked(self.waiting.0.len());
            let tasks = &self.tasks;
            self.waiting.0.retain(|(since, id)| tasks[id.0 as usize].waits_since == Some(*since));
        }
    }

    /// The task that waits longest of those that may have a CPU and are held back by no limit, and since when.
    pub fn longest_waiting(&mut self, cpu: u32) -> Option<(u64, TaskId)> {
        while let Some((since, id)) = self.waiting.0.front().copied()
            && self.task(id).waits_since != Some(since)
        {
            self.waiting.0.pop_front();
        }
        self.waiting
            .0
            .iter()
            .inspect(|_| looked(1))
            .find(|(since, id)| {
                let task = self.task(*id);
                task.waits_since == Some(*since) && task.allowed.has(cpu) && !self.is_limited(*id)
            })
            .copied()
    }
}
