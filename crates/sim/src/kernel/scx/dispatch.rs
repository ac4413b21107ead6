//! What runs next on a CPU.

use super::super::{Kernel, TaskId};
use super::call::Program;
use super::dsq::{DsqIndex, Insertion};
use super::enqueue::{Direct, OpsState};
use super::immed::Reason;
use super::{DISPATCH_BATCH, DISPATCH_LOOPS, OPS_ENQ_LAST, SLICE_DFL, enq};

/// `struct scx_dsp_ctx`: what ops.dispatch() has asked for so far.
#[derive(Default)]
pub(super) struct Buffer {
    pub cpu: u32,
    pub tasks: u32,
    pub entries: Vec<(TaskId, Direct)>,
}

/// `enum scx_dsp_verdict`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    None,
    Local,
    Prev,
}

impl Kernel {
    /// `pick_task_scx()`: the next task of a CPU, which stays where it is until the switch. `None`: nothing to run.
    pub(in super::super) fn pick_task_scx(&mut self, cpu: u32) -> Option<TaskId> {
        let prev = self.curr_below_rt(cpu);
        self.cpu_mut(cpu).in_dispatch = true;
        let verdict = self.dispatch_one(cpu, prev);
        if verdict != Verdict::None {
            self.dispatched_immed(cpu);
        }
        self.cpu_mut(cpu).in_dispatch = false;
        let next = match verdict {
            Verdict::Prev => prev,
            Verdict::None | Verdict::Local => self.dsq(self.local_dsq(cpu)).tasks.front().copied(),
        };
        if let Some(task) = next
            && self.slice(task) == 0
        {
            self.set_slice(task, SLICE_DFL);
        }
        self.scx_flush();
        next
    }

    /// What came to the CPU's own queue while dispatch had dropped the lock, it sees before it gives up.
    pub fn look_again(&mut self, cpu: u32) {
        if self.scx_attached() && !self.dsq(self.local_dsq(cpu)).tasks.is_empty() {
            self.resched(cpu);
        }
    }

    /// `dispatch_one()`.
    fn dispatch_one(&mut self, cpu: u32, prev: Option<TaskId>) -> Verdict {
        self.update_curr_scx(cpu);
        let goes_on = |k: &Self| !k.scx.bypass && prev.is_some_and(|task| k.queued(task) && k.slice(task) != 0);
        if goes_on(self) {
            return Verdict::Prev;
        }
        if !self.dsq(self.local_dsq(cpu)).tasks.is_empty() {
            return Verdict::Local;
        }
        let verdict = self.dispatch_sched(cpu, prev, goes_on);
        if verdict != Verdict::None {
            return verdict;
        }
        let last = !self.scx.bypass && self.scx.ops.is_some_and(|ops| ops.flags & OPS_ENQ_LAST != 0);
        if !last && prev.is_some_and(|task| self.queued(task)) {
            return Verdict::Prev;
        }
        Verdict::None
    }

    /// `scx_dispatch_sched()`.
    fn dispatch_sched(&mut self, cpu: u32, prev: Option<TaskId>, goes_on: impl Fn(&Self) -> bool) -> Verdict {
        if self.consume_dispatch_q(cpu, self.global_dsq(), 0) {
            return Verdict::Local;
        }
        let dispatch = self.scx.ops.and_then(|ops| ops.dispatch).filter(|_| !self.scx.bypass);
        let Some(dispatch) = dispatch else { return Verdict::None };
        let pointer = prev.map_or(std::ptr::null_mut(), |task| self.pointer(task));
        for left in (0..DISPATCH_LOOPS).rev() {
            self.scx.operation.dispatching.cpu = cpu;
            self.scx.operation.dispatching.tasks = 0;
            self.calls(Program::Dispatch);
            self.scx_call(Some(cpu), |_, _| {
                // SAFETY: the pointer is the object's or null, which stands for the idle task.
                unsafe { dispatch(cpu as i32, pointer) };
            });
            self.flush_dispatch_buf();
            if goes_on(self) {
                return Verdict::Prev;
            }
            if !self.dsq(self.local_dsq(cpu)).tasks.is_empty() || self.consume_dispatch_q(cpu, self.global_dsq(), 0) {
                return Verdict::Local;
            }
            if self.scx.operation.dispatching.tasks == 0 {
                break;
            }
            if left == 0 {
                self.kf_kick_cpu(cpu as i32, 0);
            }
        }
        Verdict::None
    }

    /// `scx_flush_dispatch_buf()`, `finish_dispatch()`.
    pub(super) fn flush_dispatch_buf(&mut self) {
        for (id, verdict) in std::mem::take(&mut self.scx.operation.dispatching.entries) {
            self.scx.operation.dispatching.tasks += 1;
            if self.task(id).scx.state != OpsState::Queued {
                continue;
            }
            let cpu = self.scx.operation.dispatching.cpu;
            let dsq = self.find_dsq_for_dispatch(cpu, verdict.dsq);
            if self.is_local(dsq) {
                self.dispatch_to_local_dsq(dsq, id, verdict);
            } else {
                let Direct { slice, vtime, flags, .. } = verdict;
                self.dispatch_enqueue(dsq, id, Insertion { slice, vtime, flags, apply: true });
            }
        }
    }

    /// Notes a verdict of ops.dispatch(): `scx_dsq_insert_commit()`.
    pub(super) fn dispatch_later(&mut self, id: TaskId, verdict: Direct) {
        if self.scx.operation.dispatching.entries.len() >= DISPATCH_BATCH {
            return self.scx_fail("dispatch buffer overflow".into());
        }
        self.scx.operation.dispatching.entries.push((id, verdict));
    }

