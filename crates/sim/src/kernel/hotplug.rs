//! CPUs that come and go: `sched_cpu_deactivate()` and `sched_cpu_activate()` of core.c with `handle_hotplug()` and
//! `rq_offline_scx()` of ext.c.

use super::task::State;
use super::{Kernel, TaskId};

impl Kernel {
    /// Takes a CPU away that is not in the middle of a switch. Its tasks go to others.
    ///
    /// # Panics
    /// When it is the last CPU.
    pub fn cpu_offline(&mut self, cpu: u32) {
        assert!(self.online.count() > 1, "the last CPU stays");
        debug_assert!(!self.cpu(cpu).locked);
        self.online.set(cpu, false);
        self.fair_touch(cpu);
        let fair = self.fair.is_some();
        // The stopper takes the CPU from what runs.
        match self.cpu(cpu).curr {
            Some(curr) if fair => self.fair_put_prev(curr),
            Some(curr) => self.put_prev_task_scx(curr, false),
            None => self.scx_notify_idle(cpu, false),
        }
        self.cpu_mut(cpu).curr = None;
        self.vacant.set(cpu, true);
        self.clear_resched(cpu);
        self.cpu_mut(cpu).next_idle = false;
        let here: Vec<_> =
            self.tasks.iter().filter(|t| t.cpu == cpu && t.state == State::Runnable).map(|t| t.id).collect();
        if !fair {
            // rq_offline_scx(): what waits elsewhere comes to the CPU's local queue.
            for id in &here {
                if self.task(*id).scx_dsq() != Some(cpu) {
                    self.change(*id, cpu);
                }
            }
            self.hotplug_op(cpu, false);
        }
        // balance_push().
        for id in here {
            let to = self.fallback_cpu(id);
            self.change(id, to);
            if self.cpu(to).next_idle {
                self.cpu_mut(to).next_idle = false;
                self.resched(to);
            }
        }
        self.scx_flush();
    }

    /// Brings it back.
    pub fn cpu_online(&mut self, cpu: u32) {
        if self.fair.is_none() {
            self.hotplug_op(cpu, true);
        }
        self.online.set(cpu, true);
        self.fair_touch(cpu);
        self.cpu_mut(cpu).next_idle = true;
        self.cpu_mut(cpu).idle_since = self.now;
        self.scx_notify_idle(cpu, true);
        if self.fair.is_some() {
            // It looks for work as soon as its idle task runs.
            self.resched(cpu);
        }
        self.scx_flush();
    }

    /// Whether a CPU can go: not while it switches, nor where the real-time class has bound a task to it.
    pub fn may_go(&self, cpu: u32) -> bool {
        let bound = |task: &super::Task| task.realtime && task.state != State::Dead && task.allowed.has(cpu);
        !self.cpu(cpu).locked && !self.tasks.iter().any(bound)
    }

    /// `handle_hotplug()`.
    fn hotplug_op(&mut self, cpu: u32, online: bool) {
        let op = self.scx_ops().and_then(|ops| if online { ops.cpu_online } else { ops.cpu_offline });
        match op {
            // SAFETY: the operation takes a plain number.
            Some(op) => self.scx_call(None, |_, _| unsafe { op(cpu as i32) }),
            None => self.reloads = true,
        }
    }

    /// Takes a waiting task off its queue and puts it on a CPU's: `sched_change`, `move_queued_task()`.
    fn change(&mut self, id: TaskId, to: u32) {
        let since = self.task(id).waits_since;
        if self.fair.is_some() {
            self.fair_dequeue(id, true);
            self.task_mut(id).cpu = to;
            self.fair_enqueue(id);
            return self.fair_wakeup_preempt(to, id);
        }
        self.dequeue_task_scx(id, false);
        self.task_mut(id).cpu = to;
        self.task_mut(id).waits_since = since;
        self.enqueue_task_scx(id, 0);
    }

    /// `select_fallback_rq()`: a CPU of those where the task may run, else any, as if it had never been bound.
    fn fallback_cpu(&mut self, id: TaskId) -> u32 {
        let both = self.task(id).allowed.and(&self.online);
        if let Some(cpu) = both.next_and_wrap(&self.online, self.task(id).cpu) {
            return cpu;
        }
        let all = self.topo.all.clone();
        let nr = all.count() as u32;
        self.task_mut(id).nr_allowed = nr;
        *self.task_mut(id).allowed = all;
        self.scx_task_allow(id, nr);
        self.online.iter().next().expect("a CPU is there")
    }

    /// The CPU, or another where it is not there.
    pub(super) fn online_or_fallback(&mut self, id: TaskId, cpu: u32) -> u32 {
        if self.online.has(cpu) { cpu } else { self.fallback_cpu(id) }
    }
}
