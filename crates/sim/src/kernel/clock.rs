//! How far a task is in its queue's order, for whoever reads a trace.

use super::{Kernel, TaskId};
use crate::native::TaskPtr;

/// A task's clock at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Clock {
    /// Ahead of its queue's clock, ns of virtual time: above 0 it has had more than its share.
    pub ahead: i64,
    /// What is left of its slice (EEVDF: until its virtual deadline), ns.
    pub left: i64,
}

impl Kernel {
    /// The clock of a task by that of its CPU. What the scheduler's code takes to tell is not charged.
    pub fn clock_of(&mut self, id: TaskId) -> Clock {
        let cpu = self.task(id).cpu;
        if self.fair.is_some() {
            return self.fair_clock(cpu, id);
        }
        let (task, slice) = (self.pointer(id), self.slice(id));
        let ahead = self.object_call(|object| {
            // SAFETY: the function has this type in native/host.c and native/guest.c; the pointer is the object's.
            unsafe {
                let ahead: unsafe extern "C" fn(TaskPtr, u32) -> i64 = object.function("sim_ahead");
                ahead(task, cpu)
            }
        });
        Clock { ahead, left: slice.min(i64::MAX as u64) as i64 }
    }
}
