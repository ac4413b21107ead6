//! Operations of several CPUs at once: where one is left for another, and who waits for whom.
//!
//! A world that races (`World::race`) lets each event run on a stack of its own. Inside BPF code, before each access to
//! what CPUs share, chance decides whether it goes on or is left for what other CPUs do meanwhile. Run-queue locks exclude
//! as they do in the kernel: an operation holds that of its CPU, whoever needs it waits, and a dispatch that moves a task
//! of another CPU gives up its own for that time.

use corosensei::Yielder;

use super::counts::Kind;
use super::scx::ScxOperation;
use super::{Effect, Kernel};
use crate::native::{Context, TaskPtr};
use crate::rng::Rng;

/// Why an event is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pause {
    /// By chance.
    Gap,
    /// It waits for a lock, or for a CPU.
    Waits,
}

/// What the machines of a world share while they race.
pub(crate) struct Racing {
    pub rng: Rng,
    /// One gap in so many is taken.
    pub odds: u64,
    /// The event that runs now, numbered from 1; 0: none.
    pub me: u32,
    /// How it is left.
    pub yielder: *const Yielder<(), Pause>,
    /// All wait for one another, which no kernel's locks do: the next wait is over at once.
    pub forced: bool,
    /// Gaps that were taken.
    pub taken: u64,
    /// Waits that were ended by force: the simulator's locks were taken in an order that the kernel's are not.
    pub forces: u64,
}

impl Racing {
    pub(crate) fn new(seed: u64, odds: u64) -> Self {
        Self {
            rng: Rng::new(seed ^ 0x7ace),
            odds,
            me: 0,
            yielder: std::ptr::null(),
            forced: false,
            taken: 0,
            forces: 0,
        }
    }
}

/// What the kernel keeps of the operation that runs.
struct Operation {
    context: (*mut std::ffi::c_void, u64, crate::native::Done, u32, TaskPtr, [TaskPtr; 2]),
    scx: ScxOperation,
    this_cpu: u32,
    in_irq: bool,
    kind: Kind,
    spent: u64,
    deferred: bool,
    out: Vec<Effect>,
}

impl Kernel {
    /// The machine races from here on.
    pub(crate) fn race(&mut self, racing: *mut Racing) {
        self.racing = racing;
        self.holders = vec![0; self.cpus.len()];
        // SAFETY: the object lives as long as the kernel, and nobody runs it now.
        unsafe { (*self.context()).races = u32::from(!racing.is_null()) }
    }

    /// `None`: nothing is left for anything else.
    #[expect(clippy::mut_from_ref, reason = "it lies behind a pointer, not in the kernel")]
    fn racing(&self) -> Option<&mut Racing> {
        // SAFETY: null, or the address that World::race() has made, which lives as long as the world; whoever borrows it
        // lets go before anybody else may run.
        unsafe { self.racing.as_mut() }.filter(|racing| racing.me != 0)
    }

    /// BPF code is about to touch what CPUs share.
    pub(crate) fn gap(&mut self) {
        let Some(racing) = self.racing() else { return };
        if racing.rng.within(1, racing.odds) == 1 {
            racing.taken += 1;
            self.leave_operation(Pause::Gap);
        }
    }

    /// Others run; then the operation goes on as it was.
    fn leave_operation(&mut self, pause: Pause) {
        let Some(racing) = self.racing() else { return };
        let (me, yielder) = (racing.me, racing.yielder);
        let operation = self.save();
        // SAFETY: the yielder is that of the event that runs, on whose stack we are. Everybody who borrows this kernel or
        // its world runs on such a stack as well, and both are !Unpin: no borrow of them is taken to be the only one.
        unsafe { (*yielder).suspend(pause) };
        self.restore(operation);
        debug_assert_eq!(self.racing().map(|racing| racing.me), Some(me));
    }

    /// Waits until nobody else holds a CPU's run-queue lock.
    pub(super) fn wait_rq(&mut self, cpu: u32) {
        self.wait(|kernel| kernel.is_held(cpu));
    }

    fn wait(&mut self, blocked: impl Fn(&Self) -> bool) {
        while blocked(self) {
            let Some(racing) = self.racing() else { return };
            if std::mem::take(&mut racing.forced) {
                racing.forces += 1;
                return;
            }
            self.leave_operation(Pause::Waits);
        }
    }

    /// Whether another event's operation holds a CPU's run-queue lock.
    pub(crate) fn is_held(&self, cpu: u32) -> bool {
        self.racing().is_some_and(|racing| {
            !matches!(self.holders[cpu as usize], 0 | u32::MAX) && self.holders[cpu as usize] != racing.me
        })
    }

    /// Takes the run-queue lock for an operation. Whether it is to be given back.
    pub(super) fn hold(&mut self, cpu: Option<u32>) -> bool {
        let Some(cpu) = cpu else { return false };
        self.wait_rq(cpu);
        let Some(me) = self.racing().map(|racing| racing.me) else { return false };
        std::mem::replace(&mut self.holders[cpu as usize], me) != me
    }

    pub(super) fn release(&mut self, cpu: Option<u32>, held: bool) {
        if let Some(cpu) = cpu.filter(|_| held) {
            self.holders[cpu as usize] = 0;
        }
    }

    /// `switch_rq_lock()` and the like: an operation needs the lock of another CPU, and gives up its own for that time.
    /// Whoever calls looks again at all that it knows. Whether others may have run.
    pub(super) fn cross(&mut self, others: &[u32]) -> bool {
        let Some(me) = self.racing().map(|racing| racing.me) else { return false };
        let own = self.scx_locked().filter(|cpu| self.holders[*cpu as usize] == me);
        if others.iter().all(|cpu| Some(*cpu) == own) {
            return false;
        }
        if let Some(own) = own {
            self.holders[own as usize] = 0;
            self.cpu_mut(own).crosses = true;
        }
        self.gap();
        self.wait(|kernel| others.iter().chain(&own).any(|cpu| kernel.is_held(*cpu)));
        if let Some(own) = own {
            self.holders[own as usize] = me;
            self.cpu_mut(own).crosses = false;
        }
        true
    }

    fn context(&self) -> *mut Context {
        self.scx_context()
    }

    fn save(&mut self) -> Operation {
        let at = self.context();
        // SAFETY: the context lives as long as the object.
        let context = unsafe {
            let c = &mut *at;
            (c.machine, c.now, std::mem::take(&mut c.done), c.cpu, c.current, c.subjects)
        };
        Operation {
            context,
            scx: self.scx_save(),
            this_cpu: self.this_cpu,
            in_irq: self.in_irq,
            kind: self.counts.kind(Kind::Other),
            spent: std::mem::take(&mut self.spent),
            deferred: std::mem::take(&mut self.deferred),
            out: std::mem::take(&mut self.out),
        }
    }

    fn restore(&mut self, operation: Operation) {
        let Operation { context, scx, this_cpu, in_irq, kind, spent, deferred, out } = operation;
        let at = self.context();
        // SAFETY: as in save().
        unsafe {
            let c = &mut *at;
            (c.machine, c.now, c.done, c.cpu, c.current, c.subjects) = context;
        }
        self.scx_restore(scx);
        (self.this_cpu, self.in_irq, self.spent, self.out) = (this_cpu, in_irq, spent, out);
        self.deferred = deferred;
        self.counts.kind(kind);
    }
}
