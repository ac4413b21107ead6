//! Interrupts: their way to a CPU, and what their handlers do.

use super::lane::Segment;
use super::machine::Mode;
use super::{Event, HOST, MachineId, World};
use crate::costs;
use crate::kernel::TaskId;
use crate::kernel::group::GroupId;
use crate::trace::What;

/// An interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Irq {
    /// Call the scheduler.
    Resched,
    /// The kernel's tick.
    Tick,
    /// A BPF timer is due.
    BpfTimer(u32),
    /// The timer of a group's limit, and the time that it was set to.
    FairBandwidth(GroupId, u64),
    /// The timer of a task that sleeps is due.
    Sleep(TaskId),
    /// Tasks are on the CPU's list of those that were woken for it.
    WakeList,
    /// A function call, which the task that sent it waits for.
    Call(TaskId),
}

impl Irq {
    /// Whether a CPU's own timer brings it.
    pub(super) fn is_timer(self) -> bool {
        matches!(self, Self::Tick | Self::Sleep(_) | Self::BpfTimer(_))
    }
}

impl World {
    /// Sends an interrupt from one CPU of a machine to another.
    pub(super) fn send(&mut self, m: MachineId, from: u32, to: u32, irq: Irq) {
        let idle = self.curr(m, to).is_none();
        let way = if idle && m == HOST { self.costs.ipi_idle } else { self.costs.ipi };
        if m != HOST {
            // Without posted interrupts the sender leaves the guest for it.
            self.burden(m, from, self.costs.exit + self.costs.exit_work + self.costs.entry);
            self.exits_shortly(m, from);
        }
        self.plan(self.now + way, Event::Irq { m, cpu: to, irq, from: Some(from) });
    }

    /// An interrupt comes to a CPU: handled at once, or, where that is a vCPU outside the guest, when it enters.
    pub(super) fn interrupt(&mut self, m: MachineId, cpu: u32, irq: Irq, from: Option<u32>) {
        if m != HOST && !self.lane(m, cpu).on {
            return self.pend(m, cpu, irq, from);
        }
        if m != HOST {
            self.burden(m, cpu, self.costs.exit + self.costs.entry);
            self.exits_shortly(m, cpu);
        }
        self.pause(m, cpu);
        self.handle(m, cpu, irq);
        self.preempt_point(m, cpu);
    }

    /// The handler. The lane is paused.
    pub(super) fn handle(&mut self, m: MachineId, cpu: u32, irq: Irq) {
        self.tell(m, cpu, What::Interrupt(irq));
        self.note(2, u64::from(m.0) << 32 | u64::from(cpu), 0);
        let takes = if irq == Irq::Tick { self.costs.tick } else { self.costs.interrupt };
        self.burden(m, cpu, takes);
        let now = self.now;
        let lane = self.lane_mut(m, cpu);
        lane.in_irq = true;
        if irq.is_timer() {
            lane.in_timer = (takes, now);
        }
        match irq {
            // A CPU whose idle task was told to look for work does so; the flag is set already on all others.
            Irq::Resched => {}
            Irq::Tick => self.tick(m, cpu),
            Irq::BpfTimer(timer) => {
                self.enter(m, cpu);
                self.machines[m.0 as usize].kernel.bpf_timer(timer);
                self.leave(m, cpu);
            }
            Irq::FairBandwidth(group, at) => {
                self.enter(m, cpu);
                self.machines[m.0 as usize].kernel.fair_bandwidth_timer(group, at);
                self.leave(m, cpu);
            }
            Irq::Sleep(task) => self.wake(m, cpu, task, false),
            Irq::WakeList => self.take_wake_list(m, cpu),
            Irq::Call(sender) => self.answer(m, sender),
        }
        self.lane_mut(m, cpu).in_irq = false;
    }

