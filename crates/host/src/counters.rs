//! The counters of the host's scheduler: what the operator is told of each, in the status, in JSON and as a metric.
//!
//! BPF counts by `enum sched_counter` (`bpf/sched/interface.h`), whose names reach Rust through the skeleton. The table
//! here is the only other place that knows them; a test fails when it lacks one.

use serde::{Deserialize, Serialize};

use crate::skeleton::sched::types::{sched_counter, sched_stats};

/// Whom the operator is told a counter of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Of {
    Host,
    Vm,
    Vcpu,
}

/// What a counter is a number of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Times,
    Ns,
}

/// What is told of a counter of the host's scheduler, by its metric; in the status it is a field of [`ScheduleStatus`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counter {
    /// As `enum sched_counter` of `bpf/sched/interface.h` has it.
    #[cfg_attr(not(test), expect(dead_code, reason = "the tests compare it with the BPF object"))]
    pub(crate) name: &'static str,
    pub(crate) unit: Unit,
    /// Without prefix and unit. Counters of one name stand together and are told apart by their reason.
    pub(crate) metric: &'static str,
    pub(crate) reason: Option<&'static str>,
    pub(crate) of: &'static [Of],
    pub(crate) help: &'static str,
    pub(crate) value: fn(&ScheduleStatus) -> u64,
}

macro_rules! optional {
    () => {
        None
    };
    ($value:literal) => {
        Some($value)
    };
}

/// Makes the status and the metrics of the counters.
macro_rules! counters {
    ($($field:ident = $counter:ident, $unit:ident $metric:literal $([$reason:literal])? of $($of:ident)+: $help:literal;)+) => {
        /// What the host's scheduler has done since it was loaded; mode `schedule` only.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct ScheduleStatus {
            $(
                #[doc = concat!($help, $(" (", $reason, ")",)? ".")]
                pub $field: u64,
            )+
            /// The error of fairness: how far a vCPU that runs or waits is behind its queue's clock (positive: time is
            /// owed to it), of a VM the sum, ns of pCPU time at weight 100; 0 for the host. As of when it was last taken
            /// off a pCPU or queued.
            pub lag_ns: i64,
        }

        impl From<sched_stats> for ScheduleStatus {
            fn from(stats: sched_stats) -> Self {
                Self { $($field: stats.of[sched_counter::$counter.0 as usize],)+ lag_ns: 0 }
            }
        }

        /// All counters.
        pub(crate) const COUNTERS: &[Counter] = &[$(Counter {
            name: stringify!($counter),
            unit: Unit::$unit,
            metric: $metric,
            reason: optional!($($reason)?),
            of: &[$(Of::$of),+],
            help: $help,
            value: |status| status.$field,
        }),+];
    };
}

// Field of the status, counter, unit and name (and reason) of the metric, of whom: what it means.
counters! {
    switches = SCHED_SWITCHES, Times "sched_switches" of Host: "Times that the host's scheduler put a task on a pCPU";
    preemptions = SCHED_PREEMPTIONS, Times "sched_preemptions" of Host: "Times that it took off a task that was runnable";
    preemptions_held = SCHED_PREEMPTIONS_HELD, Times "sched_holder_preemptions" of Host:
        "Of those, in what may be a critical section";
    ready_ns = SCHED_READY_NS, Ns "sched_ready" of Host: "Time that tasks were runnable without a pCPU";
    extensions = SCHED_EXTENSIONS, Times "sched_extensions" of Host Vm Vcpu: "Slices extended";
    extended_ns = SCHED_EXTENDED_NS, Ns "sched_extension" of Host Vm Vcpu: "Time by which slices were extended";
    repaid_ns = SCHED_REPAID_NS, Ns "sched_extension_repaid" of Host Vm Vcpu: "Time taken off later slices for it";
    refused_not_critical = SCHED_REFUSED_NOT_CRITICAL, Times "sched_extensions_refused" ["not_critical"] of Host Vm:
        "Slices not extended";
    refused_event_spent = SCHED_REFUSED_EVENT_SPENT, Times "sched_extensions_refused" ["event_spent"] of Host Vm:
        "Slices not extended";
    refused_budget_spent = SCHED_REFUSED_BUDGET_SPENT, Times "sched_extensions_refused" ["budget_spent"] of Host Vm:
        "Slices not extended";
    yields_honoured = SCHED_YIELDS_HONOURED, Times "sched_yields" of Host Vm Vcpu: "Directed yields that were honoured";
    yields_not_waiting = SCHED_YIELDS_NOT_WAITING, Times "sched_yields_refused" ["not_waiting"] of Host Vm:
        "Directed yields that came to nothing";
    yields_holds_nothing = SCHED_YIELDS_HOLDS_NOTHING, Times "sched_yields_refused" ["holds_nothing"] of Host Vm:
        "Directed yields that came to nothing";
    yields_just_boosted = SCHED_YIELDS_JUST_BOOSTED, Times "sched_yields_refused" ["just_boosted"] of Host Vm:
        "Directed yields that came to nothing";
    yields_foreign = SCHED_YIELDS_FOREIGN, Times "sched_yields_refused" ["foreign"] of Host Vm:
        "Directed yields that came to nothing";
    yields_unfair = SCHED_YIELDS_UNFAIR, Times "sched_yields_refused" ["unfair"] of Host Vm:
        "Directed yields that came to nothing";
    yields_not_allowed = SCHED_YIELDS_NOT_ALLOWED, Times "sched_yields_refused" ["not_allowed"] of Host Vm:
        "Directed yields that came to nothing";
    yields_lost = SCHED_YIELDS_LOST, Times "sched_yields_refused" ["lost"] of Host Vm:
        "Directed yields that came to nothing";
    fronted = SCHED_FRONTED, Times "sched_fronted" of Host:
        "Tasks put in front since they had been preempted inside a section";
    urgent = SCHED_URGENT, Times "sched_urgent" of Host: "Wake-ups that the guest called latency-critical";
    corun_ns = SCHED_CORUN_NS, Ns "sched_corun" of Vm Vcpu: "vCPUs' time on a pCPU while a sibling was on another";
}

