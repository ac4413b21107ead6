//! What must hold of queues and budgets whenever no operation runs.

use super::Kernel;
use super::task::{State, TaskId};
use crate::native::TaskPtr;

/// What the host's scheduler keeps of a task's extensions, ns: `struct sim_budget` of native/host.c.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Budget {
    debt: u64,
    extended: u64,
    repaid: u64,
    event: u64,
    burst: u64,
    rate_ppm: u64,
}

impl Kernel {
    /// Whether each runnable task stands where it should, and once. Says what is wrong.
    pub fn check_queues(&self) -> Option<String> {
        let mut running = vec![0_u32; self.cpus.len()];
        for task in &self.tasks {
            let runs = self.runs(task.id);
            // One whose group has no time left under EEVDF is on no queue, and not counted.
            let limbo = self.fair.is_some() && !task.realtime && task.is_in_limbo();
            if task.state == State::Runnable && !limbo {
                running[task.cpu as usize] += 1;
            }
            if self.fair.is_some() || task.realtime {
                continue;
            }
            if let Some(what) = self.scx_misplaced(task, runs) {
                return Some(format!("{:?} {what}", task.id));
            }
        }
        if let Some(what) = self.scx_queued_twice().or_else(|| self.fair_queued_twice()) {
            return Some(what);
        }
        (0..self.cpus.len()).find_map(|cpu| {
            let counted = self.cpus[cpu].nr_running;
            (counted != running[cpu] && !self.cpus[cpu].locked)
                .then(|| format!("CPU {cpu} counts {counted} runnable tasks of {}", running[cpu]))
        })
    }

    /// Whether extensions are within their budget, and paid back. Says what is wrong.
    pub fn check_budgets(&mut self) -> Option<String> {
        if !self.scx_attached() {
            return None;
        }
        let (now, tasks) = (self.now, self.tasks.len());
        (0..tasks).find_map(|index| {
            let id = self.tasks[index].id;
            let Budget { debt, extended, repaid, event, burst, rate_ppm } = self.budget(id);
            let most = burst + event + now / 1_000_000 * rate_ppm;
            if extended > most {
                return Some(format!("{id:?} was extended by {extended} ns, of {most} at most"));
            }
            (debt > burst + event || extended.saturating_sub(repaid) > burst + event)
                .then(|| format!("{id:?} owes {debt} ns; it was extended by {extended} ns and has repaid {repaid}"))
        })
    }

    /// How long a task has stayed beyond its slices, ns, as the host's scheduler counts it; 0 under any other.
    pub fn extended(&mut self, task: TaskId) -> u64 {
        if self.scx_attached() { self.budget(task).extended } else { 0 }
    }

    fn budget(&mut self, task: TaskId) -> Budget {
        let task = self.task(task).fields.task;
        let mut budget = Budget::default();
        self.object_call(|object| {
            // SAFETY: the function has this type in native/host.c; it fills what it is given.
            unsafe {
                let read: unsafe extern "C" fn(TaskPtr, *mut Budget) = object.function("sim_budget");
                read(task, &raw mut budget);
            }
        });
        budget
    }
}
