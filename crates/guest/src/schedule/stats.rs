//! What the scheduler tells of itself.

use serde::Serialize;

use super::skel::types::sched_stats;

/// What the scheduler counts, and how it stands with its host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Stats {
    /// Tasks run on it; false: it stands by.
    pub(crate) attached: bool,
    /// Every counter of `bpf/sched/stats.h`, shown by the name that it has there: no other place names them.
    #[serde(flatten)]
    pub(crate) counters: sched_stats,
    /// What the host entitles the guest to now, 1/1024 pCPU; `None` when it says nothing.
    pub(crate) entitlement: Option<u64>,
    /// The host's words are used.
    pub(crate) host_alive: bool,
}

impl Stats {
    /// One line for the log.
    pub(crate) fn summary(&self) -> String {
        let counters = &self.counters;
        format!(
            "{} wake-ups to idle vCPUs ({} at once), {} to queues, {} take-overs ({} from vCPUs held back), parked {} times",
            counters.wake_previous + counters.wake_idle,
            counters.wake_instant,
            counters.wake_queued,
            counters.takeovers,
            counters.rescues,
            counters.parks
        )
    }
}

/// Each vCPU counts what happens on it; the controller's figures are in one place alone.
pub(super) fn add(a: sched_stats, b: sched_stats) -> sched_stats {
    sched_stats {
        wake_previous: a.wake_previous + b.wake_previous,
        wake_idle: a.wake_idle + b.wake_idle,
        wake_instant: a.wake_instant + b.wake_instant,
        wake_queued: a.wake_queued + b.wake_queued,
        preempts: a.preempts + b.preempts,
        takeovers: a.takeovers + b.takeovers,
        rescues: a.rescues + b.rescues,
        parks: a.parks + b.parks,
        unparks: a.unparks + b.unparks,
        migrations: a.migrations + b.migrations,
        keep: a.keep + b.keep,
        stolen: a.stolen + b.stolen,
        runnable: a.runnable + b.runnable,
        contended: a.contended + b.contended,
    }
}

#[cfg(test)]
mod tests {
    use std::mem::MaybeUninit;

    use libbpf_rs::AsRawLibbpf;
    use libbpf_rs::btf::Btf;
    use libbpf_rs::btf::types::Struct;
    use libbpf_rs::skel::{OpenSkel, SkelBuilder};

    use super::*;
    use crate::schedule::skel::SchedSkelBuilder;

    /// What is shown, in this order; users and the lab's experiments read these names.
    const SHOWN: [&str; 17] = [
        "attached",
        "wake_previous",
        "wake_idle",
        "wake_instant",
        "wake_queued",
        "preempts",
        "takeovers",
        "rescues",
        "parks",
        "unparks",
        "migrations",
        "keep",
        "stolen",
        "runnable",
        "contended",
        "entitlement",
        "host_alive",
    ];

    #[test]
    fn every_counter_is_exported_by_its_name() {
        let mut object = MaybeUninit::uninit();
        let open = SchedSkelBuilder::default().open(&mut object).expect("a sound object");
        // SAFETY: the object is open and outlives the reference.
        let raw = unsafe { open.open_object().as_libbpf_object().as_ref() };
        let btf = Btf::from_bpf_object(raw).expect("sound BTF").expect("compiled with BTF");
        let counters = btf.type_by_name::<Struct<'_>>("sched_stats").expect("the counters");
        let json = serde_json::to_value(Stats::default()).expect("plain");
        let json = json.as_object().expect("an object");
        let names = counters.iter().map(|counter| counter.name.expect("a name").to_string_lossy().into_owned());
        let mut number = 0;
        for name in names {
            assert_eq!(json.get(&name), Some(&serde_json::json!(0)), "{name}");
            number += 1;
        }
        assert_eq!(number + 3, json.len(), "beside the counters: attached, entitlement, host_alive");
        assert!(SHOWN.iter().all(|name| json.contains_key(*name)) && json.len() == SHOWN.len(), "{json:?}");
    }

    #[test]
    fn a_silent_host_entitles_to_nothing_known() {
        let silent = serde_json::to_value(Stats { entitlement: None, ..Stats::default() }).expect("plain");
        assert!(silent["entitlement"].is_null());
        assert_eq!(silent["host_alive"], false);
    }
}
