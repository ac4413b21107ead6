//! Events of several CPUs at once: each runs on a stack of its own, is left inside the schedulers' code where chance has
//! it, and goes on when chance has it; see `kernel::race` for the locks.
//!
//! Time stands still while events are left: one that begins while others are left is planned for at most `WINDOW` later
//! than the first of them. What one does, it does on its CPU alone, which is claimed until it is over.

use std::mem::ManuallyDrop;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};

use super::{Event, HOST, MachineId, World};
use crate::kernel::{Pause, Racing};

/// How long an operation may last while others run, ns. On a computer some hundred to some thousand.
const WINDOW: u64 = 3_000;
/// Events that are under way at once.
const AT_ONCE: usize = 4;
/// Of a stack, bytes.
const STACK: usize = 512 << 10;

/// An event that has begun and is left.
struct Begun {
    number: u32,
    at: u64,
    yielder: *const Yielder<(), Pause>,
    /// It changes machines as a whole: nothing else begins before it is over.
    alone: bool,
    /// It waits, and others have come so far since.
    waits: Option<u64>,
    /// Never dropped while it is left: BPF code cannot be unwound.
    run: ManuallyDrop<Coroutine<(), Pause, (), DefaultStack>>,
}

/// The races of a world.
pub(super) struct Races {
    pub(super) racing: Box<Racing>,
    /// CPUs that events under way run on: machine, CPU, event.
    claims: Vec<(MachineId, u32, u32)>,
    stacks: Vec<DefaultStack>,
    numbers: u32,
}

impl Event {
    /// Whether it changes machines as a whole, and is therefore done by itself.
    fn is_alone(&self) -> bool {
        matches!(self, Self::Act(_) | Self::Daemon | Self::Watchdog | Self::Hotplug { .. })
    }
}

impl World {
    /// Lets operations of different CPUs run at once; one access in `odds` to what they share is a place to change over.
    /// To be called when all machines are there.
    pub fn race(&mut self, odds: u32) {
        let seed = self.rng.next();
        let mut racing = Box::new(Racing::new(seed, odds.max(1).into()));
        let at: *mut Racing = &raw mut *racing;
        for machine in &mut self.machines {
            machine.kernel.race(at);
        }
        self.races = Some(Races { racing, claims: Vec::new(), stacks: Vec::new(), numbers: 0 });
    }

    /// How often one operation was left for others, and how many waits had to be ended by force.
    pub fn raced(&self) -> (u64, u64) {
        self.races.as_ref().map_or((0, 0), |races| (races.racing.taken, races.racing.forces))
    }

    /// As the loop of run().
    pub(super) fn run_races(&mut self, end: u64) {
        let world: *mut Self = self;
        let mut begun: Vec<Begun> = Vec::new();
        let mut progress = 0_u64;
        loop {
            // SAFETY: no event runs now. Those that are left hold borrows of the world on their stacks; World and Kernel
            // are !Unpin, so that none of all these is taken to be the only one.
            let w = unsafe { &mut *world };
            let ready: Vec<usize> =
                (0..begun.len()).filter(|i| begun[*i].waits.is_none_or(|since| since < progress)).collect();
            let begins = w.may_begin(end, &begun);
            let Some(races) = &mut w.races else { return };
            let choices = ready.len() as u64 + u64::from(begins);
            let at = if choices > 0 {
                let chosen = races.racing.rng.within(0, choices - 1) as usize;
                ready.get(chosen).copied()
            } else if begun.is_empty() {
                return;
            } else {
                races.racing.forced = true;
                Some(0)
            };
            let at = at.unwrap_or_else(|| {
                begun.push(w.begin_event(world));
                begun.len() - 1
            });
            let racing: *mut Racing = match &mut w.races {
                Some(races) => &raw mut *races.racing,
                None => return,
            };
            let one = &mut begun[at];
            // SAFETY: the address lives as long as the world.
            unsafe { ((*racing).me, (*racing).yielder) = (one.number, one.yielder) };
            let result = one.run.resume(());
            // SAFETY: as above.
            unsafe {
                one.yielder = (*racing).yielder;
                (*racing).me = 0;
            }
            match result {
                CoroutineResult::Yield(Pause::Waits) => one.waits = Some(progress),
                CoroutineResult::Yield(Pause::Gap) => {
                    one.waits = None;
                    progress += 1;
                }
                CoroutineResult::Return(()) => {
                    progress += 1;
                    let one = begun.remove(at);
                    // SAFETY: as at the loop's begin.
                    let w = unsafe { &mut *world };
                    w.end_event(one);
                    if begun.is_empty() {
                        w.check_queues();
                    }
                }
            }
        }
    }

    /// Whether the next event may begin beside those under way.
    fn may_begin(&self, end: u64, begun: &[Begun]) -> bool {
        let Some(std::cmp::Reverse(next)) = self.planned.peek() else { return false };
        if next.at > end || self.stopped() {
            return false;
        }
        let first = begun.iter().map(|one| one.at).min();
        let alone = next.event.is_alone() || begun.iter().any(|one| one.alone);
        first.is_none_or(|first| !alone && next.at <= first + WINDOW && begun.len() < AT_ONCE)
    }

