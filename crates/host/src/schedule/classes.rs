//! What classes say to the host's scheduler: `struct sched_class` of `bpf/sched/interface.h`.

use std::collections::BTreeMap;

use super::sched_class;
use crate::classes::Schedule;

/// `SCHED_CLASS_DEFAULT`: as the tunable has it.
const DEFAULT: u64 = u64::MAX;

/// What a class says, as the scheduler is told; times in ns.
pub(super) fn told(schedule: Schedule) -> sched_class {
    sched_class {
        // Bursts and rate alone would leave what is saved up.
        event: if schedule.extensions == Some(false) { 0 } else { DEFAULT },
        burst: schedule.burst.unwrap_or(DEFAULT),
        rate_ppm: schedule.rate_ppm.unwrap_or(DEFAULT),
        latency: schedule.latency.unwrap_or(DEFAULT),
    }
}

/// What changes from one table to the next, by process of the VMM: `Some` is to be written, `None` to be removed.
pub(super) fn changes(
    before: &BTreeMap<i32, sched_class>,
    now: &BTreeMap<i32, sched_class>,
) -> Vec<(i32, Option<sched_class>)> {
    let gone = before.keys().filter(|pid| !now.contains_key(pid)).map(|pid| (*pid, None));
    let put = now.iter().filter(|(pid, class)| before.get(pid) != Some(class)).map(|(pid, class)| (*pid, Some(*class)));
    gone.chain(put).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scheduler_is_told_what_the_class_says() {
        let off = Schedule { extensions: Some(false), latency: Some(7), ..Schedule::default() };
        assert_eq!(told(off), sched_class { event: 0, burst: DEFAULT, rate_ppm: DEFAULT, latency: 7 });
    }

    #[test]
    fn only_what_changed_is_written() {
        let class = |latency| sched_class { latency, ..sched_class::default() };
        let before = BTreeMap::from([(1, class(1)), (2, class(2)), (3, class(3))]);
        let now = BTreeMap::from([(2, class(2)), (3, class(4)), (5, class(5))]);
        assert_eq!(changes(&before, &now), [(1, None), (3, Some(class(4))), (5, Some(class(5)))]);
        assert!(changes(&now, &now).is_empty());
    }
}
