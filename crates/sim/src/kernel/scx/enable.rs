//! A scheduler is attached while tasks run, sleep and wait, and detached again; and bypass mode, in which the kernel
//! stands in for it on either way and while the machine is suspended.

use std::collections::VecDeque;

use super::super::fair::{Fair, FairTask};
use super::super::group::GroupId;
use super::super::{Kernel, TaskId, task::State};
use super::dsq::{self, Dsq};
use super::{SLICE_DFL, Scx};

impl Kernel {
    /// `scx_root_enable_workfn()`. Tasks leave the queues of EEVDF, and the scheduler is asked for each of them.
    ///
    /// # Panics
    /// When a scheduler is attached.
    pub fn attach(&mut self) {
        assert!(!self.scx_attached(), "a scheduler is attached");
        let cpus = self.topo.cpus();
        self.scx.dsqs = (0..cpus).map(|_| Dsq::new(dsq::LOCAL)).chain([Dsq::new(dsq::GLOBAL)]).collect();
        self.scx.by_id.clear();
        // reset_idle_masks(): all count as idle, and what is wrong of that is put right when somebody looks there.
        self.scx.idle_cpus = self.online.clone();
        self.scx.idle_smts = self.online.clone();
        self.scx.ops = self.scx.object.as_ref().map(|object| object.ops);
        // SAFETY: operations are called with what they expect.
        let error = self.scx_call(None, |_, ops| ops.init.map_or(0, |init| unsafe { init() }));
        if error != 0 {
            return self.scx_fail(format!("ops.init() returned {error}"));
        }
        self.scx.bypass = true;
        // Parents stand before their children.
        for group in 0..self.groups.len() {
            let group = &self.groups[group];
            let (pointer, weight, max) = (group.pointer, group.weight, group.max);
            if !group.gone {
                self.scx_cgroup_init(pointer, weight, max);
            }
        }
        let tasks = self.living();
        for id in &tasks {
            self.scx_init_task(*id);
        }
        let runnable = self.leave_fair(&tasks);
        self.fair = None;
        for id in tasks {
            if self.is_rt(id) {
                continue;
            }
            self.set_slice(id, SLICE_DFL);
            self.scx_enable_ops(id);
            self.scx_set_cpumask(id);
            if let Some((_, runs, waits)) = runnable.iter().find(|(other, ..)| *other == id).copied() {
                self.restore_task_scx(id, runs);
                if runs {
                    self.set_next_task_scx(self.task(id).cpu, id);
                } else {
                    self.task_mut(id).waits_since = waits;
                }
            }
        }
        self.scx_bypass(false);
    }

    /// `scx_root_disable()`: back to EEVDF. `unload`: the programs go, and what they knew with them; else they stand by.
    ///
    /// # Panics
    /// When no scheduler is attached.
    pub fn detach(&mut self, unload: bool) {
        assert!(self.scx_attached(), "a scheduler is attached");
        if !self.scx.bypass {
            self.scx_bypass(true);
        }
        for group in (0..self.groups.len()).rev().filter(|group| !self.groups[*group].gone).collect::<Vec<_>>() {
            let pointer = self.groups[group].pointer;
            self.scx_cgroup_exit(pointer);
        }
        let tasks = self.living();
        let mut runnable = Vec::new();
        for id in &tasks {
            let task = self.task(*id);
            let (queued, runs, waits) = (task.state == State::Runnable, self.runs(*id), task.waits_since);
            if !self.is_rt(*id) {
                if queued {
                    self.dequeue_task_scx(*id, false);
                    runnable.push((*id, runs, waits));
                }
                self.scx_disable_task(*id);
            }
            self.scx_dead(*id);
        }
        // SAFETY: operations are called with what they expect.
        self.scx_call(None, |object, _| unsafe { (object.exit)() });
        if unload {
            self.scx_unload(&tasks);
        }
        let old = std::mem::take(&mut self.scx);
        self.scx = Scx { object: old.object, idle_task: old.idle_task, ..Scx::default() };
        self.fair = Some(Fair::new(self.topo.cpus()));
        for group in (0..self.groups.len() as u32).map(GroupId) {
            if self.groups[group.0 as usize].max.is_some() {
                self.fair_set_bandwidth(group);
            }
        }
        for (id, runs, waits) in runnable {
            self.fair_enqueue(id);
            if runs {
                self.fair_set_next(self.task(id).cpu, id);
            } else {
                self.task_mut(id).waits_since = waits;
            }
        }
        self.look_everywhere();
    }

    /// `scx_bypass()`: each runnable task is queued anew, and every CPU called.
    pub fn scx_bypass(&mut self, on: bool) {
        self.scx.bypass = on;
        for cpu in 0..self.topo.cpus() {
            self.cpu_mut(cpu).renotify |= !on;
            let here = |task: &&super::super::Task| task.cpu == cpu && task.state == State::Runnable && !task.realtime;
            let tasks: Vec<_> = self.tasks.iter().filter(here).map(|task| task.id).collect();
            for id in tasks.into_iter().rev() {
                if on && self.runs(id) {
                    self.set_task_slice(id, 0);
                }
                self.changed(id, |_| {});
            }
        }
        self.look_everywhere();
    }

    /// Every CPU calls its scheduler. One that has chosen already, but not switched, chooses anew: the kernel changes
    /// nobody while a run queue is locked.
    fn look_everywhere(&mut self) {
        for cpu in 0..self.topo.cpus() {
            if self.cpu(cpu).locked {
                self.cpu_mut(cpu).chooses_anew = true;
            } else if self.online.has(cpu) {
                self.resched(cpu);
            }
        }
        // Between the halves of its wake-up a task is locked: to the class that it comes to it is one that changes.
        for task in self.tasks.iter_mut().filter(|task| task.state == State::Waking) {
            task.scx.direct = None;
            task.changed = true;
        }
    }

    fn living(&self) -> Vec<TaskId> {
        self.tasks.iter().filter(|task| task.state != State::Dead).map(|task| task.id).collect()
    }

    /// Takes all tasks off EEVDF's queues. Those that are runnable, whether they run, and since when they wait.
    fn leave_fair(&mut self, tasks: &[TaskId]) -> Vec<(TaskId, bool, Option<u64>)> {
        let mut runnable = Vec::new();
        for id in tasks.iter().copied() {
            if self.is_rt(id) || self.task(id).state != State::Runnable {
                continue;
            }
            let waits = self.task(id).waits_since;
            self.fair_dequeue(id, true);
            runnable.push((id, self.runs(id), waits));
        }
        for task in &mut self.tasks {
            task.fair = FairTask::default();
        }
        runnable
    }

    /// `scx_disable_task()`: what the scheduler may write is as if it had never been there.
    fn scx_disable_task(&mut self, id: TaskId) {
        self.set_task_slice(id, 0);
        // SAFETY: the field lives as long as the object.
        unsafe { *self.task(id).fields.vtime = 0 }
        let task = &mut self.task_mut(id).scx;
        (task.direct, task.runnable_at, task.kept_runnable_at) = (None, None, None);
    }

    /// The programs and their maps are gone.
    fn scx_unload(&mut self, tasks: &[TaskId]) {
        let tasks: VecDeque<_> = tasks.iter().map(|id| self.pointer(*id)).collect();
        let groups: Vec<_> = self.groups.iter().map(|group| group.pointer).collect();
        self.object_call(|object| {
            // SAFETY: the pointers are the object's.
            unsafe {
                tasks.into_iter().for_each(|task| (object.forget_task)(task));
                groups.into_iter().for_each(|group| (object.forget_group)(group));
                (object.forget)();
            }
        });
    }
}
