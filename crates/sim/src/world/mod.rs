//! The world: a host, its guests, and time. A discrete-event simulation in nanoseconds.
//!
//! Everything that happens is an event in one heap, ordered by time and then by the order in which it was planned, so
//! that a seed has one trace. A machine's CPU is a *lane* (`lane`): it works off segments, is interrupted, switches. The
//! lanes of a guest move only while their vCPU's thread is in the guest (`kvm`).

mod act;
mod attach;
mod check;
mod hotplug;
mod irq;
mod kernel_mutex;
mod kvm;
mod lane;
mod machine;
mod mutex;
mod race;
mod rcu;
mod record;
mod spin;
mod steps;
mod vm;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::costs::Costs;
use crate::kernel::TaskId;
use crate::kernel::group::GroupId;
use crate::rng::Rng;
use crate::trace::{Recorder, What};

pub use act::Act;
pub use check::{Checks, Violation};
pub use irq::Irq;
pub use kvm::{Arch, Vm};
pub use machine::{Machine, MachineSpec, Policy, TaskState, Tunable};
pub use vm::VmSpec;

/// Number of a machine: 0 is the host, guest `i` is `i + 1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MachineId(pub u16);

/// The host.
pub const HOST: MachineId = MachineId(0);

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// A lane's segment is over, unless the lane has changed since (`turn`).
    Lane { m: MachineId, cpu: u32, turn: u32 },
    /// An interrupt comes to a CPU; `from`: the CPU that sent it.
    Irq { m: MachineId, cpu: u32, irq: Irq, from: Option<u32> },
    /// A timer tick is due, unless the CPU's tick was stopped since.
    Tick { m: MachineId, cpu: u32, turn: u32 },
    /// A task that was woken reaches the run queue.
    Activate { m: MachineId, task: TaskId, cpu: u32, selected: bool, waker: u32 },
    /// A BPF timer is due, unless it was started anew.
    BpfTimer { m: MachineId, timer: u32, cpu: u32, turn: u32 },
    /// The timer of a group's limit under EEVDF is due.
    FairBandwidth { m: MachineId, cpu: u32, group: GroupId, at: u64 },
    /// A wake-up whose waker has waited until the task was off its CPU.
    Wake { m: MachineId, task: TaskId, waker: u32, sync: bool },
    /// A task's timer is due.
    Sleep { m: MachineId, task: TaskId, turn: u32 },
    /// A task begins.
    Start { m: MachineId, task: TaskId },
    /// Something is done to the world: one of `acts`.
    Act(u32),
    /// The daemon's and the agents' work every 100 ms.
    Daemon,
    /// The watchdogs look.
    Watchdog,
    /// A CPU comes or goes.
    Hotplug { m: MachineId, cpu: u32, online: bool },
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Planned {
    at: u64,
    order: u64,
    event: Event,
}

impl Ord for Planned {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

impl PartialOrd for Planned {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// The world.
pub struct World {
    /// Time, ns.
    pub now: u64,
    planned: BinaryHeap<Reverse<Planned>>,
    order: u64,
    /// The host, then its guests.
    pub machines: Vec<Machine>,
    /// The guests as KVM sees them.
    pub vms: Vec<Vm>,
    rng: Rng,
    /// What things cost.
    costs: Costs,
    /// What must hold.
    pub checks: Checks,
    /// Whether a dispatch that finds nothing has dropped the run queue's lock on the way, as the kernel does for each
    /// task that it moves from another CPU: wake-ups get in before the CPU idles.
    pub dispatch_unlocks: bool,
    /// A digest of all that has happened.
    pub trace: u64,
    /// Events so far.
    pub events: u64,
    /// What of the world is not as it was asked for, in words.
    pub notes: Vec<String>,
    recorder: Option<Recorder>,
    acts: Vec<Act>,
    races: Option<race::Races>,
    /// Events on other stacks may be amid a borrow of this one: no borrow is the only one (`race`).
    _pinned: std::marker::PhantomPinned,
}

impl World {
    /// An empty world.
    pub fn new(seed: u64) -> Self {
        Self {
            now: 0,
            planned: BinaryHeap::new(),
            order: 0,
            machines: Vec::new(),
            vms: Vec::new(),
            rng: Rng::new(seed),
            costs: Costs::HARDWARE,
            checks: Checks::default(),
            dispatch_unlocks: false,
            trace: 0xcbf2_9ce4_8422_2325,
            events: 0,
            notes: Vec::new(),
            recorder: None,
            acts: Vec::new(),
            races: None,
            _pinned: std::marker::PhantomPinned,
        }
    }

