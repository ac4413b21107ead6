//! Dispatch queues: FIFO or ordered by virtual time.

use std::collections::VecDeque;

use super::super::{Kernel, TaskId};
use super::enqueue::OpsState;
use super::{SLICE_INF, enq};

/// `SCX_DSQ_GLOBAL`.
pub(super) const GLOBAL: u64 = 1 << 63 | 1;
/// `SCX_DSQ_LOCAL`.
pub(super) const LOCAL: u64 = 1 << 63 | 2;
/// `SCX_DSQ_LOCAL_ON`.
pub(super) const LOCAL_ON: u64 = 1 << 63 | 1 << 62;
/// `SCX_DSQ_FLAG_BUILTIN`.
pub(super) const BUILTIN: u64 = 1 << 63;

/// Where a queue stands in the table: first the CPUs' local ones, then the global one, then those of the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DsqIndex(pub u32);

/// One queue.
pub(super) struct Dsq {
    pub id: u64,
    pub tasks: VecDeque<TaskId>,
    /// Ordered by virtual time while it holds a task.
    by_vtime: bool,
    /// Raised by each insertion: what an iterator began after, it does not see.
    pub seq: u32,
}

impl Dsq {
    pub(super) fn new(id: u64) -> Self {
        Self { id, tasks: VecDeque::new(), by_vtime: false, seq: 0 }
    }
}

/// `direct_dispatch_task`: for whom a verdict may be given in ops.select_cpu() or ops.enqueue().
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum DirectSlot {
    /// Neither of them runs.
    #[default]
    None,
    /// For this task.
    For(TaskId),
    /// A verdict was given already.
    Spent,
}

/// What an insertion carries.
#[derive(Clone, Copy, Debug)]
pub(super) struct Insertion {
    /// 0: as it is.
    pub slice: u64,
    pub vtime: Option<u64>,
    pub flags: u64,
    /// The slice is the verdict's: `SCX_ENQ_APPLY_SLICE`.
    pub apply: bool,
}

impl Insertion {
    pub(super) fn plain(flags: u64) -> Self {
        Self { slice: 0, vtime: None, flags, apply: false }
    }
}

impl Kernel {
    /// The local queue of a CPU.
    pub(super) fn local_dsq(&self, cpu: u32) -> DsqIndex {
        DsqIndex(cpu)
    }

    pub(super) fn global_dsq(&self) -> DsqIndex {
        DsqIndex(self.topo.cpus())
    }

    pub(super) fn is_local(&self, dsq: DsqIndex) -> bool {
        dsq.0 < self.topo.cpus()
    }

    pub(super) fn dsq(&self, dsq: DsqIndex) -> &Dsq {
        &self.scx.dsqs[dsq.0 as usize]
    }

    pub(super) fn dsq_mut(&mut self, dsq: DsqIndex) -> &mut Dsq {
        &mut self.scx.dsqs[dsq.0 as usize]
    }

    pub(super) fn find_user_dsq(&self, id: u64) -> Option<DsqIndex> {
        self.scx.by_id.get(&id).copied()
    }

    /// `find_dsq_for_dispatch()`: `SCX_DSQ_LOCAL` is that of `cpu`.
    pub(super) fn find_dsq_for_dispatch(&mut self, cpu: u32, id: u64) -> DsqIndex {
        if id == LOCAL {
            return self.local_dsq(cpu);
        }
        if id & LOCAL_ON == LOCAL_ON {
            let on = (id & 0xffff_ffff) as u32;
            if on >= self.topo.cpus() {
                self.scx_fail(format!("invalid CPU {on} in SCX_DSQ_LOCAL_ON dispatch verdict"));
                return self.global_dsq();
            }
            return self.local_dsq(on);
        }
        if id == GLOBAL {
            return self.global_dsq();
        }
        self.find_user_dsq(id).unwrap_or_else(|| {
            self.scx_fail(format!("non-existent DSQ {id:#x}"));
            self.global_dsq()
        })
    }