    fn begin_event(&mut self, world: *mut Self) -> Begun {
        let std::cmp::Reverse(next) = self.planned.pop().expect("the caller has looked");
        self.now = self.now.max(next.at);
        self.events += 1;
        let now = self.now;
        let races = self.races.as_mut().expect("the caller has looked");
        races.numbers = races.numbers.wrapping_add(1).max(1);
        let number = races.numbers;
        let alone = next.event.is_alone();
        let racing: *mut Racing = &raw mut *races.racing;
        let stack = races.stacks.pop().unwrap_or_else(|| DefaultStack::new(STACK).expect("memory for another stack"));
        let run = Coroutine::with_stack(stack, move |yielder: &Yielder<(), Pause>, ()| {
            // SAFETY: both addresses live as long as run_races() does, which ends after its events; see there.
            let w = unsafe {
                (*racing).yielder = yielder;
                &mut *world
            };
            w.claim_event(next.event);
            w.happen(next.event);
        });
        Begun { number, at: now, yielder: std::ptr::null(), alone, waits: None, run: ManuallyDrop::new(run) }
    }

    fn end_event(&mut self, mut one: Begun) {
        // SAFETY: the coroutine is over, and is not used any more.
        let run = unsafe { ManuallyDrop::take(&mut one.run) };
        if let Some(races) = &mut self.races {
            races.claims.retain(|(.., number)| *number != one.number);
            races.stacks.push(run.into_stack());
        }
    }

    /// The event that runs now, where events race.
    fn racer(&self) -> Option<u32> {
        self.races.as_ref().map(|races| races.racing.me).filter(|me| *me != 0)
    }

    /// Leaves the event as long as something is in its way.
    fn wait(&mut self, blocked: impl Fn(&Self, u32) -> bool) {
        let Some(me) = self.racer() else { return };
        while blocked(self, me) {
            let Some(races) = &mut self.races else { return };
            if std::mem::take(&mut races.racing.forced) {
                races.racing.forces += 1;
                return;
            }
            let yielder = races.racing.yielder;
            // SAFETY: as in Kernel::leave_operation().
            unsafe { (*yielder).suspend(Pause::Waits) };
        }
    }

    fn is_claimed(&self, m: MachineId, cpu: u32, me: u32) -> bool {
        let claims = self.races.iter().flat_map(|races| &races.claims);
        claims.into_iter().any(|(of, at, number)| (*of, *at) == (m, cpu) && *number != me)
    }

    /// The CPU of the host that a vCPU's thread is on.
    fn below(&self, m: MachineId, vcpu: u32) -> (MachineId, u32) {
        (HOST, self.machines[0].kernel.task(self.thread_of(m, vcpu)).cpu)
    }

    /// Kernel code is about to run on a CPU, and on the host's that a vCPU is on while it is in the guest: nobody else's
    /// may.
    pub(super) fn claim(&mut self, m: MachineId, cpu: u32) {
        self.claim_all(|world| {
            let inside = m != HOST && world.lane(m, cpu).on;
            [Some((m, cpu)), inside.then(|| world.below(m, cpu))].into_iter().flatten().collect()
        });
    }

    fn claim_event(&mut self, event: Event) {
        self.claim_all(|world| world.cpus_of(event));
    }

    /// Waits until all of the CPUs are free, and claims them at once: one that held some of them and waited for others
    /// could wait for ever.
    fn claim_all(&mut self, cpus: impl Fn(&Self) -> Vec<(MachineId, u32)>) {
        self.wait(|world, me| cpus(world).iter().any(|(m, cpu)| world.is_claimed(*m, *cpu, me)));
        let Some(me) = self.racer() else { return };
        for (m, cpu) in cpus(self) {
            if let Some(races) = &mut self.races
                && !races.claims.contains(&(m, cpu, me))
            {
                races.claims.push((m, cpu, me));
            }
        }
    }

    /// The CPUs that an event works on: a vCPU together with the CPU that its thread is on, and the other way around.
    fn cpus_of(&self, event: Event) -> Vec<(MachineId, u32)> {
        let (m, cpu) = match event {
            Event::Lane { m, cpu, .. }
            | Event::Irq { m, cpu, .. }
            | Event::Tick { m, cpu, .. }
            | Event::BpfTimer { m, cpu, .. }
            | Event::FairBandwidth { m, cpu, .. } => (m, cpu),
            Event::Activate { m, waker, .. } | Event::Wake { m, waker, .. } => (m, waker),
            Event::Sleep { m, task, .. } => (m, self.machines[m.0 as usize].kernel.task(task).cpu),
            Event::Start { m, .. } => (m, 0),
            Event::Act(_) | Event::Daemon | Event::Watchdog | Event::Hotplug { .. } => return Vec::new(),
        };
        let cpu = self.cpu_or_other(m, cpu);
        let other = match m {
            HOST => self.curr(HOST, cpu).and_then(|task| self.vcpu_of(task)),
            _ => Some(self.below(m, cpu)),
        };
        // Who sends an interrupt to a vCPU that is halted wakes its thread, on its own CPU.
        let sender = match event {
            Event::Irq { from: Some(from), .. } if m != HOST => Some(self.below(m, from)),
            _ => None,
        };
        [Some((m, cpu)), other, sender].into_iter().flatten().collect()
    }

    /// Waits until nobody else's operation holds a run-queue lock.
    pub(super) fn wait_rq(&mut self, m: MachineId, cpu: u32) {
        self.wait(|world, _| world.machines[m.0 as usize].kernel.is_held(cpu));
    }
}