    /// `dispatch_to_local_dsq()`.
    pub(super) fn dispatch_to_local_dsq(&mut self, dsq: DsqIndex, id: TaskId, verdict: Direct) {
        let Direct { slice, vtime, flags, .. } = verdict;
        let cpu = dsq.0;
        let state = self.task(id).scx.state;
        if self.task(id).cpu != cpu
            && self.cross(&[self.task(id).cpu, cpu])
            && (self.task(id).scx.state != state || self.task(id).scx.dsq.is_some())
        {
            // It was dequeued meanwhile, and whoever did that has seen to it.
            return;
        }
        self.task_mut(id).scx.state = OpsState::None;
        if self.task(id).cpu == cpu {
            self.dispatch_enqueue(dsq, id, Insertion { slice, vtime, flags, apply: true });
        } else if !self.task_can_run_on_remote_rq(id, cpu) {
            self.scx_fail(format!("SCX_DSQ_LOCAL[_ON] target CPU {cpu} not allowed for {id:?}"));
            self.dispatch_enqueue(self.global_dsq(), id, Insertion { slice, vtime, flags, apply: true });
            return;
        } else {
            self.apply_slice_vtime(id, slice, vtime);
            self.move_remote_task_to_local_dsq(id, cpu, flags);
        }
        if self.cpu(cpu).curr.is_none() {
            self.resched(cpu);
        }
    }

    /// `move_remote_task_to_local_dsq()`. The task is in no queue.
    pub(super) fn move_remote_task_to_local_dsq(&mut self, id: TaskId, cpu: u32, flags: u64) {
        let from = self.task(id).cpu;
        let now = self.now;
        self.cpu_mut(from).nr_running -= 1;
        self.cpu_mut(from).frozen = Some(now);
        self.task_mut(id).cpu = cpu;
        self.cpu_mut(cpu).nr_running += 1;
        self.dispatch_enqueue(self.local_dsq(cpu), id, Insertion::plain(flags));
    }

    /// `task_can_run_on_remote_rq()`.
    pub(super) fn task_can_run_on_remote_rq(&self, id: TaskId, cpu: u32) -> bool {
        self.task(id).allowed.has(cpu)
    }

    /// `scx_consume_dispatch_q()`: moves the first task that may run there to a CPU's local queue.
    pub(super) fn consume_dispatch_q(&mut self, cpu: u32, dsq: DsqIndex, flags: u64) -> bool {
        loop {
            let fits = |id: &&TaskId| self.task(**id).cpu == cpu || self.task_can_run_on_remote_rq(**id, cpu);
            let Some(id) = self.dsq(dsq).tasks.iter().find(fits).copied() else { return false };
            let home = self.task(id).cpu;
            // consume_remote_task(): whether it has got away is seen when the locks are there.
            let crossed = home != cpu && self.cross(&[home]);
            if crossed && (self.task(id).scx.dsq != Some(dsq) || self.task(id).cpu != home) {
                continue;
            }
            self.unlink_from_dsq(id);
            self.move_to_local_dsq(id, cpu, flags);
            return true;
        }
    }

    /// `scx_move_local_task_to_local_dsq()` or its like for a task of another CPU.
    pub(super) fn move_to_local_dsq(&mut self, id: TaskId, cpu: u32, flags: u64) {
        if self.task(id).cpu == cpu {
            self.dispatch_enqueue(self.local_dsq(cpu), id, Insertion::plain(flags));
        } else {
            self.move_remote_task_to_local_dsq(id, cpu, flags);
        }
    }

    /// `put_prev_task_scx()`: the task leaves its CPU for another one, or for the idle task (`next_idle`).
    pub(in super::super) fn put_prev_task_scx(&mut self, id: TaskId, next_idle: bool) {
        let cpu = self.task(id).cpu;
        self.update_curr_scx(cpu);
        if !self.queued(id) {
            return;
        }
        self.calls(Program::Stopping);
        self.scx_call_task(id, |ops, task| {
            if let Some(stopping) = ops.stopping {
                // SAFETY: the pointer is the object's.
                unsafe { stopping(task, true) }
            }
        });
        let now = self.now;
        let task = self.task_mut(id);
        task.scx.runnable_at = Some(now);
        self.account_wait(id, true);
        if self.slice(id) != 0 && !self.scx.bypass {
            if self.task(id).scx.immed {
                return self.reenqueue(id, Reason::Preempted);
            }
            return self.dispatch_enqueue(self.local_dsq(cpu), id, Insertion::plain(enq::HEAD));
        }
        if next_idle {
            self.do_enqueue_task(id, enq::LAST);
            if self.task(id).scx.dsq == Some(self.local_dsq(cpu)) {
                self.resched(cpu);
            }
        } else {
            self.do_enqueue_task(id, 0);
        }
    }

    /// `set_next_task_scx()`.
    pub(in super::super) fn set_next_task_scx(&mut self, cpu: u32, id: TaskId) {
        self.unlink_from_dsq(id);
        let clock = self.clock_task(cpu);
        self.task_mut(id).exec_start = clock;
        self.calls(Program::Running);
        self.scx_call_task(id, |ops, task| {
            if let Some(running) = ops.running {
                // SAFETY: the pointer is the object's.
                unsafe { running(task) }
            }
        });
        let task = self.task_mut(id);
        task.scx.runnable_at = None;
        task.scx.kept_runnable_at = None;
        task.scx.reenq_cnt = 0;
        self.apply_task_slice_oob(id);
    }
}
