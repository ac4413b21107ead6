//! Figures of pCPUs' levels and of the BPF programs, as the status has them.

use serde::{Deserialize, Serialize};

/// Why mode `schedule` only observes, for now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FallbackStatus {
    /// What ended the scheduler, or keeps it from starting.
    pub why: String,
    /// Time to the next try, ns, 0 while it is under way; `None` = not before SIGHUP or a new start.
    pub retry_in_ns: Option<u64>,
}

/// What a pCPU is asked to run at, 1/1024 of the biggest pCPU at its highest frequency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LevelStatus {
    /// What its tasks were measured to use.
    pub util: u32,
    /// What the one that runs claims.
    pub claim: u32,
    /// The level wanted for them, headroom included.
    pub wanted: u32,
    /// The level asked for: above `wanted` for a while after it fell.
    pub asked: u32,
    /// Times that the frequency driver was asked.
    pub asks: u64,
}

/// One BPF program of the daemon, as the kernel counts it while `sysctl kernel.bpf_stats_enabled` is 1.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramStatus {
    /// Its name.
    pub name: String,
    /// Times that it ran.
    pub runs: u64,
    /// Time that it ran, ns.
    pub run_ns: u64,
    /// Times that the kernel did not let it run, since it was running on that pCPU already.
    pub missed: u64,
}
