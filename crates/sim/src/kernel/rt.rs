//! Real-time tasks: each on the CPU that it is bound to, before all others, first come, first served; as far as the
//! other classes notice it, after kernel/sched/rt.c.

use super::{Kernel, TaskId, task::State};

impl Kernel {
    /// Whether a task is of the real-time class.
    pub(super) fn is_rt(&self, id: TaskId) -> bool {
        self.task(id).realtime
    }

    /// The task that runs on a CPU, where it is of a class below the real-time one.
    pub(super) fn curr_below_rt(&self, cpu: u32) -> Option<TaskId> {
        self.cpu(cpu).curr.filter(|task| !self.is_rt(*task))
    }

    /// `enqueue_task_rt()` and `wakeup_preempt()`.
    pub(super) fn rt_enqueue(&mut self, id: TaskId) {
        let cpu = self.task(id).cpu;
        self.task_mut(id).state = State::Runnable;
        self.cpu_mut(cpu).rt_queue.push_back(id);
        self.cpu_mut(cpu).nr_running += 1;
        self.fair_touch(cpu);
        self.wakeup_preempt_scx(cpu);
        if self.cpu(cpu).curr.is_some_and(|curr| !self.is_rt(curr)) {
            self.resched(cpu);
        }
    }

    /// `dequeue_task_rt()`: the one that runs goes to sleep.
    pub(super) fn rt_dequeue(&mut self, id: TaskId) {
        let cpu = self.task(id).cpu;
        self.update_curr_common(cpu);
        self.cpu_mut(cpu).rt_queue.retain(|other| *other != id);
        self.cpu_mut(cpu).nr_running -= 1;
        self.fair_touch(cpu);
        self.account_wait(id, false);
    }

    /// `pick_task_rt()`: the first that wants to run; the one that runs stays in the queue.
    pub(super) fn rt_pick(&self, cpu: u32) -> Option<TaskId> {
        self.cpu(cpu).rt_queue.front().copied()
    }

    /// `set_next_task_rt()`.
    pub(super) fn rt_set_next(&mut self, cpu: u32, id: TaskId) {
        let clock = self.clock_task(cpu);
        self.task_mut(id).exec_start = clock;
    }

    /// `put_prev_task_rt()`.
    pub(super) fn rt_put_prev(&mut self, id: TaskId) {
        let cpu = self.task(id).cpu;
        self.update_curr_common(cpu);
        if self.task(id).state == State::Runnable {
            self.account_wait(id, true);
        }
    }
}
