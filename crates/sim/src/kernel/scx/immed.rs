//! `SCX_ENQ_IMMED`: a task that is put into a CPU's local queue to run at once, and is handed to the scheduler again where it
//! cannot.

use super::super::{Kernel, TaskId};
use super::enq;

/// `SCX_REENQ_MAX_REPEAT`.
const REENQ_MAX_REPEAT: u32 = 256;

/// `SCX_TASK_REENQ_*`: why a task is handed to the scheduler again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    Kfunc = 1,
    Immed = 2,
    Preempted = 3,
}

/// `SCX_TASK_REENQ_REASON_SHIFT`, `SCX_TASK_REENQ_REASON_MASK`.
const REASON_SHIFT: u32 = 12;
/// See [`REASON_SHIFT`].
const REASON_MASK: u32 = 7 << REASON_SHIFT;

impl Kernel {
    /// Hands a task that is in no queue to the scheduler again.
    pub(super) fn reenqueue(&mut self, id: TaskId, reason: Reason) {
        let flags = self.task(id).fields.flags;
        // SAFETY: the field lives as long as the object.
        unsafe { *flags |= (reason as u32) << REASON_SHIFT };
        self.do_enqueue_task(id, enq::REENQ);
        // SAFETY: as above.
        unsafe { *flags &= !REASON_MASK };
    }

    /// `rq_is_open()`: whether a task of the class that comes to the CPU runs at once.
    fn rq_is_open(&self, cpu: u32, flags: u64) -> bool {
        let c = self.cpu(cpu);
        if !c.rt_queue.is_empty() {
            return false;
        }
        c.next_idle || c.in_dispatch || flags & enq::PREEMPT != 0
    }

    /// `dsq_inc_nr()` of a local queue: the task is in it.
    pub(super) fn local_inc_nr(&mut self, cpu: u32, id: TaskId, flags: u64) {
        if flags & enq::IMMED != 0 {
            self.task_mut(id).scx.immed = true;
        }
        if self.task(id).scx.immed && (self.dsq(self.local_dsq(cpu)).tasks.len() > 1 || !self.rq_is_open(cpu, flags)) {
            self.schedule_reenq_local(cpu);
        }
    }

    fn nr_immed(&self, cpu: u32) -> usize {
        self.dsq(self.local_dsq(cpu)).tasks.iter().filter(|id| self.task(**id).scx.immed).count()
    }

    /// `scx_schedule_reenq_local()`: done as soon as the run queue is unlocked.
    fn schedule_reenq_local(&mut self, cpu: u32) {
        if !self.scx.bypass && self.online.has(cpu) && !self.scx.operation.reenq_locals.contains(&cpu) {
            self.scx.operation.reenq_locals.push(cpu);
        }
    }

    /// The end of `dispatch_one()`: while it lasted everything was taken that might run.
    pub(super) fn dispatched_immed(&mut self, cpu: u32) {
        if self.dsq(self.local_dsq(cpu)).tasks.len() > 1 && self.nr_immed(cpu) > 0 {
            self.schedule_reenq_local(cpu);
        }
    }

    /// `wakeup_preempt_scx()`: a task of a higher class has come to the CPU.
    pub(in super::super) fn wakeup_preempt_scx(&mut self, cpu: u32) {
        if self.scx_attached() && self.nr_immed(cpu) > 0 {
            self.schedule_reenq_local(cpu);
        }
    }

    /// `process_deferred_reenq_locals()`. That of a CPU between choice and switch comes after the switch.
    pub(super) fn process_reenq_locals(&mut self) {
        while let Some(cpu) = self.scx.operation.reenq_locals.pop() {
            self.wait_rq(cpu);
            if self.cpu(cpu).locked {
                self.cpu_mut(cpu).reenq_local = true;
            } else {
                self.reenq_local(cpu);
            }
        }
    }

    /// The balance callback of a switch.
    pub(in super::super) fn switched_immed(&mut self, cpu: u32) {
        if std::mem::take(&mut self.cpu_mut(cpu).reenq_local) && self.scx_attached() {
            self.reenq_local(cpu);
        }
    }

    /// `reenq_local()`, `local_task_should_reenq()`: only the first may stay, where the CPU takes it at once.
    fn reenq_local(&mut self, cpu: u32) {
        let open = self.rq_is_open(cpu, 0);
        let local = self.dsq(self.local_dsq(cpu)).tasks.iter().copied();
        let again: Vec<_> = local.skip(usize::from(open)).filter(|id| self.task(*id).scx.immed).collect();
        for id in &again {
            self.unlink_from_dsq(*id);
        }
        for id in again {
            self.reenqueue(id, Reason::Immed);
        }
    }

    /// Counts a task that is handed to the scheduler again. Whether that happens without end.
    pub(super) fn reenqueued(&mut self, id: TaskId) -> bool {
        self.task_mut(id).scx.reenq_cnt += 1;
        let count = self.task(id).scx.reenq_cnt;
        if count > REENQ_MAX_REPEAT {
            self.scx_fail(format!("{id:?} reenqueued {count} times without running"));
        }
        count > REENQ_MAX_REPEAT
    }

    /// `scx_vet_enq_flags()`.
    pub(super) fn vet_enq_flags(&mut self, dsq: u64, flags: u64) {
        if flags & enq::IMMED != 0 && dsq & super::dsq::LOCAL_ON != super::dsq::LOCAL_ON && dsq != super::dsq::LOCAL {
            self.scx_fail(format!("SCX_ENQ_IMMED on a non-local DSQ {dsq:#x}"));
        }
    }
}
