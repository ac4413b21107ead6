//! One CPU of a machine at work: segments of time, pauses, and calls of the scheduler.

use super::{Event, HOST, Irq, MachineId, World};
use crate::kernel::{Effect, TaskId};
use crate::trace::What;

/// No end of its own.
pub(super) const ENDLESS: u64 = u64::MAX;

/// What a lane does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Segment {
    /// Nothing runs.
    Idle,
    /// The current task works off its step.
    Task,
    /// The scheduler has chosen and is about to switch.
    Switch(Option<TaskId>),
}

/// One CPU.
pub(super) struct Lane {
    /// Raised by each change, so that an outdated end of a segment is known.
    pub(super) turn: u32,
    /// Whether it moves: a guest's CPU only inside the guest.
    pub(super) on: bool,
    pub(super) since: u64,
    /// Of the segment, ns.
    pub(super) left: u64,
    pub(super) segment: Segment,
    /// Interrupts that wait until the guest's CPU moves.
    pub(super) pending: Vec<Irq>,
    pub(super) tick_turn: u32,
    /// When the next tick is due, ns, while it ticks.
    pub(super) tick_at: u64,
    pub(super) ticks: bool,
    /// A guest's CPU: how much longer its timer's interrupt takes, for which the timer is not set anew yet, ns; and when
    /// that timer was due.
    pub(super) in_timer: (u64, u64),
    /// Inside an interrupt: the scheduler is called when it ends.
    pub(super) in_irq: bool,
    /// The process whose address space it has loaded, by its number.
    pub(super) space: Option<i32>,
    /// Wake-ups that it has begun and that have not reached a run queue: the handler of an idle CPU lasts as long.
    pub(super) wakes: u32,
}

impl Lane {
    pub(super) fn new(on: bool) -> Self {
        Self {
            turn: 0,
            on,
            since: 0,
            left: ENDLESS,
            segment: Segment::Idle,
            pending: Vec::new(),
            tick_turn: 0,
            tick_at: 0,
            ticks: false,
            in_timer: (0, 0),
            in_irq: false,
            space: None,
            wakes: 0,
        }
    }
}

impl World {
    pub(super) fn lane(&self, m: MachineId, cpu: u32) -> &Lane {
        &self.machines[m.0 as usize].lanes[cpu as usize]
    }

    pub(super) fn lane_mut(&mut self, m: MachineId, cpu: u32) -> &mut Lane {
        &mut self.machines[m.0 as usize].lanes[cpu as usize]
    }

    /// Stops the lane's segment where it is. Returns whether it moved.
    pub(super) fn pause(&mut self, m: MachineId, cpu: u32) -> bool {
        let now = self.now;
        if m == HOST {
            self.guest_exit(cpu);
        }
        let lane = self.lane_mut(m, cpu);
        if !lane.on {
            return false;
        }
        let moved = now.saturating_sub(lane.since);
        if lane.left != ENDLESS {
            lane.left -= lane.left.min(moved);
        }
        lane.in_timer.0 = lane.in_timer.0.saturating_sub(moved);
        lane.since = now;
        lane.turn += 1;
        true
    }

    /// Goes on with the segment.
    pub(super) fn resume(&mut self, m: MachineId, cpu: u32) {
        let now = self.now;
        let lane = self.lane_mut(m, cpu);
        if !lane.on {
            return;
        }
        lane.since = now;
        lane.turn += 1;
        if lane.left != ENDLESS {
            let (at, turn) = (now + lane.left, lane.turn);
            self.plan(at, Event::Lane { m, cpu, turn });
        }
    }

    /// The lane works so much longer on what it does: overheads are paid by whoever runs.
    pub(super) fn burden(&mut self, m: MachineId, cpu: u32, ns: u64) {
        let lane = self.lane_mut(m, cpu);
        if lane.left != ENDLESS && lane.segment != Segment::Idle {
            lane.left += ns;
        }
    }

    /// Kernel code begins to run on a CPU.
    pub(super) fn enter(&mut self, m: MachineId, cpu: u32) {
        self.claim(m, cpu);
        let now = self.now;
        let steal = self.steal_of(m, cpu);
        let in_irq = self.lane(m, cpu).in_irq;
        let kernel = &mut self.machines[m.0 as usize].kernel;
        kernel.now = now;
        kernel.this_cpu = cpu;
        kernel.in_irq = in_irq;
        kernel.cpus[cpu as usize].steal = steal;
    }

