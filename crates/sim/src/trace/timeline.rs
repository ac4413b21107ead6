//! Intervals out of records: who ran where, who waited, who spun.

use std::collections::HashMap;

use super::{Record, Spin, What};
use crate::kernel::{Clock, TaskId};
use crate::world::MachineId;

/// A task on a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Whose.
    pub machine: MachineId,
    /// Which.
    pub cpu: u32,
    /// Who.
    pub task: TaskId,
    /// From when, ns.
    pub from: u64,
    /// Until when, ns.
    pub until: u64,
    /// Its clock at the beginning ...
    pub clock: Clock,
    /// ... and at the end; `None`: it runs on.
    pub end: Option<Clock>,
    /// It was taken off the CPU, or gave it up, while runnable.
    pub waits: bool,
}

/// A runnable task without a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// Whose.
    pub machine: MachineId,
    /// The CPU whose queue it came to first.
    pub cpu: u32,
    /// Who.
    pub task: TaskId,
    /// From when, ns.
    pub from: u64,
    /// Until when, ns.
    pub until: u64,
}

/// A task that spins; its CPU may be taken from it meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spinning {
    /// Whose.
    pub machine: MachineId,
    /// Who.
    pub task: TaskId,
    /// For what.
    pub on: Spin,
    /// From when, ns.
    pub from: u64,
    /// Until when, ns.
    pub until: u64,
}

/// All intervals of a window, each list by when they ended.
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    /// Who ran.
    pub runs: Vec<Run>,
    /// Who waited.
    pub waits: Vec<Wait>,
    /// Who spun.
    pub spins: Vec<Spinning>,
}

impl Timeline {
    /// Makes intervals of records in the order of time, the last of which end at `end`, ns.
    pub fn of(records: &[Record], end: u64) -> Self {
        let mut timeline = Self::default();
        let mut running: HashMap<(MachineId, u32), Run> = HashMap::new();
        let mut waiting: HashMap<(MachineId, TaskId), Wait> = HashMap::new();
        let mut spinning: HashMap<(MachineId, TaskId), Spinning> = HashMap::new();
        for Record { at, machine, cpu, what } in records.iter().copied() {
            match what {
                What::Switch { prev, next, waits } => {
                    if let Some(run) = running.remove(&(machine, cpu)) {
                        timeline.runs.push(Run { until: at, end: prev.map(|(_, clock)| clock), waits, ..run });
                    }
                    if let Some((task, _)) = prev.filter(|_| waits) {
                        waiting.insert((machine, task), Wait { machine, cpu, task, from: at, until: at });
                    }
                    if let Some((task, clock)) = next {
                        if let Some(wait) = waiting.remove(&(machine, task)) {
                            timeline.waits.push(Wait { until: at, ..wait });
                        }
                        let run = Run { machine, cpu, task, from: at, until: at, clock, end: None, waits: false };
                        running.insert((machine, cpu), run);
                    }
                }
                What::Queued { task, .. } => {
                    waiting.insert((machine, task), Wait { machine, cpu, task, from: at, until: at });
                }
                What::Spins { task, on } => {
                    spinning.insert((machine, task), Spinning { machine, task, on, from: at, until: at });
                }
                What::SpinOver(task) => {
                    if let Some(spin) = spinning.remove(&(machine, task)) {
                        timeline.spins.push(Spinning { until: at, ..spin });
                    }
                }
                _ => {}
            }
        }
        timeline.runs.extend(running.into_values().map(|run| Run { until: end, ..run }));
        timeline.waits.extend(waiting.into_values().map(|wait| Wait { until: end, ..wait }));
        timeline.spins.extend(spinning.into_values().map(|spin| Spinning { until: end, ..spin }));
        // Maps have no order; equal ends are told apart by where they were.
        timeline.runs.sort_by_key(|run| (run.until, run.machine, run.cpu));
        timeline.waits.sort_by_key(|wait| (wait.until, wait.machine, wait.task));
        timeline.spins.sort_by_key(|spin| (spin.until, spin.machine, spin.task));
        timeline
    }

    /// What a CPU ran within some time, cut to it.
    pub fn runs_on(&self, machine: MachineId, cpu: u32, from: u64, until: u64) -> impl Iterator<Item = Run> + '_ {
        self.runs
            .iter()
            .filter(move |run| run.machine == machine && run.cpu == cpu && run.from < until && run.until > from)
            .map(move |run| Run { from: run.from.max(from), until: run.until.min(until), ..*run })
    }

    /// How long a guest's CPU spun within some time in which it moved, ns.
    pub fn spun(&self, machine: MachineId, cpu: u32, from: u64, until: u64) -> u64 {
        self.runs_on(machine, cpu, from, until)
            .map(|run| -> u64 {
                self.spins
                    .iter()
                    .filter(|spin| spin.machine == machine && spin.task == run.task)
                    .map(|spin| spin.until.min(run.until).saturating_sub(spin.from.max(run.from)))
                    .sum()
            })
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switches_become_runs_and_waits() {
        let (m, clock) = (MachineId(0), Clock::default());
        let (a, b) = (TaskId(1), TaskId(2));
        let record = |at, what| Record { at, machine: m, cpu: 3, what };
        let switch = |prev: Option<TaskId>, next: Option<TaskId>, waits| What::Switch {
            prev: prev.map(|task| (task, clock)),
            next: next.map(|task| (task, clock)),
            waits,
        };
        let records = [
            record(10, switch(None, Some(a), false)),
            record(15, What::Queued { task: b, clock, by: Some(a) }),
            record(16, What::Spins { task: a, on: Spin::Lock(0) }),
            record(20, switch(Some(a), Some(b), true)),
            record(26, switch(Some(b), Some(a), false)),
            record(28, What::SpinOver(a)),
        ];
        let timeline = Timeline::of(&records, 30);
        let runs: Vec<_> = timeline.runs.iter().map(|run| (run.task, run.from, run.until, run.waits)).collect();
        assert_eq!(runs, [(a, 10, 20, true), (b, 20, 26, false), (a, 26, 30, false)]);
        let waits: Vec<_> = timeline.waits.iter().map(|wait| (wait.task, wait.from, wait.until)).collect();
        assert_eq!(waits, [(b, 15, 20), (a, 20, 26)]);
        assert_eq!(timeline.spun(m, 3, 0, 30), 4 + 2, "not while it is off its CPU");
    }
}
