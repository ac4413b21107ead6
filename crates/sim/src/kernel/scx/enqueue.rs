//! The ways of a task into the scheduler's queues and out of them.

use super::super::{Kernel, TaskId, task::State};
use super::call::Program;
use super::dsq::{DirectSlot, Insertion};
use super::immed::Reason;
use super::{SLICE_DFL, enq};

/// `SCX_DEQ_SCHED_CHANGE`.
const DEQ_SCHED_CHANGE: u64 = 1 << 33;

/// `SCX_OPSS_*` as far as operations that nothing interrupts can see it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum OpsState {
    /// In a queue, running or asleep.
    #[default]
    None,
    /// The scheduler was handed it and has not inserted it anywhere.
    Queued,
}

/// A verdict of ops.select_cpu() or ops.enqueue(): it takes effect when the operation has returned.
#[derive(Clone, Copy, Debug)]
pub(super) struct Direct {
    pub dsq: u64,
    pub slice: u64,
    pub vtime: Option<u64>,
    pub flags: u64,
}

impl Kernel {
    /// `enqueue_task_scx()`. The task has its CPU.
    pub(in super::super) fn enqueue_task_scx(&mut self, id: TaskId, flags: u64) {
        let (cpu, now) = (self.task(id).cpu, self.now);
        let task = self.task_mut(id);
        task.state = State::Runnable;
        task.scx.runnable_at = Some(task.scx.kept_runnable_at.unwrap_or(now));
        task.scx.kept_runnable_at = None;
        self.set_queued(id, true);
        self.cpu_mut(cpu).nr_running += 1;
        self.scx_call_task(id, |ops, task| {
            if let Some(runnable) = ops.runnable {
                // SAFETY: the pointer is the object's.
                unsafe { runnable(task, flags) }
            }
        });
        self.do_enqueue_task(id, flags);
    }

    /// `enqueue_task_scx()` for a task that was taken off for a change. One that runs goes on at once.
    pub(in super::super) fn restore_task_scx(&mut self, id: TaskId, runs: bool) {
        if !runs {
            return self.enqueue_task_scx(id, enq::RESTORE);
        }
        let cpu = self.task(id).cpu;
        self.set_queued(id, true);
        self.cpu_mut(cpu).nr_running += 1;
        self.scx_call_task(id, |ops, task| {
            if let Some(runnable) = ops.runnable {
                // SAFETY: the pointer is the object's.
                unsafe { runnable(task, enq::RESTORE) }
            }
        });
        self.dispatch_enqueue(self.local_dsq(cpu), id, Insertion::plain(0));
    }

    /// `scx_do_enqueue_task()`.
    pub(super) fn do_enqueue_task(&mut self, id: TaskId, flags: u64) {
        let cpu = self.task(id).cpu;
        self.task_mut(id).scx.local_at = None;
        self.task_mut(id).scx.immed = false;
        if flags & enq::REENQ != 0 && self.reenqueued(id) {
            return;
        }
        if !self.online.has(cpu) {
            return self.dispatch_enqueue(self.local_dsq(cpu), id, Insertion::plain(flags));
        }
        if self.scx.bypass {
            self.task_mut(id).scx.direct = None;
            self.set_task_slice(id, SLICE_DFL);
            return self.dispatch_enqueue(self.local_dsq(cpu), id, Insertion::plain(flags & !enq::PREEMPT));
        }
        if self.task(id).scx.direct.is_some() {
            return self.direct_dispatch(id, flags);
        }
        let Some(enqueue) = self.scx.ops.and_then(|ops| ops.enqueue) else {
            self.set_task_slice(id, SLICE_DFL);
            return self.dispatch_enqueue(self.global_dsq(), id, Insertion::plain(flags));
        };
        let outer = std::mem::replace(&mut self.scx.operation.direct, DirectSlot::For(id));
        self.calls(Program::Enqueue);
        // SAFETY: the pointer is the object's.
        self.scx_call_task(id, |_, task| unsafe { enqueue(task, flags) });
        self.scx.operation.direct = outer;
        if self.task(id).scx.direct.is_some() {
            return self.direct_dispatch(id, flags);
        }
        let task = self.task_mut(id);
        task.scx.in_custody = true;
        task.scx.state = OpsState::Queued;
    }

