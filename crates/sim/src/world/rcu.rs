//! RCU: whoever waits for a grace period waits until each CPU that was busy has been in a quiescent state: a switch, idle, a
//! tick that came in user mode, on the host an entry into a guest (`rcu_virt_note_context_switch()`); after
//! kernel/rcu/tree.c. A vCPU that the host has taken the CPU from reports nothing until it runs again.
//!
//! A model, not a port: states are reported at once, where the kernel goes up a tree and a thread of its own looks every
//! few ms; callbacks are the wake-ups of those who wait.

use super::{HOST, MachineId, World};
use crate::kernel::TaskId;
use crate::kernel::mask::CpuMask;

/// A machine's grace periods.
#[derive(Default)]
pub(super) struct Rcu {
    /// CPUs that the one under way waits for; none: there is none.
    holdouts: CpuMask,
    waiters: Vec<TaskId>,
    /// Those who came after it had begun.
    next: Vec<TaskId>,
    /// Grace periods that are over.
    pub(super) over: u64,
}

impl Rcu {
    /// Whether a task waits for a grace period.
    pub(super) fn waits(&self, task: TaskId) -> bool {
        self.waiters.contains(&task) || self.next.contains(&task)
    }
}

impl World {
    /// `synchronize_rcu()`: the task, which is about to sleep, waits for a whole grace period.
    pub(super) fn synchronize(&mut self, m: MachineId, task: TaskId) {
        let rcu = &mut self.machines[m.0 as usize].rcu;
        if !rcu.waiters.is_empty() {
            return rcu.next.push(task);
        }
        rcu.waiters.push(task);
        self.begin_grace_period(m);
    }

    fn begin_grace_period(&mut self, m: MachineId) {
        let kernel = &self.machines[m.0 as usize].kernel;
        let busy = |cpu: &u32| kernel.cpu(*cpu).curr.is_some_and(|task| !self.is_in_guest(m, task));
        let holdouts = kernel.online.iter().filter(busy).collect();
        self.machines[m.0 as usize].rcu.holdouts = holdouts;
    }

    fn is_in_guest(&self, m: MachineId, task: TaskId) -> bool {
        m == HOST && self.state(m, task).mode == super::machine::Mode::InGuest
    }

    /// A CPU is in a quiescent state, or has gone.
    pub(super) fn quiescent(&mut self, m: MachineId, cpu: u32) {
        let rcu = &mut self.machines[m.0 as usize].rcu;
        if !rcu.holdouts.take(cpu) || !rcu.holdouts.is_empty() {
            return;
        }
        // Where all CPUs are idle as the next one begins, it is over as well.
        while self.machines[m.0 as usize].rcu.holdouts.is_empty() {
            let rcu = &mut self.machines[m.0 as usize].rcu;
            let waiters = std::mem::take(&mut rcu.waiters);
            if waiters.is_empty() {
                break;
            }
            rcu.over += 1;
            rcu.waiters = std::mem::take(&mut rcu.next);
            if !rcu.waiters.is_empty() {
                self.begin_grace_period(m);
            }
            for task in waiters {
                self.wake(m, cpu, task, false);
            }
        }
    }

    /// Grace periods that a machine has seen the end of.
    pub fn grace_periods(&self, m: MachineId) -> u64 {
        self.machines[m.0 as usize].rcu.over
    }
}
