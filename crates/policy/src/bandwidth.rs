//! Limits of CPU time: native bindings of `bandwidth.h`. Times are nanoseconds.

/// A group's limit and its pool (`struct entrain_bw`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Bandwidth {
    /// What the group may have each period; 0: no limit was set yet.
    pub quota: u64,
    /// How long a period is, 1 ms to 1 s.
    pub period: u64,
    /// What may be saved beyond the quota, at most as much again.
    pub burst: u64,
    /// When the current period began.
    pub start: u64,
    /// What CPUs may still take; negative: a debt.
    pub pool: i64,
}

mod ffi {
    use super::Bandwidth;
    unsafe extern "C" {
        pub(super) safe fn entrain_n_bw_set(bw: &mut Bandwidth, quota: u64, period: u64, burst: u64, now: u64);
        pub(super) safe fn entrain_n_bw_refill(bw: &mut Bandwidth, now: u64);
        pub(super) safe fn entrain_n_bw_due(bw: &Bandwidth, now: u64) -> u64;
        pub(super) safe fn entrain_n_bw_take(bw: &mut Bandwidth, want: u64) -> u64;
        pub(super) safe fn entrain_n_bw_give(bw: &mut Bandwidth, left: i64);
        pub(super) safe fn entrain_n_bw_keep(quota: u64, cpus: u32) -> u64;
        pub(super) safe fn entrain_n_bw_turn(mean: u64, ran: u64) -> u64;
        pub(super) safe fn entrain_n_bw_admits(pool: i64, turn: u64) -> u64;
        pub(super) safe fn entrain_n_bw_place(now: u64, ahead: i64) -> u64;
    }
}

impl Bandwidth {
    /// Most that the pool holds: the quota and the burst.
    pub fn cap(&self) -> i64 {
        (self.quota + self.burst) as i64
    }

    /// Sets the limit; values beyond the kernel's bounds are brought within them.
    pub fn set(&mut self, quota: u64, period: u64, burst: u64, now: u64) {
        ffi::entrain_n_bw_set(self, quota, period, burst, now);
    }

    /// Fills the pool with what the periods since the last time bring.
    pub fn refill(&mut self, now: u64) {
        ffi::entrain_n_bw_refill(self, now);
    }

    /// Until the next period begins; 0: it has.
    pub fn due(&self, now: u64) -> u64 {
        ffi::entrain_n_bw_due(self, now)
    }

    /// A CPU takes up to `want`. Returns what it gets.
    pub fn take(&mut self, want: u64) -> u64 {
        ffi::entrain_n_bw_take(self, want)
    }

    /// A CPU gives back what it has not used, or a debt (negative).
    pub fn give(&mut self, left: i64) {
        ffi::entrain_n_bw_give(self, left);
    }
}

/// What each of `cpus` CPUs may keep where none of the group's tasks run.
pub fn keep(quota: u64, cpus: u32) -> u64 {
    ffi::entrain_n_bw_keep(quota, cpus)
}

/// The mean length of turns after one of `ran`.
pub fn turn(mean: u64, ran: u64) -> u64 {
    ffi::entrain_n_bw_turn(mean, ran)
}

/// For how many tasks the pool is likely to suffice.
pub fn admits(pool: i64, turn: u64) -> u64 {
    ffi::entrain_n_bw_admits(pool, turn)
}

/// A task's place in its group's queue.
pub fn place(now: u64, ahead: i64) -> u64 {
    ffi::entrain_n_bw_place(now, ahead)
}
