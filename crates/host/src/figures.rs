//! Figures of the host's scheduler and of the BPF programs, as the status has them.

use serde::{Deserialize, Serialize};

/// What the host's scheduler has done since it was loaded; mode `schedule` only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ScheduleStatus {
    /// Times that a task was put on a pCPU.
    pub switches: u64,
    /// Times that one was taken off while runnable.
    pub preemptions: u64,
    /// Of those, in what may be a critical section.
    pub preemptions_held: u64,
    /// Time that tasks were runnable without a pCPU, ns.
    pub ready_ns: u64,
    /// Slices extended.
    pub extensions: u64,
    /// By so much in all, ns.
    pub extended_ns: u64,
    /// Taken off later slices for it, ns.
    pub repaid_ns: u64,
    /// Extensions refused since there was no critical section.
    pub refused_not_critical: u64,
    /// Extensions refused since the event had had its share.
    pub refused_event_spent: u64,
    /// Extensions refused since the vCPU's budget was spent.
    pub refused_budget_spent: u64,
    /// Directed yields that were honoured.
    pub yields_honoured: u64,
    /// Directed yields refused: the target did not wait.
    pub yields_not_waiting: u64,
    /// Directed yields refused: the target held nothing.
    pub yields_holds_nothing: u64,
    /// Directed yields refused: the target had just been put in front.
    pub yields_just_boosted: u64,
    /// Directed yields refused: the target belongs to another VM.
    pub yields_foreign: u64,
    /// Directed yields refused: the target had run too far ahead of others.
    pub yields_unfair: u64,
    /// Directed yields refused: the target may not run on that pCPU.
    pub yields_not_allowed: u64,
    /// Directed yields honoured whose target another pCPU had taken meanwhile.
    pub yields_lost: u64,
    /// Tasks that went to the front since they had been preempted inside a section.
    pub fronted: u64,
    /// Wake-ups that the guest called latency-critical.
    pub urgent: u64,
    /// vCPUs chosen out of turn since a sibling ran.
    pub corun: u64,
    /// Time that vCPUs were on a pCPU while a sibling was on another, ns.
    pub corun_ns: u64,
    /// The error of fairness: how far a vCPU that runs or waits is behind its queue's clock (positive: time is owed to it),
    /// of a VM the sum, ns of pCPU time at weight 100; 0 for the host. As of when it was last taken off a pCPU or queued.
    pub lag_ns: i64,
}

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
