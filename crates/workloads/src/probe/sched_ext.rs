//! `/sys/kernel/sched_ext`: is a BPF scheduler loaded, which one, and what it had to be helped out with.

use super::Counters;
use entrain_system::Root;
use serde::{Deserialize, Serialize};

/// sched_ext's state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SchedExt {
    /// `disabled`, `enabled`, `enabling`, `disabling`.
    pub state: String,
    /// Name of the loaded scheduler.
    pub ops: Option<String>,
    /// How often a scheduler was loaded since boot.
    pub loads: u64,
    /// Tasks that a scheduler refused since boot.
    pub rejected: u64,
    /// The loaded scheduler's events (fallbacks, refills, …) as the kernel names them.
    pub events: Counters,
}

pub(super) fn read(root: &Root) -> Option<SchedExt> {
    let folder = |name: &str| format!("sys/kernel/sched_ext/{name}");
    let number = |name: &str| root.parse(folder(name)).unwrap_or(0);
    let events = root.trimmed(folder("root/events")).unwrap_or_default();
    Some(SchedExt {
        state: root.trimmed(folder("state"))?,
        ops: root.trimmed(folder("root/ops")).filter(|ops| !ops.is_empty()),
        loads: number("enable_seq"),
        rejected: number("nr_rejected"),
        events: events
            .lines()
            .filter_map(|line| {
                let (name, count) = line.split_once(' ')?;
                Some((name.to_owned(), count.trim().parse().ok()?))
            })
            .collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use entrain_system::fake::tree;

    #[test]
    fn a_loaded_scheduler_is_seen() {
        let (_machine, root) = tree(&[
            ("sys/kernel/sched_ext/state", "enabled\n"),
            ("sys/kernel/sched_ext/enable_seq", "3\n"),
            ("sys/kernel/sched_ext/nr_rejected", "0\n"),
            ("sys/kernel/sched_ext/root/ops", "entrain_host\n"),
            ("sys/kernel/sched_ext/root/events", "SCX_EV_SELECT_CPU_FALLBACK 5\nSCX_EV_BYPASS_DURATION 900\n"),
        ]);
        let scx = read(&root).unwrap();
        assert_eq!((scx.state.as_str(), scx.ops.as_deref(), scx.loads), ("enabled", Some("entrain_host"), 3));
        assert_eq!(scx.events["SCX_EV_SELECT_CPU_FALLBACK"], 5);
    }

    #[test]
    fn none_is_loaded_at_boot() {
        let (_machine, root) = tree(&[("sys/kernel/sched_ext/state", "disabled\n")]);
        let scx = read(&root).unwrap();
        assert_eq!(scx, SchedExt { state: "disabled".into(), ..SchedExt::default() });
    }
}