    /// The tick, and the next one.
    fn tick(&mut self, m: MachineId, cpu: u32) {
        if self.curr(m, cpu).is_none() {
            self.lane_mut(m, cpu).ticks = false;
            return;
        }
        // A choice is made already: the run queue is locked, and the tick has come as late as it is unlocked.
        if !self.machines[m.0 as usize].kernel.cpu(cpu).locked {
            self.enter(m, cpu);
            self.tick_steal(m, cpu);
            self.machines[m.0 as usize].kernel.tick(cpu);
            self.leave(m, cpu);
            if self.preemptible(m, cpu) {
                self.quiescent(m, cpu);
            }
        }
        self.plan_tick(m, cpu);
    }

    /// Starts the tick of a CPU that stops to idle.
    pub(super) fn start_tick(&mut self, m: MachineId, cpu: u32) {
        if !self.lane(m, cpu).ticks {
            self.lane_mut(m, cpu).ticks = true;
            self.plan_tick(m, cpu);
        }
    }

    fn plan_tick(&mut self, m: MachineId, cpu: u32) {
        // Ticks of CPUs and machines are not in step: each has its place in the period.
        let place = u64::from(m.0) * 617_011 + u64::from(cpu) * 101_117;
        let place = place % costs::TICK_PERIOD;
        let passed = (self.now + costs::TICK_PERIOD - place) % costs::TICK_PERIOD;
        let lane = self.lane_mut(m, cpu);
        lane.tick_turn += 1;
        let turn = lane.tick_turn;
        let at = self.now + costs::TICK_PERIOD - passed;
        self.lane_mut(m, cpu).tick_at = at;
        self.plan(at, Event::Tick { m, cpu, turn });
    }

    /// Somebody has answered a broadcast.
    pub(super) fn answer(&mut self, m: MachineId, sender: TaskId) {
        let Mode::SpinsForAnswers(left) = self.state(m, sender).mode else { return };
        self.state_mut(m, sender).mode = Mode::SpinsForAnswers(left - 1);
        if left == 1 {
            self.spin_over(m, sender);
        }
    }

    /// First half of a wake-up, by code that runs on `by`: chooses the CPU.
    pub(super) fn wake(&mut self, m: MachineId, by: u32, task: TaskId, sync: bool) {
        let by = self.cpu_or_other(m, by);
        let now = self.now;
        self.state_mut(m, task).woken_in_irq = self.lane(m, by).in_irq;
        let home = self.machines[m.0 as usize].kernel.task(task).cpu;
        let at_home = self.machines[m.0 as usize].kernel.cpu(home);
        if (at_home.locked || at_home.sleeps) && at_home.curr == Some(task) {
            // p->on_cpu: it is about to leave its CPU, and the waker waits for that.
            self.machines[m.0 as usize].on_cpu[home as usize].push((task, by, sync));
            return;
        }
        self.enter(m, by);
        let selected = self.machines[m.0 as usize].kernel.wake_select(task, sync);
        self.burden(m, by, self.costs.wake);
        let spent = self.leave(m, by);
        let Some((cpu, selected)) = selected else { return };
        self.state_mut(m, task).woken_at.get_or_insert(now);
        let at = now + self.costs.wake_window + spent;
        self.lane_mut(m, by).wakes += 1;
        self.plan(at, Event::Activate { m, task, cpu, selected, waker: by });
    }

