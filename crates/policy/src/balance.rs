//! Balance between groups of CPUs: `include/balance.h`. Loads are sums of shares, in 1/1024 of a weight.

use std::ffi::c_int;

/// `struct entrain_group`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Group {
    /// The lower of average and moment of its load: what it may give.
    pub low: u64,
    /// The higher of the two: what it has to be spared.
    pub high: u64,
    /// Its CPUs.
    pub cpus: u32,
}

mod ffi {
    use super::*;
    unsafe extern "C" {
        pub(super) safe fn entrain_n_load_avg(avg: u64, load: u64, elapsed: u64) -> u64;
        pub(super) safe fn entrain_n_surplus(group: &Group, mean: u64) -> u64;
        pub(super) safe fn entrain_n_deficit(group: &Group, mean: u64) -> u64;
        pub(super) safe fn entrain_n_imbalanced(giver: &Group, taker: &Group) -> c_int;
        pub(super) safe fn entrain_n_worth_moving(share: u64, owed: i64) -> c_int;
    }
}

/// An average after `elapsed` ns in which the load was `load`.
pub fn load_avg(avg: u64, load: u64, elapsed: u64) -> u64 {
    ffi::entrain_n_load_avg(avg, load, elapsed)
}

/// What a group may give, given what a CPU has in the mean.
pub fn surplus(group: &Group, mean: u64) -> u64 {
    ffi::entrain_n_surplus(group, mean)
}

/// What a group may take.
pub fn deficit(group: &Group, mean: u64) -> u64 {
    ffi::entrain_n_deficit(group, mean)
}

/// Whether the groups differ by enough for one to give to the other.
pub fn imbalanced(giver: &Group, taker: &Group) -> bool {
    ffi::entrain_n_imbalanced(giver, taker) != 0
}

/// Whether a task of this share is moved while so much is owed.
pub fn worth_moving(share: u64, owed: i64) -> bool {
    ffi::entrain_n_worth_moving(share, owed) != 0
}
