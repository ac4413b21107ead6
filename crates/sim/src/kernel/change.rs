//! What others change of a task that may run, wait or sleep: `sched_change_begin()` and `sched_change_end()` around it,
//! after kernel/sched/core.c.

use super::group::GroupId;
use super::mask::CpuMask;
use super::{Kernel, TaskId, task::State};

impl Kernel {
    /// Whether a task can be changed now: not between the halves of its wake-up, when its own lock is held, nor while
    /// its run queue is locked.
    pub fn changeable(&self, id: TaskId) -> bool {
        let task = self.task(id);
        !matches!(task.state, State::Waking | State::Dead) && !self.cpu(task.cpu).locked
    }

    /// Takes the task off its queue or CPU, lets it be changed, and puts it back.
    pub(super) fn changed(&mut self, id: TaskId, change: impl FnOnce(&mut Self)) {
        // The real-time class has its own queue, whose order none of these changes touches.
        if self.is_rt(id) {
            change(self);
            return self.scx_flush();
        }
        let (cpu, queued, runs) = (self.task(id).cpu, self.task(id).state == State::Runnable, self.runs(id));
        let waits = self.task(id).waits_since;
        let fair = self.fair.is_some();
        if queued {
            if fair { self.fair_dequeue(id, true) } else { self.dequeue_task_scx(id, false) }
        }
        change(self);
        if queued {
            if fair { self.fair_enqueue(id) } else { self.restore_task_scx(id, runs) }
        }
        if runs {
            if fair { self.fair_set_next(cpu, id) } else { self.set_next_task_scx(cpu, id) }
        } else {
            // It goes on to wait.
            self.task_mut(id).waits_since = waits;
        }
        self.scx_flush();
    }

    /// `sched_setaffinity()`. A task that may not stay where it is goes elsewhere: at once, or where it runs, as soon
    /// as its CPU calls the scheduler.
    ///
    /// # Panics
    /// When the set holds none of the machine's CPUs.
    pub fn set_allowed(&mut self, id: TaskId, allowed: CpuMask) {
        assert!(allowed.meets(&self.topo.all), "a task may run somewhere");
        // It stays bound to its CPU (rt.rs).
        if self.is_rt(id) {
            return;
        }
        self.changed(id, |kernel| {
            let task = kernel.task_mut(id);
            task.nr_allowed = allowed.count() as u32;
            *task.allowed = allowed;
            kernel.scx_set_cpumask(id);
        });
        let cpu = self.task(id).cpu;
        if self.task(id).allowed.has(cpu) {
            return;
        }
        if self.runs(id) {
            // migration_cpu_stop() takes it off.
            self.resched(cpu);
        } else if self.task(id).state == State::Runnable {
            self.move_elsewhere(id);
        }
    }

    /// Whether the one that runs may not stay: then the stopper takes it off before anything else is chosen.
    pub(super) fn evicts(&mut self, cpu: u32) -> bool {
        let stays = |task: &TaskId| self.task(*task).state != State::Runnable || self.task(*task).allowed.has(cpu);
        let evicts = self.curr_below_rt(cpu).is_some_and(|task| !stays(&task));
        self.cpu_mut(cpu).evicts = evicts;
        evicts
    }

    /// `move_queued_task()` to the first CPU where the task may run.
    pub(super) fn move_elsewhere(&mut self, id: TaskId) {
        let waits = self.task(id).waits_since;
        let to = self.task(id).allowed.and(&self.topo.all).iter().next().expect("a task may run somewhere");
        if self.fair.is_some() {
            self.fair_dequeue(id, true);
            self.task_mut(id).cpu = to;
            self.fair_enqueue(id);
            self.fair_wakeup_preempt(to, id);
        } else {
            self.dequeue_task_scx(id, false);
            self.task_mut(id).cpu = to;
            self.enqueue_task_scx(id, 0);
        }
        self.account_wait(id, true);
        if let Some(since) = waits {
            self.task_mut(id).waits_since = Some(since);
        }
        if self.cpu(to).next_idle {
            self.cpu_mut(to).next_idle = false;
            self.resched(to);
        }
        self.scx_flush();
    }

    /// `set_user_nice()`, by the weight that it gives.
    pub fn set_weight(&mut self, id: TaskId, weight: u32) {
        self.changed(id, |kernel| {
            kernel.task_mut(id).weight = weight;
            kernel.scx_reweight(id);
        });
    }

    /// A task goes to another cgroup: `sched_move_task()`.
    pub fn set_group(&mut self, id: TaskId, group: GroupId) {
        self.changed(id, |kernel| {
            let from = std::mem::replace(&mut kernel.task_mut(id).group, group);
            kernel.scx_move_group(id, from);
        });
    }

    /// A task that sleeps for ever is gone: `sched_ext_dead()`.
    pub fn end(&mut self, id: TaskId) {
        debug_assert_eq!(self.task(id).state, State::Sleeping);
        self.task_mut(id).state = State::Dead;
        self.scx_dead(id);
    }
}