/// What the host's scheduler has done for one vCPU.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Account {
    pub(crate) stats: sched_stats,
    /// As in [`ScheduleStatus`].
    pub(crate) lag_ns: i64,
}

/// Adds counters to others.
pub(crate) fn add(sum: &mut sched_stats, more: &sched_stats) {
    for (sum, more) in sum.of.iter_mut().zip(more.of) {
        *sum = sum.wrapping_add(more);
    }
}

impl Account {
    /// Of several vCPUs.
    pub(crate) fn sum<'a>(accounts: impl Iterator<Item = &'a Account>) -> Self {
        accounts.fold(Self::default(), |mut sum, one| {
            add(&mut sum.stats, &one.stats);
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
    use std::mem::MaybeUninit;

    use libbpf_rs::AsRawLibbpf;
    use libbpf_rs::btf::Btf;
    use libbpf_rs::btf::types::Enum;
    use libbpf_rs::skel::{OpenSkel, SkelBuilder};

    use crate::skeleton::sched::SchedSkelBuilder;

    #[test]
    fn every_counter_of_bpf_is_told_once() {
        let mut object = MaybeUninit::uninit();
        let open = SchedSkelBuilder::default().open(&mut object).expect("an object");
        // SAFETY: the object outlives the reference, and nobody changes it meanwhile.
        let raw = unsafe { open.open_object().as_libbpf_object().as_ref() };
        let btf = Btf::from_bpf_object(raw).expect("readable").expect("type information");
        let counters = btf.type_by_name::<Enum<'_>>("sched_counter").expect("the counters");
        let names = counters.iter().map(|one| one.name.expect("a name").to_string_lossy().into_owned());
        let names: Vec<String> = names.filter(|name| name != "SCHED_COUNTERS").collect();
        let told: Vec<&str> = COUNTERS.iter().map(|counter| counter.name).collect();
        assert_eq!(names, told);
        assert!(COUNTERS.iter().all(|counter| !counter.of.is_empty()));
    }

    #[test]
    fn verdicts_keep_their_order() {
        let mut stats = sched_stats::default();
        let mut fill = |first: sched_counter, values: &[u64]| {
            stats.of[first.0 as usize..][..values.len()].copy_from_slice(values);
        };
        fill(sched_counter::SCHED_REFUSED_NOT_CRITICAL, &[1, 2, 3]);
        fill(sched_counter::SCHED_YIELDS_HONOURED, &[10, 11, 12, 13, 14, 15, 16]);
        let status = ScheduleStatus::from(stats);
        assert_eq!((status.refused_not_critical, status.refused_budget_spent), (1, 3));
        assert_eq!((status.yields_honoured, status.yields_foreign, status.yields_not_allowed), (10, 14, 16));
    }

    #[test]
    fn counters_are_added_each_to_its_own() {
        let mut stats = sched_stats::default();
        for (number, counter) in stats.of.iter_mut().enumerate() {
            *counter = number as u64 + 1;
        }
        let account = Account { stats, lag_ns: -5 };
        let sum = ScheduleStatus::from(Account::sum([account, account].iter()));
        assert_eq!((sum.switches, sum.corun_ns, sum.lag_ns), (2, 2 * COUNTERS.len() as u64, -10));
    }
}