    /// `scx_dispatch_enqueue()`.
    pub(super) fn dispatch_enqueue(&mut self, dsq: DsqIndex, id: TaskId, with: Insertion) {
        debug_assert!(self.task(id).scx.dsq.is_none(), "{id:?} is in a queue already");
        let (queue, builtin) = (self.dsq(dsq), self.dsq(dsq).id & BUILTIN != 0);
        let mut by_vtime = with.vtime.is_some();
        if by_vtime && builtin {
            self.scx_fail("cannot use vtime ordering for built-in DSQs".into());
            by_vtime = false;
        } else if !queue.tasks.is_empty() && queue.by_vtime != by_vtime {
            let had = if by_vtime { "FIFO" } else { "PRIQ" };
            self.scx_fail(format!("DSQ ID {:#x} already had {had}-enqueued tasks", self.dsq(dsq).id));
        }
        if with.apply {
            self.apply_slice_vtime(id, with.slice, with.vtime.filter(|_| by_vtime));
        }
        let at = if by_vtime {
            // Equals stand in the order of their insertion, as rb_add() puts them.
            let vtime = self.vtime(id);
            let queue = &self.dsq(dsq).tasks;
            queue.partition_point(|other| (self.vtime(*other).wrapping_sub(vtime) as i64) <= 0)
        } else if with.flags & (enq::HEAD | enq::PREEMPT) != 0 {
            0
        } else {
            self.dsq(dsq).tasks.len()
        };
        let queue = self.dsq_mut(dsq);
        queue.by_vtime = by_vtime;
        queue.tasks.insert(at, id);
        queue.seq += 1;
        let (seq, local_at) = (queue.seq, self.is_local(dsq).then_some(self.now));
        let task = self.task_mut(id);
        task.scx.local_at = local_at;
        task.scx.dsq = Some(dsq);
        task.scx.dsq_seq = seq;
        task.scx.state = OpsState::None;
        if self.is_local(dsq) {
            self.local_inc_nr(dsq.0, id, with.flags);
            self.rq_owned_post_enq(dsq.0, id, with.flags);
        } else if dsq == self.global_dsq() {
            self.leave_custody(id, 0);
        } else {
            self.task_mut(id).scx.in_custody = true;
        }
    }

    /// `apply_slice_vtime()`.
    pub(super) fn apply_slice_vtime(&mut self, id: TaskId, slice: u64, vtime: Option<u64>) {
        if slice != 0 {
            self.set_slice(id, slice);
            self.task_mut(id).scx.slice_oob = None;
        } else if self.slice(id) == 0 {
            self.set_slice(id, 1);
        }
        if let Some(vtime) = vtime {
            // SAFETY: the field lives as long as the object.
            unsafe { *self.task(id).fields.vtime = vtime }
        }
    }

    /// `task_leave_custody()` and the call of ops.dequeue().
    pub(super) fn leave_custody(&mut self, id: TaskId, flags: u64) {
        if std::mem::take(&mut self.task_mut(id).scx.in_custody)
            && let Some(dequeue) = self.scx.ops.and_then(|ops| ops.dequeue)
        {
            // SAFETY: the pointer is the object's.
            self.scx_call_task(id, |_, task| unsafe { dequeue(task, flags) });
        }
    }

    /// `rq_owned_post_enq()`: a task has come to a CPU's local queue.
    pub(super) fn rq_owned_post_enq(&mut self, cpu: u32, id: TaskId, flags: u64) {
        self.leave_custody(id, 0);
        if self.cpu(cpu).next_idle {
            self.cpu_mut(cpu).next_idle = false;
            self.resched(cpu);
        }
        if self.cpu(cpu).in_dispatch {
            return;
        }
        if flags & enq::PREEMPT != 0
            && let Some(curr) = self.curr_below_rt(cpu)
            && curr != id
        {
            self.set_task_slice(curr, 0);
            self.resched(cpu);
        }
    }

