//! The scheduler's core: waking, choosing, switching, ticks; after kernel/sched/core.c.

use super::counts::{Counts, Kind};
use super::fair::{Fair, FairBandwidth};
use super::group::{Group, GroupId};
use super::scx::Scx;
use super::task::State;
use super::topology::Topology;
use super::{Cpu, Effect, Kernel, TaskId};
use crate::native::Object;

/// `SCX_WAKE_FORK`.
const WAKE_FORK: u64 = 4;
/// `SCX_WAKE_TTWU`.
const WAKE_TTWU: u64 = 8;
/// `SCX_WAKE_SYNC`.
const WAKE_SYNC: u64 = 16;

impl Kernel {
    /// A machine whose CPUs idle: under the object's scheduler, or (`fair`) under EEVDF, where the object only watches.
    pub(crate) fn new(topo: Topology, object: Object, fair: bool) -> Self {
        let cpu_count = topo.cpus();
        let (online, vacant) = (topo.all.clone(), topo.all.clone());
        let cpus = (0..cpu_count).map(|_| Cpu { next_idle: true, ..Cpu::default() }).collect();
        let root = Group {
            parent: None,
            weight: 100,
            gone: false,
            active: 0,
            max: None,
            bandwidth: FairBandwidth::default(),
            pointer: std::ptr::null_mut(),
        };
        let mut kernel = Self {
            now: 0,
            this_cpu: 0,
            in_irq: false,
            topo,
            online,
            vacant,
            cpus,
            tasks: Vec::new(),
            groups: vec![root],
            out: Vec::new(),
            spent: 0,
            deferred: false,
            costs: crate::costs::Costs::HARDWARE,
            iterations: 0,
            failed: None,
            reloads: false,
            counts: Counts::new(cpu_count),
            waiting: Default::default(),
            racing: std::ptr::null_mut(),
            holders: Vec::new(),
            _pinned: std::marker::PhantomPinned,
            scx: Scx::default(),
            fair: Some(Fair::new(cpu_count)),
        };
        kernel.scx_load(object);
        if !fair {
            kernel.attach();
            // Nobody has to be called yet: all idle, and say so.
            for cpu in 0..cpu_count {
                let idle = kernel.cpu_mut(cpu);
                (idle.need_resched, idle.renotify) = (false, false);
                kernel.this_cpu = cpu;
                kernel.scx_notify_idle(cpu, true);
            }
            kernel.this_cpu = 0;
            // Timers that ops.init() has started stay.
            kernel.out.retain(|effect| matches!(effect, Effect::BpfTimer { .. }));
        }
        kernel
    }

    /// First half of `try_to_wake_up()`, under the task's own lock: chooses the CPU. Returns it, and whether the class
    /// chose it; `None`: the task does not sleep.
    pub fn wake_select(&mut self, id: TaskId, sync: bool) -> Option<(u32, bool)> {
        if self.task(id).state != State::Sleeping {
            return None;
        }
        self.task_mut(id).state = State::Waking;
        if self.task(id).nr_allowed == 1 {
            let cpu = self.task(id).allowed.iter().next().expect("a task may run somewhere");
            return Some((self.online_or_fallback(id, cpu), false));
        }
        if self.fair.is_some() {
            if self.fair_delayed(id) {
                return Some((self.online_or_fallback(id, self.task(id).cpu), false));
            }
            self.spent += self.costs.fair_select;
            return Some((self.fair_select(id, sync), true));
        }
        let flags = match (self.task(id).new, sync) {
            (true, _) => WAKE_FORK,
            (false, true) => WAKE_TTWU | WAKE_SYNC,
            (false, false) => WAKE_TTWU,
        };
        let cpu = self.counted(Kind::Wake, |kernel| {
            let cpu = kernel.select_task_rq_scx(id, flags);
            kernel.scx_flush();
            cpu
        });
        Some((self.online_or_fallback(id, cpu), true))
    }

    /// `ttwu_queue_cond()`: whether a task that code on the CPU `by` wakes is not queued at its CPU, but handed to it by
    /// an interrupt, and is on no queue until that CPU takes it.
    pub fn wakes_by_list(&self, id: TaskId, by: u32, cpu: u32) -> bool {
        let task = self.task(id);
        let may = self.online.has(cpu)
            && task.allowed.has(cpu)
            && !task.new
            && !self.fair_delayed(id)
            && self.scx_allow_ttwu_queue(id);
        let near = self.topo.llc_of(by) == self.topo.llc_of(cpu);
        may && (!near || by != cpu && self.cpu(cpu).nr_running == 0)
    }

    /// `rq->ttwu_pending` of a CPU.
    pub fn set_ttwu_pending(&mut self, cpu: u32, pending: bool) {
        self.cpu_mut(cpu).ttwu_pending = pending;
        self.fair_touch(cpu);
    }