    /// Second half, `ttwu_queue()`: the task reaches the run queue, unless that is locked by a CPU that switches, or the
    /// list of those that its CPU is to take itself.
    pub(super) fn activate(&mut self, m: MachineId, task: TaskId, cpu: u32, selected: bool, waker: u32) {
        let began = waker;
        let waker = self.cpu_or_other(m, waker);
        self.wait_rq(m, cpu);
        let by = self.curr(m, waker);
        if self.machines[m.0 as usize].kernel.wakes_by_list(task, waker, cpu) {
            self.lane_mut(m, began).wakes -= 1;
            let moved = self.pause(m, waker);
            let machine = &mut self.machines[m.0 as usize];
            machine.kernel.set_ttwu_pending(cpu, true);
            machine.wake_lists[cpu as usize].push((task, selected, by));
            if machine.wake_lists[cpu as usize].len() == 1 {
                self.send(m, waker, cpu, Irq::WakeList);
            }
            return self.waker_goes_on(m, waker, moved);
        }
        let crosses = self.machines[m.0 as usize].kernel.cpu(cpu).crosses;
        let unlocked = crosses || (self.dispatch_unlocks && self.lane(m, cpu).segment == Segment::Switch(None));
        if self.machines[m.0 as usize].kernel.cpu(cpu).locked && !unlocked {
            self.machines[m.0 as usize].locked_out[cpu as usize].push((task, selected, waker));
            return;
        }
        self.lane_mut(m, began).wakes -= 1;
        // Code of the waker: its own lane pays, as long as it runs.
        let moved = self.pause(m, waker);
        self.enter(m, waker);
        self.do_activate(m, task, cpu, selected, by);
        if unlocked {
            self.machines[m.0 as usize].kernel.look_again(cpu);
        }
        self.leave(m, waker);
        self.waker_goes_on(m, waker, moved);
    }

    fn waker_goes_on(&mut self, m: MachineId, waker: u32, moved: bool) {
        if moved {
            self.preempt_point(m, waker);
            self.halt_if_idle(m, waker);
        } else if self.machines[m.0 as usize].kernel.cpu(waker).need_resched {
            // A vCPU that has left the guest meanwhile: it will look when it enters.
            self.pend(m, waker, Irq::Resched, Some(waker));
        }
    }

    /// `ttwu_do_activate()`, of a task that `by` has woken.
    fn do_activate(&mut self, m: MachineId, task: TaskId, cpu: u32, selected: bool, by: Option<TaskId>) {
        let in_irq = self.state(m, task).woken_in_irq;
        let kernel = &mut self.machines[m.0 as usize].kernel;
        let outer = kernel.in_irq;
        kernel.in_irq |= in_irq;
        kernel.wake_activate(task, cpu, selected);
        self.machines[m.0 as usize].kernel.in_irq = outer;
        self.note(3, u64::from(m.0) << 32 | u64::from(cpu), task.0.into());
        if self.recording() {
            let clock = self.clock(m, task);
            self.tell(m, cpu, What::Queued { task, clock, by });
        }
        if m == HOST {
            self.trace_wakeup(task);
            self.stop_poll(cpu);
        }
    }

    /// `sched_ttwu_pending()`: a CPU takes those that were woken for it. The lane is paused.
    fn take_wake_list(&mut self, m: MachineId, cpu: u32) {
        self.wait_rq(m, cpu);
        for (task, selected, by) in std::mem::take(&mut self.machines[m.0 as usize].wake_lists[cpu as usize]) {
            if self.machines[m.0 as usize].kernel.cpu(cpu).locked {
                // Interrupts are off between choice and switch: it comes right after that.
                self.lane_mut(m, cpu).wakes += 1;
                self.machines[m.0 as usize].locked_out[cpu as usize].push((task, selected, cpu));
                continue;
            }
            self.enter(m, cpu);
            self.do_activate(m, task, cpu, selected, by);
            self.leave(m, cpu);
        }
        self.machines[m.0 as usize].kernel.set_ttwu_pending(cpu, false);
    }

    /// A CPU goes: those that were woken for it are queued elsewhere.
    pub(super) fn leave_wake_list(&mut self, m: MachineId, cpu: u32) {
        for (task, selected, _) in std::mem::take(&mut self.machines[m.0 as usize].wake_lists[cpu as usize]) {
            self.lane_mut(m, 0).wakes += 1;
            self.plan(self.now, Event::Activate { m, task, cpu, selected, waker: 0 });
        }
        self.machines[m.0 as usize].kernel.set_ttwu_pending(cpu, false);
    }
}