    /// It has run: what it asks for is planned, what it took is paid on that CPU.
    pub(super) fn leave(&mut self, m: MachineId, cpu: u32) -> u64 {
        let kernel = &mut self.machines[m.0 as usize].kernel;
        let spent = kernel.take_spent();
        for effect in std::mem::take(&mut kernel.out) {
            match effect {
                Effect::Resched { cpu: to } if to == cpu => {}
                Effect::Resched { cpu: to } => self.send(m, cpu, to, Irq::Resched),
                Effect::BpfTimer { timer, at, cpu } => {
                    let turn = self.machines[m.0 as usize].bpf_timers.entry(timer).or_default();
                    *turn += 1;
                    let turn = *turn;
                    self.plan(at.max(self.now + 1), Event::BpfTimer { m, timer, cpu, turn });
                }
                Effect::FairBandwidth { group, at } => {
                    self.plan(at.max(self.now + 1), Event::FairBandwidth { m, cpu, group, at });
                }
            }
        }
        self.burden(m, cpu, spent);
        spent
    }

    /// Calls the scheduler if it is to be called and may be. The lane is paused, and goes on afterwards.
    pub(super) fn preempt_point(&mut self, m: MachineId, cpu: u32) {
        if self.curr(m, cpu).is_some_and(|task| self.state(m, task).in_user()) {
            self.machines[m.0 as usize].kernel.minds_lazy(cpu);
        }
        let needs = self.machines[m.0 as usize].kernel.cpu(cpu).need_resched;
        if needs && !matches!(self.lane(m, cpu).segment, Segment::Switch(_)) && self.preemptible(m, cpu) {
            self.schedule(m, cpu);
        } else if let Some(task) = self.curr(m, cpu).filter(|task| needs && self.spins_for_owner(m, *task)) {
            self.looks_again(m, task);
        } else {
            self.resume(m, cpu);
        }
    }

    /// First half of `schedule()`: chooses, and holds the run queue for as long as that takes. The lane is paused.
    pub(super) fn schedule(&mut self, m: MachineId, cpu: u32) {
        if let Some(task) = self.machines[m.0 as usize].kernel.cpu(cpu).curr {
            let left = self.lane(m, cpu).left;
            self.machines[m.0 as usize].tasks[task.0 as usize].left = left;
        }
        self.wait_rq(m, cpu);
        self.enter(m, cpu);
        let next = self.machines[m.0 as usize].kernel.pick(cpu);
        self.lane_mut(m, cpu).left = ENDLESS;
        let spent = self.leave(m, cpu);
        let left = self.costs.schedule + spent;
        let lane = self.lane_mut(m, cpu);
        lane.segment = Segment::Switch(next);
        lane.left = left;
        self.resume(m, cpu);
    }

    /// Second half: switches.
    fn switch(&mut self, m: MachineId, cpu: u32, next: Option<TaskId>) {
        self.pause(m, cpu);
        self.wait_rq(m, cpu);
        self.enter(m, cpu);
        let kernel = &mut self.machines[m.0 as usize].kernel;
        let next = if kernel.chooses_anew(cpu) { kernel.pick(cpu) } else { next };
        let prev = self.machines[m.0 as usize].kernel.cpu(cpu).curr;
        let gone = prev.is_some_and(|task| !self.machines[m.0 as usize].is_runnable(task));
        if prev != next {
            self.before_switch(m, cpu, prev, next);
        }
        if let Some((guest, vcpu)) = prev.filter(|_| m == HOST).and_then(|task| self.vcpu_of(task)) {
            self.set_vcpu_timer(guest, vcpu);
        }
        self.machines[m.0 as usize].kernel.switch(cpu, next);
        self.note(1, u64::from(m.0) << 32 | u64::from(cpu), next.map_or(u64::MAX, |task| task.0.into()));
        if prev != next && self.recording() {
            let one = |world: &mut Self, task: Option<TaskId>| task.map(|task| (task, world.clock(m, task)));
            let (prev, next) = (one(self, prev), one(self, next));
            self.tell(m, cpu, What::Switch { prev, next, waits: !gone });
        }
        let spent = self.leave(m, cpu);
        let left = next.map_or(ENDLESS, |task| self.machines[m.0 as usize].tasks[task.0 as usize].left);
        let lane = self.lane_mut(m, cpu);
        lane.segment = if next.is_some() { Segment::Task } else { Segment::Idle };
        lane.left = left;
        if prev != next {
            self.after_switch(m, cpu, prev, next, gone);
            self.burden(m, cpu, self.costs.switch + spent);
        } else {
            self.burden(m, cpu, spent);
        }
        self.quiescent(m, cpu);
        self.flush_locked(m, cpu);
        if matches!(self.lane(m, cpu).segment, Segment::Switch(_)) {
            return;
        }
        let needs = self.machines[m.0 as usize].kernel.cpu(cpu).need_resched;
        if needs {
            return self.preempt_point(m, cpu);
        }
        match next {
            Some(task) => {
                self.begin(m, cpu, task);
            }
            None => self.idle(m, cpu),
        }
    }

