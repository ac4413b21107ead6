//! What the main loop has to do by itself, and when each of it is due.

use std::time::Instant;

/// One of the main loop's tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Task {
    /// Looks after the scheduler and after agents that are silent.
    Watch,
    /// Shows the service manager that the loop goes round.
    Alive,
    /// Looks which VMs there are.
    Discovery,
    /// Tells each VM what it can have of the pCPUs.
    Shares,
    /// What the mode does between two heartbeats.
    Mode,
}

/// When each task is due; `None` = never again.
#[derive(Debug)]
pub(super) struct Timers {
    at: [Option<Instant>; 5],
}

impl Timers {
    /// All tasks are due.
    pub(super) fn new(now: Instant) -> Self {
        Self { at: [Some(now); 5] }
    }

    pub(super) fn is_due(&self, task: Task, now: Instant) -> bool {
        self.at[task as usize].is_some_and(|at| now >= at)
    }

    /// The next time of a task.
    pub(super) fn set(&mut self, task: Task, at: impl Into<Option<Instant>>) {
        self.at[task as usize] = at.into();
    }

    /// When the next task is due; `None` where none ever is.
    pub(super) fn next(&self) -> Option<Instant> {
        self.at.iter().flatten().min().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_earliest_counts_and_never_is_never() {
        let start = Instant::now();
        let after = |ms| start + Duration::from_millis(ms);
        let mut timers = Timers::new(start);
        assert!(
            [Task::Watch, Task::Alive, Task::Discovery, Task::Shares, Task::Mode]
                .map(|task| timers.is_due(task, start))[..]
                .iter()
                .all(|due| *due)
        );
        timers.set(Task::Watch, after(100));
        timers.set(Task::Alive, after(1000));
        timers.set(Task::Discovery, after(1000));
        timers.set(Task::Shares, after(50));
        timers.set(Task::Mode, None);
        assert_eq!(timers.next(), Some(after(50)));
        assert!(timers.is_due(Task::Shares, after(50)) && !timers.is_due(Task::Watch, after(99)));
        assert!(!timers.is_due(Task::Mode, after(10_000)));
        // An event brings a task forward.
        timers.set(Task::Discovery, start);
        assert_eq!(timers.next(), Some(start));
    }
}