    /// `direct_dispatch()`.
    fn direct_dispatch(&mut self, id: TaskId, flags: u64) {
        let verdict = self.task(id).scx.direct.expect("the caller has looked");
        let cpu = self.task(id).cpu;
        let dsq = self.find_dsq_for_dispatch(cpu, verdict.dsq);
        if self.is_local(dsq) && dsq.0 != cpu {
            // Needs the other CPU's lock: done as soon as this one's is free.
            self.task_mut(id).scx.direct = Some(Direct { flags: verdict.flags | flags, ..verdict });
            self.scx.operation.deferred.push(id);
            return;
        }
        self.task_mut(id).scx.direct = None;
        let with = Insertion { slice: verdict.slice, vtime: verdict.vtime, flags: verdict.flags | flags, apply: true };
        self.dispatch_enqueue(dsq, id, with);
    }

    /// `run_deferred()`, `process_ddsp_deferred_locals()`.
    pub(super) fn run_deferred(&mut self) {
        while !self.scx.operation.deferred.is_empty() {
            let id = self.scx.operation.deferred.remove(0);
            // It may have been dequeued meanwhile.
            let Some(verdict) = self.task_mut(id).scx.direct.take() else { continue };
            let dsq = self.find_dsq_for_dispatch(self.task(id).cpu, verdict.dsq);
            self.dispatch_to_local_dsq(dsq, id, verdict);
        }
        while let Some(dsq) = self.scx.operation.reenqs.pop() {
            self.reenq_user(dsq);
        }
        self.process_reenq_locals();
    }

    /// `reenq_user()`.
    fn reenq_user(&mut self, dsq: super::dsq::DsqIndex) {
        for id in self.dsq(dsq).tasks.iter().copied().collect::<Vec<_>>() {
            if self.task(id).scx.dsq == Some(dsq) {
                self.unlink_from_dsq(id);
                self.reenqueue(id, Reason::Kfunc);
            }
        }
    }

    /// `dequeue_task_scx()`. `sleeps`: it is not runnable any more; else a property changes.
    pub(in super::super) fn dequeue_task_scx(&mut self, id: TaskId, sleeps: bool) {
        let cpu = self.task(id).cpu;
        let flags = if sleeps { 1 } else { DEQ_SCHED_CHANGE };
        let task = self.task_mut(id);
        task.scx.kept_runnable_at = task.scx.runnable_at.take().filter(|_| !sleeps);
        task.scx.state = OpsState::None;
        if sleeps {
            task.scx.reenq_cnt = 0;
        }
        self.leave_custody(id, flags);
        if self.cpu(cpu).curr == Some(id) {
            self.update_curr_scx(cpu);
            self.calls(Program::Stopping);
            self.scx_call_task(id, |ops, task| {
                if let Some(stopping) = ops.stopping {
                    // SAFETY: the pointer is the object's.
                    unsafe { stopping(task, false) }
                }
            });
        }
        self.calls(Program::Quiescent);
        self.scx_call_task(id, |ops, task| {
            if let Some(quiescent) = ops.quiescent {
                // SAFETY: the pointer is the object's.
                unsafe { quiescent(task, flags) }
            }
        });
        self.set_queued(id, false);
        self.cpu_mut(cpu).nr_running -= 1;
        self.unlink_from_dsq(id);
        self.task_mut(id).scx.direct = None;
        // One that is taken off for a change goes on to wait.
        if sleeps {
            self.account_wait(id, false);
        }
    }

