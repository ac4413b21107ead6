//! What a world tells of itself: records of a window, names, the longest waits.

use super::machine::Mode;
use super::{HOST, MachineId, World};
use crate::kernel::{Clock, TaskId};
use crate::trace::{Record, Recorder, Spin, What};

impl World {
    /// Keeps records of what happens from a time until another, ns. What was recorded before is gone.
    pub fn record(&mut self, from: u64, until: u64) {
        self.recorder = Some(Recorder::new(from, until));
    }

    /// What was recorded, in the order of time.
    pub fn records(&self) -> &[Record] {
        self.recorder.as_ref().map_or(&[], |recorder| &recorder.records)
    }

    /// Whether somebody listens now. The first time, the state of all CPUs is told.
    pub(super) fn recording(&mut self) -> bool {
        let now = self.now;
        let Some(recorder) = self.recorder.as_mut().filter(|recorder| recorder.open(now)) else { return false };
        if !std::mem::replace(&mut recorder.begun, true) {
            self.record_state();
        }
        true
    }

    /// Records what has happened on a CPU.
    pub(super) fn tell(&mut self, machine: MachineId, cpu: u32, what: What) {
        if self.recording()
            && let Some(recorder) = &mut self.recorder
        {
            recorder.records.push(Record { at: self.now, machine, cpu, what });
        }
    }

    fn record_state(&mut self) {
        for m in (0..self.machines.len()).map(|m| MachineId(m as u16)) {
            for cpu in 0..self.machines[m.0 as usize].kernel.topo.cpus() {
                if let Some(task) = self.curr(m, cpu) {
                    let next = Some((task, self.clock(m, task)));
                    self.tell(m, cpu, What::Switch { prev: None, next, waits: false });
                }
            }
            for task in (0..self.machines[m.0 as usize].tasks.len()).map(|task| TaskId(task as u32)) {
                let kernel = &self.machines[m.0 as usize].kernel;
                let (cpu, waits) = (kernel.task(task).cpu, kernel.task(task).waits_since.is_some());
                if waits {
                    let clock = self.clock(m, task);
                    self.tell(m, cpu, What::Queued { task, clock, by: None });
                }
                if let Some(on) = spins(self.state(m, task).mode) {
                    self.tell(m, cpu, What::Spins { task, on });
                }
            }
        }
    }

    pub(super) fn clock(&mut self, m: MachineId, task: TaskId) -> Clock {
        self.machines[m.0 as usize].kernel.clock_of(task)
    }

    /// Gives a task a name for tables and traces.
    pub fn set_name(&mut self, m: MachineId, task: TaskId, name: &str) {
        self.state_mut(m, task).name = Some(name.into());
    }

    /// A task's name: its own, that of its vCPU, or its number.
    pub fn name(&self, m: MachineId, task: TaskId) -> String {
        match (m, self.vcpu_of(task), &self.state(m, task).name) {
            (HOST, Some((guest, vcpu)), _) => format!("guest {} vCPU {vcpu}", guest.0 - 1),
            (.., Some(name)) => name.to_string(),
            _ => format!("task {}", task.0),
        }
    }

    /// The guest's CPU that a thread of the host runs; `None`: it is no vCPU's.
    pub fn vcpu_of(&self, task: TaskId) -> Option<(MachineId, u32)> {
        self.machines[0].tasks.get(task.0 as usize)?.vcpu.map(|(vm, vcpu)| (MachineId(vm + 1), vcpu))
    }

    /// The thread of the host that runs a guest's CPU.
    pub fn thread_of(&self, m: MachineId, cpu: u32) -> TaskId {
        self.vcpu(m, cpu).task
    }

    /// The CPU that a task runs on, waits for, or was on last.
    pub fn cpu_of(&self, m: MachineId, task: TaskId) -> u32 {
        self.machines[m.0 as usize].kernel.task(task).cpu
    }

    /// The longest time that a task wanted to run and did not, from when until when, ns: from its wake-up, or from when
    /// it was taken off its CPU, whichever was longer. `None`: it never waited.
    pub fn longest_wait(&self, m: MachineId, task: TaskId) -> Option<(u64, u64)> {
        let kernel = self.machines[m.0 as usize].kernel.task(task);
        let state = self.state(m, task);
        let queue = (kernel.max_wait > 0).then(|| (kernel.max_wait_end - kernel.max_wait, kernel.max_wait_end));
        let still = kernel.waits_since.or(state.woken_at).map(|since| (since, self.now));
        [state.latest, queue, still].into_iter().flatten().max_by_key(|(from, until)| until - from)
    }
}

/// What a task in this mode spins for.
pub(super) fn spins(mode: Mode) -> Option<Spin> {
    match mode {
        Mode::SpinsForLock(lock) => Some(Spin::Lock(lock)),
        Mode::SpinsForAnswers(_) => Some(Spin::Answers),
        Mode::SpinsForOwner(mutex) | Mode::SpinsForMutex(mutex) => Some(Spin::Mutex(mutex)),
        Mode::SpinsAtBarrier(barrier) => Some(Spin::Barrier(barrier)),
        _ => None,
    }
}
