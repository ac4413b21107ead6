//! Figures of the host's scheduler and of the BPF programs, for the status.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::{AsFd, AsRawFd};

use serde::{Deserialize, Serialize};

use crate::schedule::Stats;

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

impl From<Stats> for ScheduleStatus {
    fn from(stats: Stats) -> Self {
        Self {
            switches: stats.switches,
            preemptions: stats.preemptions,
            preemptions_held: stats.preemptions_held,
            ready_ns: stats.waited,
            extensions: stats.extended,
            extended_ns: stats.extended_ns,
            repaid_ns: stats.repaid_ns,
            refused_not_critical: stats.extend_no[1],
            refused_event_spent: stats.extend_no[2],
            refused_budget_spent: stats.extend_no[3],
            yields_honoured: stats.yields[0],
            yields_not_waiting: stats.yields[1],
            yields_holds_nothing: stats.yields[2],
            yields_just_boosted: stats.yields[3],
            yields_foreign: stats.yields[4],
            yields_unfair: stats.yields[5],
            yields_not_allowed: stats.yields[6],
            yields_lost: stats.yields_lost,
            fronted: stats.fronted,
            urgent: stats.urgent,
            corun: stats.corun,
            corun_ns: stats.corun_ns,
            lag_ns: 0,
        }
    }
}

/// What the host's scheduler has done for one vCPU.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Account {
    pub(crate) stats: Stats,
    /// As in [`ScheduleStatus`].
    pub(crate) lag_ns: i64,
}

impl Account {
    /// Of several vCPUs.
    pub(crate) fn sum<'a>(accounts: impl Iterator<Item = &'a Account>) -> Self {
        accounts.fold(Self::default(), |mut sum, one| {
            sum.stats.add(&one.stats);
            sum.lag_ns = sum.lag_ns.saturating_add(one.lag_ns);
            sum
        })
    }
}

impl From<Account> for ScheduleStatus {
    fn from(account: Account) -> Self {
        Self { lag_ns: account.lag_ns, ..account.stats.into() }
    }
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

/// Figures that only the mode knows.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    pub(crate) schedule: Option<ScheduleStatus>,
    /// By the vCPU's thread.
    pub(crate) accounts: BTreeMap<i32, Account>,
    /// By number of the pCPU; empty where no levels are asked for.
    pub(crate) levels: Vec<LevelStatus>,
    /// uclamp_min that is set on a thread.
    pub(crate) clamps: BTreeMap<i32, u32>,
    pub(crate) programs: Vec<ProgramStatus>,
}

/// Whether the kernel counts the run time of BPF programs at all; it costs two clock readings a run.
pub(crate) fn counted() -> bool {
    fs::read_to_string("/proc/sys/kernel/bpf_stats_enabled").is_ok_and(|text| text.trim() == "1")
}

/// The kernel's figures of all programs of a loaded object.
pub(crate) fn programs(object: &libbpf_rs::Object) -> Vec<ProgramStatus> {
    let status = |(name, info): (String, libbpf_sys::bpf_prog_info)| ProgramStatus {
        name,
        runs: info.run_cnt,
        run_ns: info.run_time_ns,
        missed: info.recursion_misses,
    };
    infos(object).map(status).collect()
}

/// What the kernel tells of each program of a loaded object, with the program's name; one it tells nothing of is left
/// out.
pub(crate) fn infos(object: &libbpf_rs::Object) -> impl Iterator<Item = (String, libbpf_sys::bpf_prog_info)> + '_ {
    object.progs().filter_map(|program| {
        let fd = program.as_fd().as_raw_fd();
        let mut info = libbpf_sys::bpf_prog_info::default();
        let mut size = size_of_val(&info) as u32;
        // SAFETY: the kernel fills at most `size` bytes of `info`, which is plain data.
        let result = unsafe { libbpf_sys::bpf_obj_get_info_by_fd(fd, (&raw mut info).cast(), &mut size) };
        (result == 0).then(|| (program.name().to_string_lossy().into_owned(), info))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_keep_their_order() {
        let stats = Stats { extend_no: [9, 1, 2, 3], yields: [10, 11, 12, 13, 14, 15, 16, 0], ..Stats::default() };
        let status = ScheduleStatus::from(stats);
        assert_eq!((status.refused_not_critical, status.refused_budget_spent), (1, 3));
        assert_eq!((status.yields_honoured, status.yields_foreign, status.yields_not_allowed), (10, 14, 16));
    }
}