    /// `select_task_rq_scx()`: the CPU that a waking task goes to.
    pub(in super::super) fn select_task_rq_scx(&mut self, id: TaskId, wake_flags: u64) -> u32 {
        let prev = self.task(id).cpu;
        if self.scx.bypass {
            return prev;
        }
        let Some(select) = self.scx.ops.and_then(|ops| ops.select_cpu) else {
            return match self.select_cpu_dfl(id, prev, wake_flags, None, 0) {
                Some(cpu) => {
                    self.task_mut(id).scx.direct =
                        Some(Direct { dsq: super::dsq::LOCAL, slice: SLICE_DFL, vtime: None, flags: 0 });
                    cpu
                }
                None => prev,
            };
        };
        let outer = std::mem::replace(&mut self.scx.operation.direct, DirectSlot::For(id));
        self.scx.operation.in_select_cpu = Some(id);
        let pointer = self.pointer(id);
        let about = [pointer, std::ptr::null_mut()];
        self.calls(Program::SelectCpu);
        // SAFETY: the pointer is the object's.
        let cpu = self.call_about(about, None, |_, _| unsafe { select(pointer, prev as i32, wake_flags) });
        self.scx.operation.in_select_cpu = None;
        self.scx.operation.direct = outer;
        if cpu < 0 || cpu as u32 >= self.topo.cpus() {
            self.scx_fail(format!("invalid CPU {cpu} from ops.select_cpu()"));
            return prev;
        }
        cpu as u32
    }

    /// `task_tick_scx()`.
    pub(in super::super) fn task_tick_scx(&mut self, cpu: u32, curr: TaskId) {
        self.update_curr_scx(cpu);
        if self.scx.bypass {
            self.set_task_slice(curr, 0);
        } else {
            self.calls(Program::Tick);
            self.scx_call_task(curr, |ops, task| {
                if let Some(tick) = ops.tick {
                    // SAFETY: the pointer is the object's.
                    unsafe { tick(task) }
                }
            });
        }
        if self.slice(curr) == 0 {
            self.resched(cpu);
        }
    }

    /// `yield_task_scx()`.
    pub(in super::super) fn yield_task_scx(&mut self, curr: TaskId) {
        match self.scx.ops.and_then(|ops| ops.yield_to) {
            Some(yields) => {
                // SAFETY: the pointer is the object's; null stands for nobody in particular.
                self.scx_call_task(curr, |_, task| unsafe { yields(task, std::ptr::null_mut()) });
            }
            None => self.set_task_slice(curr, 0),
        }
    }

    /// `yield_to_task_scx()`.
    pub(in super::super) fn yield_to_task_scx(&mut self, from: TaskId, to: TaskId) -> bool {
        let Some(yields) = self.scx.ops.and_then(|ops| ops.yield_to) else { return false };
        let (giver, taker, cpu) = (self.pointer(from), self.pointer(to), self.task(from).cpu);
        // SAFETY: the pointers are the object's.
        self.call_about([giver, taker], Some(cpu), |_, _| unsafe { yields(giver, taker) })
    }

    /// What an operation has left for when the run queue is unlocked: inserts elsewhere, kicks.
    pub(in super::super) fn scx_flush(&mut self) {
        self.run_deferred();
        self.flush_kicks();
    }

    /// Takes a verdict of an operation that runs: `mark_direct_dispatch()`.
    pub(super) fn mark_direct_dispatch(&mut self, for_whom: DirectSlot, id: TaskId, verdict: Direct) {
        self.scx.operation.direct = DirectSlot::Spent;
        match for_whom {
            DirectSlot::For(task) if task == id => self.task_mut(id).scx.direct = Some(verdict),
            DirectSlot::For(task) => self.scx_fail(format!("scheduling for {task:?} but trying to dispatch {id:?}")),
            _ => self.scx_fail(format!("{id:?} already direct-dispatched")),
        }
    }

    /// The flags with which a task that was taken off for a change comes back.
    pub(in super::super) const RESTORED: u64 = enq::RESTORE;

    /// The flags of a wake-up, and whether ops.select_cpu() has chosen its CPU. `wake_up_new_task()` says neither.
    pub(in super::super) fn wake_flags(new: bool, selected: bool) -> u64 {
        match (new, selected) {
            (true, _) => 0,
            (false, true) => enq::WAKEUP | enq::CPU_SELECTED,
            (false, false) => enq::WAKEUP,
        }
    }
}