    /// What things cost from here on.
    pub fn set_costs(&mut self, costs: Costs) {
        self.costs = costs;
        for machine in &mut self.machines {
            machine.kernel.costs = costs;
        }
    }

    /// What they cost now.
    pub fn costs(&self) -> Costs {
        self.costs
    }

    fn plan(&mut self, at: u64, event: Event) {
        debug_assert!(at >= self.now || self.races.is_some(), "{event:?} is planned for the past");
        let at = at.max(self.now);
        self.order += 1;
        self.planned.push(Reverse(Planned { at, order: self.order, event }));
    }

    /// Adds what happened to the digest.
    fn note(&mut self, what: u64, a: u64, b: u64) {
        for word in [self.now, what, a, b] {
            self.trace = (self.trace ^ word).wrapping_mul(0x0100_0000_01b3).rotate_left(23);
        }
    }

    /// Lets time pass until `end`, or until something that must hold does not.
    pub fn run(&mut self, end: u64) {
        if self.now == 0 {
            self.plan(0, Event::Daemon);
            self.plan(Self::WATCHDOG, Event::Watchdog);
        }
        if self.races.is_some() {
            self.run_races(end);
        }
        while let Some(Reverse(next)) = self.planned.peek().copied() {
            if next.at > end || self.stopped() {
                break;
            }
            self.planned.pop();
            self.now = next.at;
            self.events += 1;
            self.happen(next.event);
            self.check_queues();
        }
        if !self.stopped() {
            self.now = end;
        }
        for m in 0..self.machines.len() {
            self.machines[m].kernel.now = self.now;
            self.machines[m].kernel.settle();
        }
        self.check_end();
    }

    fn stopped(&self) -> bool {
        self.checks.stops() || self.machines.iter().any(|machine| machine.kernel.failed.is_some())
    }

    const WATCHDOG: u64 = 1_000_000_000;

    fn happen(&mut self, event: Event) {
        match event {
            Event::Lane { m, cpu, turn } => {
                if self.lane(m, cpu).turn == turn {
                    self.segment_over(m, cpu);
                }
            }
            Event::Irq { m, cpu, irq, from } if self.machines[m.0 as usize].kernel.online.has(cpu) => {
                self.interrupt(m, cpu, irq, from);
            }
            Event::Irq { m, irq, .. } => self.undelivered(m, irq),
            Event::Tick { m, cpu, turn } => {
                if self.lane(m, cpu).tick_turn == turn {
                    self.interrupt(m, cpu, Irq::Tick, None);
                }
            }
            Event::Activate { m, task, cpu, selected, waker } => self.activate(m, task, cpu, selected, waker),
            Event::Wake { m, task, waker, sync } => self.wake(m, waker, task, sync),
            Event::BpfTimer { m, timer, cpu, turn } => {
                if self.machines[m.0 as usize].bpf_timers.get(&timer) == Some(&turn) {
                    let cpu = self.cpu_or_other(m, cpu);
                    self.interrupt(m, cpu, Irq::BpfTimer(timer), None);
                }
            }
            Event::FairBandwidth { m, cpu, group, at } => {
                self.interrupt(m, cpu, Irq::FairBandwidth(group, at), None);
            }
            Event::Sleep { m, task, turn } => {
                if self.machines[m.0 as usize].tasks[task.0 as usize].timer_turn == turn {
                    let cpu = self.machines[m.0 as usize].kernel.task(task).cpu;
                    let (now, cpu) = (self.now, self.cpu_or_other(m, cpu));
                    // Late from here on, however long a vCPU takes to hear of its timer.
                    let state = self.state_mut(m, task);
                    state.timer_at = None;
                    state.woken_at.get_or_insert(now);
                    self.tell(m, cpu, What::Due(task));
                    self.interrupt(m, cpu, Irq::Sleep(task), None);
                }
            }
            Event::Hotplug { m, cpu, online } => self.hotplug(m, cpu, online),
            Event::Start { m, task } => self.wake(m, 0, task, false),
            Event::Act(index) => self.do_act(index),
            Event::Daemon => {
                self.daemon();
                self.plan(self.now + 100_000_000, Event::Daemon);
            }
            Event::Watchdog => {
                self.watchdog();
                self.plan(self.now + Self::WATCHDOG, Event::Watchdog);
            }
        }
    }
}