    /// Second half, `ttwu_do_activate()`, under the run-queue lock of the chosen CPU.
    pub fn wake_activate(&mut self, id: TaskId, cpu: u32, selected: bool) {
        debug_assert_eq!(self.task(id).state, State::Waking);
        let cpu = self.online_or_fallback(id, cpu);
        self.task_mut(id).cpu = cpu;
        let new = std::mem::take(&mut self.task_mut(id).new);
        let changed = std::mem::take(&mut self.task_mut(id).changed);
        self.account_wait(id, true);
        if self.is_rt(id) {
            self.rt_enqueue(id);
        } else if self.fair.is_some() {
            self.task_mut(id).state = State::Runnable;
            self.spent += self.costs.fair_enqueue;
            if self.fair_throttled(id, cpu) {
                self.fair_limbo(id, cpu);
            } else {
                self.fair_enqueue(id);
                self.fair_wakeup_preempt(cpu, id);
            }
        } else {
            let flags = if changed { Self::RESTORED } else { Self::wake_flags(new, selected) };
            self.counted(Kind::Wake, |kernel| kernel.enqueue_task_scx(id, flags));
        }
        self.count(Kind::Wake);
        // wakeup_preempt(): a CPU that idles looks for work.
        if self.cpu(cpu).next_idle {
            self.cpu_mut(cpu).next_idle = false;
            self.resched(cpu);
        }
        self.counted(Kind::Wake, Self::scx_flush);
    }

    /// The current task is to sleep, or to end: takes effect with the next call of the scheduler.
    pub fn block(&mut self, cpu: u32) {
        self.cpu_mut(cpu).sleeps = true;
    }

    /// First half of `__schedule()`: takes a sleeper off and chooses. The run queue stays locked until `switch()`.
    pub fn pick(&mut self, cpu: u32) -> Option<TaskId> {
        let next = self.counted_pick(cpu, |kernel| kernel.pick_next(cpu));
        self.cpu_mut(cpu).next_idle = next.is_none() && !self.cpu(cpu).evicts;
        next
    }

    fn pick_next(&mut self, cpu: u32) -> Option<TaskId> {
        self.cpu_mut(cpu).locked = true;
        self.fair_touch(cpu);
        self.clear_resched(cpu);
        if std::mem::take(&mut self.cpu_mut(cpu).sleeps)
            && let Some(curr) = self.cpu(cpu).curr
        {
            if self.is_rt(curr) {
                self.rt_dequeue(curr);
            } else if self.fair.is_some() {
                self.fair_dequeue(curr, false);
            } else {
                self.dequeue_task_scx(curr, true);
            }
            self.task_mut(curr).state = State::Sleeping;
            // SAFETY: the field is the object's, which lives as long as the kernel; null where there is none.
            if let Some(sleeps) = unsafe { self.task(curr).fields.nvcsw.as_mut() } {
                *sleeps += 1;
            }
        }
        if let Some(task) = self.rt_pick(cpu) {
            return Some(task);
        }
        if self.evicts(cpu) {
            return None;
        }
        if self.fair.is_some() {
            self.spent += self.costs.fair_pick;
            self.fair_pick(cpu)
        } else {
            self.pick_task_scx(cpu)
        }
    }

    /// Whether the choice that a CPU has made is void, so that it has to choose again before it switches.
    pub fn chooses_anew(&mut self, cpu: u32) -> bool {
        std::mem::take(&mut self.cpu_mut(cpu).chooses_anew)
    }

    /// Second half: `put_prev_set_next_task()`.
    pub fn switch(&mut self, cpu: u32, next: Option<TaskId>) {
        let kind = if self.cpu(cpu).curr == next { Kind::Stay } else { Kind::Switch };
        self.waiting_tidy();
        self.count_pick(cpu, kind);
        self.counted(kind, |kernel| kernel.switch_to(cpu, next));
    }