    /// Where a task stands that it should not, in words.
    pub(in super::super) fn scx_misplaced(&self, task: &super::super::Task, runs: bool) -> Option<&'static str> {
        let holds = task.scx.dsq.is_some_and(|dsq| self.dsq(dsq).tasks.contains(&task.id));
        let waits = task.state == super::super::State::Runnable && !runs;
        match (waits, task.scx.dsq) {
            (_, Some(_)) if !holds => Some("is in a queue that does not know it"),
            (false, Some(_)) => Some("is in a queue and does not wait"),
            (true, None) if task.scx.state != OpsState::Queued && task.scx.direct.is_none() => {
                Some("waits in no queue")
            }
            _ => None,
        }
    }

    /// Who stands in two queues, or twice in one, in words.
    pub(in super::super) fn scx_queued_twice(&self) -> Option<String> {
        let mut seen = vec![false; self.tasks.len()];
        let mut all = self.scx.dsqs.iter().flat_map(|dsq| &dsq.tasks);
        let twice = all.find(|id| std::mem::replace(&mut seen[id.0 as usize], true))?;
        Some(format!("{twice:?} is in two queues"))
    }

    /// `scx_set_task_slice()`.
    pub(super) fn set_task_slice(&mut self, id: TaskId, slice: u64) {
        self.set_slice(id, slice);
        self.task_mut(id).scx.slice_oob = None;
    }

    /// `apply_task_slice_oob()`.
    pub(super) fn apply_task_slice_oob(&mut self, id: TaskId) {
        if let Some(slice) = self.task_mut(id).scx.slice_oob.take() {
            self.set_slice(id, slice);
        }
    }

    /// `update_curr_scx()`.
    pub(in super::super) fn update_curr_scx(&mut self, cpu: u32) {
        let ran = self.update_curr_common(cpu);
        let Some(curr) = self.curr_below_rt(cpu) else { return };
        self.apply_task_slice_oob(curr);
        let slice = self.slice(curr);
        if slice != SLICE_INF {
            self.set_slice(curr, slice.saturating_sub(ran));
        }
    }

    /// `scx_task_unlink_from_dsq()`.
    pub(super) fn unlink_from_dsq(&mut self, id: TaskId) {
        let Some(dsq) = self.task_mut(id).scx.dsq.take() else { return };
        let queue = &mut self.dsq_mut(dsq).tasks;
        let at = queue.iter().position(|other| *other == id).expect("a queued task is in its queue");
        queue.remove(at);
    }
}

#[cfg(test)]
mod tests {
    use crate::kernel::Kernel;
    use crate::kernel::topology::Shape;
    use crate::program::Step::Compute;
    use crate::program::Time::Fixed;
    use crate::scenario::{Arm, host, tasks};
    use crate::world::HOST;

    fn busy() -> crate::world::World {
        let mut world = host(1, Shape::flat(2), Arm::HOST);
        tasks(&mut world, HOST, "hog", 6, &[Compute(Fixed(1_000_000))]);
        world.run(50_000_000);
        world
    }

    fn waiter(kernel: &Kernel) -> (usize, crate::kernel::TaskId) {
        let queues = kernel.scx.dsqs.iter().enumerate();
        queues.flat_map(|(i, dsq)| dsq.tasks.front().map(|id| (i, *id))).next().expect("four of six wait")
    }

    #[test]
    fn the_rule_of_queues_finds_who_stands_where_he_should_not() {
        let mut world = busy();
        let kernel = &mut world.machines[0].kernel;
        assert_eq!(kernel.check_queues(), None);
        let (queue, id) = waiter(kernel);
        let other = if queue == 0 { 1 } else { 0 };
        kernel.scx.dsqs[other].tasks.push_back(id);
        assert_eq!(kernel.check_queues(), Some(format!("{id:?} is in two queues")));
        kernel.scx.dsqs[other].tasks.pop_back();
        kernel.scx.dsqs[queue].tasks.pop_front();
        assert!(kernel.check_queues().is_some_and(|what| what.contains("does not know it")));
    }
}
