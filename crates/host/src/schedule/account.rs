//! The scheduler's counters as the status has them, and the account of a vCPU.

use super::interface::Stats;
use crate::figures::ScheduleStatus;

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
