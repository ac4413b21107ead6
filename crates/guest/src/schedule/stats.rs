//! Counters of the scheduler: the Rust side of `sched_interface.h`.

use serde::Serialize;

use super::skel::types::sched_stats;

/// Counters since the scheduler was loaded, and its view of the moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Stats {
    /// Tasks run on it; false: it stands by.
    pub attached: bool,
    /// Wake-ups to the previous vCPU while it was idle.
    pub wake_previous: u64,
    /// Wake-ups to another idle vCPU.
    pub wake_idle: u64,
    /// Of both: the host said that it runs at once.
    pub wake_instant: u64,
    /// Wake-ups to the queue of a vCPU that runs something.
    pub wake_queued: u64,
    /// A waking task took the vCPU from the running one.
    pub preempts: u64,
    /// Tasks that a vCPU took from another one's queue.
    pub takeovers: u64,
    /// Of those: the host held the other back, or it was parked.
    pub rescues: u64,
    /// Times that a vCPU was parked.
    pub parks: u64,
    /// Times that a vCPU was taken into use again.
    pub unparks: u64,
    /// Running tasks moved away from a parked vCPU.
    pub migrations: u64,
    /// vCPUs in use now.
    pub keep: u64,
    /// What the host entitles the guest to now, 1/1024 pCPU; `None` when it says nothing.
    pub entitlement: Option<u64>,
    /// The host's words are used.
    pub host_alive: bool,
    /// Share of the wanted time that the host withheld of late, 1/1024.
    pub stolen: u64,
    /// Runnable tasks.
    pub runnable: u64,
}

impl Stats {
    /// One line for the log.
    pub fn summary(&self) -> String {
        format!(
            "{} wake-ups to idle vCPUs ({} at once), {} to queues, {} take-overs ({} from vCPUs held back), parked {} times",
            self.wake_previous + self.wake_idle,
            self.wake_instant,
            self.wake_queued,
            self.takeovers,
            self.rescues,
            self.parks
        )
    }

    /// Copies the counters out of memory that BPF writes.
    pub(super) fn read(shared: &sched_stats, attached: bool) -> Stats {
        // SAFETY: plain integers of the object's own memory, read while BPF may write them; each is one aligned word.
        let now = unsafe { std::ptr::read_volatile(shared) };
        Stats {
            attached,
            wake_previous: now.wake_previous,
            wake_idle: now.wake_idle,
            wake_instant: now.wake_instant,
            wake_queued: now.wake_queued,
            preempts: now.preempts,
            takeovers: now.takeovers,
            rescues: now.rescues,
            parks: now.parks,
            unparks: now.unparks,
            migrations: now.migrations,
            keep: now.keep,
            entitlement: (now.entitlement != u64::MAX).then_some(now.entitlement),
            host_alive: now.host_alive != 0,
            stolen: now.stolen,
            runnable: now.runnable,
        }
    }
}
