//! What the scheduler's code does for each kind of event: operations, helpers, look-ups, atomics.

use super::Kernel;

/// What the kernel was at when it called the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A task wakes.
    Wake,
    /// One task makes way for another, or a CPU begins or ends to idle.
    Switch,
    /// The scheduler was called, and the one that ran goes on.
    Stay,
    /// A CPU tells that it idles, or does no more: a part of a switch, told apart.
    Idle,
    /// The timer's tick.
    Tick,
    /// A yield, directed or not, and what traps a spinning guest.
    Yield,
    /// A BPF timer.
    Timer,
    /// An interrupt that a CPU sends to itself since BPF has asked for what must wait until interrupts are on (irq_work).
    Deferred,
    /// Loading, new tasks, weights: nothing that goes on.
    Other,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 9] = [
        Self::Wake,
        Self::Switch,
        Self::Stay,
        Self::Idle,
        Self::Tick,
        Self::Yield,
        Self::Timer,
        Self::Deferred,
        Self::Other,
    ];
}

/// Sums over events of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Count {
    /// Events.
    pub events: u64,
    /// Calls of operations and of programs on tracepoints.
    pub operations: u64,
    /// Calls of helpers and kernel functions out of them, look-ups not among them.
    pub helpers: u64,
    /// Look-ups in maps and in storages of tasks and cgroups.
    pub lookups: u64,
    /// Atomic operations on shared memory.
    pub atomics: u64,
    /// Of the look-ups, those that are none on a real kernel: the verifier puts instructions in their place.
    pub inlined: u64,
    /// Of the atomics, those on what is not one CPU's or task's own; counted of the guest's scheduler.
    pub shared: u64,
}

impl Count {
    /// One of the sums for each event.
    pub fn per_event(&self, sum: u64) -> f64 {
        sum as f64 / self.events.max(1) as f64
    }

    fn add(&mut self, other: Self) {
        self.operations += other.operations;
        self.helpers += other.helpers;
        self.lookups += other.lookups;
        self.atomics += other.atomics;
        self.inlined += other.inlined;
        self.shared += other.shared;
    }

    /// Where operations race, what others were counted for meanwhile may be missing in either.
    fn since(self, before: Self) -> Self {
        Self {
            events: 0,
            operations: self.operations.saturating_sub(before.operations),
            helpers: self.helpers.saturating_sub(before.helpers),
            lookups: self.lookups.saturating_sub(before.lookups),
            atomics: self.atomics.saturating_sub(before.atomics),
            inlined: self.inlined.saturating_sub(before.inlined),
            shared: self.shared.saturating_sub(before.shared),
        }
    }
}

impl std::iter::Sum for Count {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::default(), |mut sum, count| {
            sum.add(count);
            sum.events += count.events;
            sum
        })
    }
}

/// The sums of a machine.
#[derive(Clone, Debug)]
pub struct Counts {
    of: [Count; Kind::ALL.len()],
    now: Kind,
    /// What the choice of a CPU's next task took, until it is known whether it switches.
    pub(super) picks: Vec<Count>,
}

impl Counts {
    pub(super) fn new(cpus: u32) -> Self {
        Self { of: Default::default(), now: Kind::Other, picks: vec![Count::default(); cpus as usize] }
    }

    /// The sums of one kind.
    pub fn of(&self, kind: Kind) -> Count {
        self.of[kind as usize]
    }

    /// What is counted from here on is of this kind; what it was of.
    pub(super) fn kind(&mut self, kind: Kind) -> Kind {
        std::mem::replace(&mut self.now, kind)
    }

    /// What it is at.
    pub(super) fn now(&self) -> Kind {
        self.now
    }

    /// A call of the scheduler's code has done so much.
    pub(super) fn add(&mut self, what: Count) {
        self.of[self.now as usize].add(what);
    }
}

impl Kernel {
    /// Counts what the scheduler does meanwhile as of this kind.
    pub(super) fn counted<R>(&mut self, kind: Kind, what: impl FnOnce(&mut Self) -> R) -> R {
        let outer = std::mem::replace(&mut self.counts.now, kind);
        let result = what(self);
        self.counts.now = outer;
        result
    }

    /// An event of this kind has happened.
    pub(super) fn count(&mut self, kind: Kind) {
        self.counts.of[kind as usize].events += 1;
    }

    /// The choice of a CPU's next task: counted when it is known what comes of it.
    pub(super) fn counted_pick<R>(&mut self, cpu: u32, pick: impl FnOnce(&mut Self) -> R) -> R {
        let before = self.counts.of(Kind::Switch);
        let result = self.counted(Kind::Switch, pick);
        let took = self.counts.of(Kind::Switch).since(before);
        self.counts.of[Kind::Switch as usize] = before;
        self.counts.picks[cpu as usize].add(took);
        result
    }

    /// It came to this.
    pub(super) fn count_pick(&mut self, cpu: u32, kind: Kind) {
        let took = std::mem::take(&mut self.counts.picks[cpu as usize]);
        self.counts.of[kind as usize].add(took);
        self.count(kind);
    }
}
