//! Performance levels and capacities: native bindings of `perf.h`.
//!
//! Utilisations and levels are 1/1024 of the biggest CPU at its highest frequency; times are ns.

use std::os::raw::c_int;

/// A load's full scale (`GUEST_LOAD_ONE`).
pub const LOAD_ONE: u64 = 1 << 20;

/// How long a level is held after it was last wanted, ns.
pub const HOLD_NS: u64 = 8_000_000;

/// A measured utilisation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Util {
    /// 0..=[`LOAD_ONE`].
    pub load: u64,
    /// When it was brought up to date, 0 = never.
    pub at: u64,
    /// Used since.
    pub ran: u64,
}

/// Input of [`wanted`].
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct PerfIn {
    /// Measured on the CPU, of all its tasks.
    pub all: u32,
    /// Of that, of the one that runs.
    pub task: u32,
    /// What the one that runs claims.
    pub claim: u32,
    /// Its effective uclamp.max.
    pub limit: u32,
}

/// The level of a CPU over time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Level {
    /// When the peak was last wanted.
    pub at: u64,
    /// 0..=1024.
    pub peak: u32,
    /// What the driver was asked for last.
    pub asked: u32,
}

mod ffi {
    use super::*;
    unsafe extern "C" {
        pub(super) safe fn perf_n_util_fold(util: &mut Util, now: u64, scale: u32);
        pub(super) safe fn perf_n_util_move(cpu: &mut Util, came: u64, removed: u64);
        pub(super) safe fn perf_n_util_est(est: u32, load: u64) -> u32;
        pub(super) safe fn perf_n_claim(util: u64, invariant: u32, scale: u32) -> u32;
        pub(super) safe fn perf_n_wanted(input: &PerfIn) -> u32;
        pub(super) safe fn perf_n_step(level: &mut Level, wanted: u32, now: u64, ask: &mut u32) -> u32;
        pub(super) safe fn perf_n_fits(util: u32, capacity: u32) -> c_int;
        pub(super) safe fn perf_n_score(util: u32, capacity: u32, from: u32) -> u32;
    }
}

impl Util {
    /// Brings it up to `now`, on a CPU whose capacity times level is `scale`.
    pub fn fold(&mut self, now: u64, scale: u32) {
        ffi::perf_n_util_fold(self, now, scale);
    }

    /// A load came to this CPU, and another has left it.
    pub fn moved(&mut self, came: u64, removed: u64) {
        ffi::perf_n_util_move(self, came, removed);
    }

    /// 0..=1024.
    pub fn util(&self) -> u32 {
        crate::guest::util(self.load)
    }
}

/// What a task is expected to use when it wakes up, 0..=1024; `load` is its mean as it goes to sleep.
pub fn util_est(est: u32, load: u64) -> u32 {
    ffi::perf_n_util_est(est, load)
}

/// A guest's claim, 0..=1024; see `entrain_perf_claim`.
pub fn claim(util: u64, invariant: bool, scale: u32) -> u32 {
    ffi::perf_n_claim(util, invariant.into(), scale)
}

/// The level wanted, 0..=1024.
pub fn wanted(input: &PerfIn) -> u32 {
    ffi::perf_n_wanted(input)
}

impl Level {
    /// What the CPU should run at now, and whether the driver is to be told.
    pub fn step(&mut self, wanted: u32, now: u64) -> (u32, bool) {
        let mut ask = 0;
        let level = ffi::perf_n_step(self, wanted, now, &mut ask);
        (level, ask != 0)
    }
}

/// Whether a demand fits a CPU with headroom to spare.
pub fn fits(util: u32, capacity: u32) -> bool {
    ffi::perf_n_fits(util, capacity) != 0
}

/// How good a CPU is for a task that comes from one of capacity `from`; higher is better.
pub fn score(util: u32, capacity: u32, from: u32) -> u32 {
    ffi::perf_n_score(util, capacity, from)
}
