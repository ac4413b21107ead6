//! What tasks do: small programs of steps, repeated for ever.

use crate::rng::Rng;

/// Nanoseconds in a microsecond, a millisecond, a second.
pub const US: u64 = 1_000;
/// See [`US`].
pub const MS: u64 = 1_000_000;
/// See [`US`].
pub const SEC: u64 = 1_000_000_000;

/// How long something takes, ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Time {
    /// Always so long.
    Fixed(u64),
    /// Any time between, each as likely.
    Within(u64, u64),
    /// Exponentially distributed, with this mean.
    Mean(u64),
}

impl Time {
    /// Draws one.
    pub fn draw(self, rng: &mut Rng) -> u64 {
        match self {
            Self::Fixed(ns) => ns,
            Self::Within(low, high) => rng.within(low, high),
            Self::Mean(mean) => rng.exponential(mean),
        }
    }
}

/// One step. Numbers of semaphores, locks and barriers are those of the task's machine; each exists once it is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Step {
    /// Works in user mode.
    Compute(Time),
    /// Works in the kernel, outside of any lock.
    System(Time),
    /// Sleeps until a timer fires.
    Sleep(Time),
    /// Sleeps until the clock is at the next multiple of a period, ns: a clock that ticks.
    Until(u64),
    /// Takes one from a semaphore, sleeping until there is one.
    Wait(u32),
    /// Gives one to a semaphore.
    Post(u32),
    /// The same, and the task is about to sleep: `WF_SYNC`.
    PostSync(u32),
    /// Gives one to a semaphore, to whoever waits the shortest: one of those who are woken by a write to a file that they poll
    /// (`add_wait_queue()`).
    PostNewest(u32),
    /// Puts the task on the list of those who want to be served at a desk.
    Enlist(u32),
    /// Wakes whoever has stood longest on that list (`futex()`); nothing where nobody does.
    Serve(u32),
    /// Sleeps until the task is served, unless it has been already: a look in user mode then.
    Served,
    /// Takes a spinning lock of the kernel: first come, first served, as qspinlock.
    Lock(u32),
    /// Works inside the lock.
    Hold(Time),
    /// Gives the lock back.
    Unlock(u32),
    /// Takes the lock of a queue of sleepers, a semaphore's: whoever wakes somebody there holds it meanwhile, and who was
    /// woken takes it once more; whoever finds nobody, or has not slept, leaves it alone (`prepare_to_wait_event()`,
    /// `__wake_up_sync_key()`).
    LockQueue(u32, u32),
    /// Gives it back, where the task has it.
    UnlockQueue(u32),
    /// Takes a lock of user mode: spins for it a while, then sleeps on a futex.
    Mutex(u32),
    /// The same, one of several locks: the number given plus that of the CPU where the task runs.
    CpuMutex(u32),
    /// Gives back the lock of user mode that it took last.
    Release,
    /// Takes a mutex of the kernel: spins for it while its owner runs, then sleeps.
    KernelMutex(u32),
    /// Gives it back.
    KernelRelease(u32),
    /// Spins in user mode until so many tasks have come to the barrier.
    Barrier(u32, u32),
    /// Interrupts all other CPUs of the machine and spins until all have answered, as a TLB shootdown does.
    Broadcast,
    /// The same, but only those CPUs that run threads of the task's process: `membarrier()`.
    Membarrier,
    /// Waits for an RCU grace period: `synchronize_rcu()`.
    Synchronize,
    /// `sched_yield()`.
    Yield,
    /// An operation begins whose time is told: what lies between two of them does not count.
    Begin,
    /// One operation is done: throughput is counted in these.
    Done,
    /// The task ends.
    Exit,
    /// A vCPU's thread: runs the guest.
    Guest,
}