    fn switch_to(&mut self, cpu: u32, next: Option<TaskId>) {
        let prev = self.cpu(cpu).curr;
        let evicts = std::mem::take(&mut self.cpu_mut(cpu).evicts);
        if prev != next {
            if self.fair.is_some() {
                self.spent += self.costs.fair_switch;
            }
            match prev {
                Some(task) if self.is_rt(task) => self.rt_put_prev(task),
                Some(task) if self.fair.is_some() => self.fair_put_prev(task),
                Some(task) => self.put_prev_task_scx(task, next.is_none()),
                None => self.scx_notify_idle(cpu, false),
            }
            match next {
                Some(task) => {
                    self.account_wait(task, false);
                    let llc = self.topo.llc_of(cpu);
                    let t = self.task_mut(task);
                    t.switches += 1;
                    t.llc_moves += u64::from(t.last_llc.replace(llc).is_some_and(|last| last != llc));
                    if self.is_rt(task) {
                        self.rt_set_next(cpu, task);
                    } else if self.fair.is_some() {
                        self.fair_set_next(cpu, task);
                    } else {
                        self.set_next_task_scx(cpu, task);
                    }
                }
                // The stopper runs, and what it moves is moved below.
                None if evicts => {}
                None => self.scx_notify_idle(cpu, true),
            }
            self.cpu_mut(cpu).curr = next;
            self.vacant.set(cpu, next.is_none());
        } else if next.is_none() {
            // pick_task_idle(): an idle CPU that was claimed and got nothing is idle again.
            if self.cpu(cpu).renotify { self.scx_notify_idle(cpu, true) } else { self.scx_refresh_idle(cpu, true) }
        }
        self.cpu_mut(cpu).next_idle = next.is_none();
        if next.is_none() && prev.is_some() {
            self.cpu_mut(cpu).idle_since = self.now;
        }
        self.cpu_mut(cpu).locked = false;
        self.fair_touch(cpu);
        if evicts && let Some(prev) = prev {
            self.move_elsewhere(prev);
            self.cpu_mut(cpu).next_idle = false;
            self.resched(cpu);
        }
        self.switched_immed(cpu);
        for (cpu, flags) in std::mem::take(&mut self.cpu_mut(cpu).kicks) {
            self.kick(cpu, flags);
        }
        self.scx_flush();
    }

    /// `sched_tick()`: the timer interrupt on a CPU that runs a task.
    pub fn tick(&mut self, cpu: u32) {
        self.wait_rq(cpu);
        self.this_cpu = cpu;
        let Some(curr) = self.cpu(cpu).curr else { return };
        if self.is_rt(curr) {
            self.update_curr_common(cpu);
            return;
        }
        if self.fair.is_some() {
            self.minds_lazy(cpu);
            self.spent += self.costs.fair_tick;
            return self.fair_tick(cpu);
        }
        self.count(Kind::Tick);
        self.counted(Kind::Tick, |kernel| {
            kernel.task_tick_scx(cpu, curr);
            kernel.scx_flush();
        });
    }

    /// `sched_yield()`; the caller calls the scheduler afterwards.
    pub fn yield_now(&mut self, cpu: u32) {
        self.wait_rq(cpu);
        let Some(curr) = self.cpu(cpu).curr else { return };
        if self.fair.is_some() {
            return self.fair_yield(cpu);
        }
        self.count(Kind::Yield);
        self.counted(Kind::Yield, |kernel| {
            kernel.yield_task_scx(curr);
            kernel.scx_flush();
        });
    }

    /// `yield_to()`: whether the class follows; if so the caller calls the scheduler. `None`: there was no point
    /// (`-ESRCH`).
    pub fn yield_to(&mut self, cpu: u32, to: TaskId) -> Option<bool> {
        self.wait_rq(cpu);
        self.wait_rq(self.task(to).cpu);
        let there = self.task(to).cpu;
        if self.cpu(cpu).nr_running == 1 && self.cpu(there).nr_running == 1 {
            return None;
        }
        let from = self.cpu(cpu).curr?;
        if self.is_rt(to) {
            return None;
        }
        if self.runs(to) || self.task(to).state != State::Runnable {
            return Some(false);
        }
        self.count(Kind::Yield);
        let followed = match self.fair {
            Some(_) => self.fair_yield_to(cpu, to),
            None => self.counted(Kind::Yield, |kernel| kernel.yield_to_task_scx(from, to)),
        };
        if followed && there != cpu {
            self.resched(there);
        }
        self.scx_flush();
        Some(followed)
    }

    /// `update_curr_common()`: charges the current task. Returns what it ran since it was charged last, ns.
    pub(super) fn update_curr_common(&mut self, cpu: u32) -> u64 {
        let clock = self.clock_task(cpu);
        let Some(curr) = self.cpu(cpu).curr else { return 0 };
        let task = self.task_mut(curr);
        let ran = clock.saturating_sub(task.exec_start);
        task.exec_start = task.exec_start.max(clock);
        task.sum_exec += ran;
        // SAFETY: the field is the object's, which lives as long as the kernel; null where there is none.
        if let Some(seen) = unsafe { task.fields.sum_exec.as_mut() } {
            *seen = task.sum_exec;
        }
        ran
    }

    /// Charges what runs on all CPUs up to now, so that `sum_exec` may be read.
    pub fn settle(&mut self) {
        for cpu in 0..self.topo.cpus() {
            if self.fair.is_some() {
                self.fair_update_curr(cpu);
            } else {
                self.update_curr_scx(cpu);
            }
        }
    }

    /// The root cgroup.
    pub const ROOT: GroupId = GroupId(0);
}