    /// Before a switch: what is to be checked.
    fn before_switch(&mut self, m: MachineId, cpu: u32, prev: Option<TaskId>, next: Option<TaskId>) {
        if prev.is_none() {
            self.check_busy(m, cpu);
        }
        if let Some(task) = next {
            self.check_start(m, task, cpu);
        }
    }

    /// After a switch: who watches it, and the tick.
    fn after_switch(&mut self, m: MachineId, cpu: u32, prev: Option<TaskId>, next: Option<TaskId>, gone: bool) {
        if let Some(next) = next {
            self.start_tick(m, cpu);
            let space = self.machines[m.0 as usize].kernel.task(next).tgid;
            if self.lane_mut(m, cpu).space.replace(space) != Some(space) && prev.is_some() && m != HOST {
                self.loses(m, cpu, self.costs.address_space);
            }
        }
        match prev {
            Some(task) => self.owner_leaves(m, task),
            None => {
                self.burden(m, cpu, self.costs.idle);
                if m != HOST {
                    // It halted, and comes from its hypervisor.
                    self.forgets(m, cpu);
                }
            }
        }
        if let Some(task) = prev.filter(|task| gone && self.state(m, *task).exits) {
            self.ended(m, task);
        }
        if m == HOST {
            self.machines[0].kernel.probe_switch(prev, next, gone);
            self.vcpus_switch(prev, next, gone);
            let vcpus = [prev, next].into_iter().flatten().filter(|task| self.vcpu_of(*task).is_some()).count();
            self.burden(m, cpu, vcpus as u64 * self.costs.vcpu_switch);
        }
    }

    /// A lane has worked off its segment.
    pub(super) fn segment_over(&mut self, m: MachineId, cpu: u32) {
        match self.lane(m, cpu).segment {
            Segment::Idle => {}
            Segment::Switch(next) => self.switch(m, cpu, next),
            Segment::Task => {
                self.pause(m, cpu);
                self.step_over(m, cpu);
            }
        }
    }

    /// Nothing is to run. The host's CPU waits for an interrupt, the guest's halts.
    fn idle(&mut self, m: MachineId, cpu: u32) {
        // tick_nohz_idle_stop_tick().
        let lane = self.lane_mut(m, cpu);
        lane.tick_turn += 1;
        lane.ticks = false;
        self.halt_if_idle(m, cpu);
    }

    /// A guest's CPU that is inside and has nothing to do halts.
    pub(super) fn halt_if_idle(&mut self, m: MachineId, cpu: u32) {
        let lane = self.lane(m, cpu);
        if m != HOST && lane.segment == Segment::Idle && lane.on && lane.wakes == 0 {
            self.guest_idles(m, cpu);
        }
    }

    /// What waited for the run-queue lock of a CPU that has switched. It is work of the wakers' CPUs: where operations
    /// race, it is done when those are free.
    fn flush_locked(&mut self, m: MachineId, cpu: u32) {
        let (now, races) = (self.now, self.races.is_some());
        for (task, waker, sync) in std::mem::take(&mut self.machines[m.0 as usize].on_cpu[cpu as usize]) {
            if races {
                self.plan(now, Event::Wake { m, task, waker, sync });
            } else {
                self.wake(m, waker, task, sync);
            }
        }
        for (task, selected, waker) in std::mem::take(&mut self.machines[m.0 as usize].locked_out[cpu as usize]) {
            if races {
                self.plan(now, Event::Activate { m, task, cpu, selected, waker });
            } else {
                self.activate(m, task, cpu, selected, waker);
            }
        }
    }
}
