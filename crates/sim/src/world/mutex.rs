//! Locks of user mode: who finds one taken spins a while, then sleeps on its futex; after `std::sync::Mutex` of Rust
//! (library/std/src/sys/sync/mutex/futex.rs). A holder that is taken off its CPU lets the others run into it.

use std::collections::VecDeque;

use super::{MachineId, World};
use crate::kernel::TaskId;
use crate::program::Step;
use crate::trace::What;

/// A lock.
#[derive(Default)]
pub(super) struct Mutex {
    owner: Option<TaskId>,
    /// `CONTENDED`: somebody may sleep for it, so that nobody spins and who gives it back wakes one.
    contended: bool,
    spinners: Vec<TaskId>,
    sleepers: VecDeque<TaskId>,
}

/// What a task has done to take a lock.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tries {
    /// Which: with one for each CPU it stays the one of the CPU where the task began.
    mutex: Option<u32>,
    /// Its time to spin is over.
    pub(super) spun: bool,
    /// It has slept: it takes the lock as contended, since others may sleep still.
    slept: bool,
}

/// The outcome of a try.
pub(super) enum Tried {
    Taken,
    Spins(u32),
    Sleeps,
    /// Calls the scheduler, and tries again.
    Yields,
}

impl World {
    /// Tries to take the lock of a step.
    pub(super) fn try_mutex(&mut self, m: MachineId, cpu: u32, task: TaskId, step: Step) -> Tried {
        let tries = &mut self.state_mut(m, task).tries;
        let number = *tries.mutex.get_or_insert(match step {
            Step::CpuMutex(first) => first + cpu,
            Step::Mutex(number) => number,
            _ => unreachable!("only steps that take a lock"),
        });
        let (spun, slept) = (tries.spun, tries.slept);
        let mutex = self.machines[m.0 as usize].mutexes.entry(number).or_default();
        mutex.spinners.retain(|spinner| *spinner != task);
        if mutex.owner.is_none() {
            mutex.contended |= slept;
            self.take_mutex(m, cpu, task, number);
            return Tried::Taken;
        }
        if !mutex.contended && !spun {
            mutex.spinners.push(task);
            return Tried::Spins(number);
        }
        mutex.contended = true;
        mutex.sleepers.push_back(task);
        let tries = &mut self.state_mut(m, task).tries;
        (tries.spun, tries.slept) = (false, true);
        self.burden(m, cpu, self.costs.syscall);
        Tried::Sleeps
    }

    fn take_mutex(&mut self, m: MachineId, cpu: u32, task: TaskId, number: u32) {
        self.machines[m.0 as usize].mutexes.entry(number).or_default().owner = Some(task);
        let state = self.state_mut(m, task);
        state.tries = Tries::default();
        state.mutexes.push(number);
        self.tell(m, cpu, What::Takes { task, lock: number });
    }

    /// Gives back the lock that the task took last. Whoever spins for it on a CPU has it at once. Returns whether
    /// somebody was woken.
    pub(super) fn release_mutex(&mut self, m: MachineId, cpu: u32, task: TaskId) -> bool {
        let Some(number) = self.state_mut(m, task).mutexes.pop() else { return false };
        self.tell(m, cpu, What::Gives { lock: number });
        let machine = &mut self.machines[m.0 as usize];
        let mutex = machine.mutexes.entry(number).or_default();
        mutex.owner = None;
        let wakes = std::mem::take(&mut mutex.contended);
        let runs = |task: &TaskId| machine.kernel.cpu(machine.kernel.task(*task).cpu).curr == Some(*task);
        let next = mutex.spinners.iter().position(runs).map(|at| mutex.spinners.remove(at));
        let sleeper = if wakes { mutex.sleepers.pop_front() } else { None };
        if let Some(next) = next {
            let slept = self.state(m, next).tries.slept;
            self.take_mutex(m, cpu, next, number);
            self.machines[m.0 as usize].mutexes.entry(number).or_default().contended |= slept;
            self.spin_over(m, next);
        }
        if wakes {
            self.burden(m, cpu, self.costs.syscall);
        }
        let Some(sleeper) = sleeper else { return false };
        self.wake(m, cpu, sleeper, false);
        true
    }
}
