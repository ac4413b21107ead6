//! What classes say to the host's scheduler: the mirror of `struct sched_class` in `bpf/sched_interface.h`.

use std::collections::BTreeMap;

use crate::classes::Schedule;

/// `SCHED_CLASS_DEFAULT`: as the tunable has it.
const DEFAULT: u64 = u64::MAX;

/// The value of the map `sched_classes`; times in ns.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SchedClass {
    event: u64,
    burst: u64,
    rate_ppm: u64,
    latency: u64,
}

impl From<Schedule> for SchedClass {
    fn from(schedule: Schedule) -> Self {
        Self {
            // Bursts and rate alone would leave what is saved up.
            event: if schedule.extensions == Some(false) { 0 } else { DEFAULT },
            burst: schedule.burst.unwrap_or(DEFAULT),
            rate_ppm: schedule.rate_ppm.unwrap_or(DEFAULT),
            latency: schedule.latency.unwrap_or(DEFAULT),
        }
    }
}

impl SchedClass {
    /// As the kernel takes it.
    pub(super) fn bytes(&self) -> Vec<u8> {
        [self.event, self.burst, self.rate_ppm, self.latency].iter().flat_map(|word| word.to_ne_bytes()).collect()
    }
}

/// What changes from one table to the next, by process of the VMM: `Some` is to be written, `None` to be removed.
pub(super) fn changes(
    before: &BTreeMap<i32, SchedClass>,
    now: &BTreeMap<i32, SchedClass>,
) -> Vec<(i32, Option<SchedClass>)> {
    let gone = before.keys().filter(|pid| !now.contains_key(pid)).map(|pid| (*pid, None));
    let put = now.iter().filter(|(pid, class)| before.get(pid) != Some(class)).map(|(pid, class)| (*pid, Some(*class)));
    gone.chain(put).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mirror_has_the_size_of_the_original_and_says_what_the_class_says() {
        assert_eq!(size_of::<SchedClass>(), size_of::<crate::skeleton::sched::types::sched_class>());
        let off = Schedule { extensions: Some(false), latency: Some(7), ..Schedule::default() };
        let class = SchedClass::from(off);
        assert_eq!(class, SchedClass { event: 0, burst: DEFAULT, rate_ppm: DEFAULT, latency: 7 });
        assert_eq!(class.bytes().len(), size_of::<SchedClass>());
    }

    #[test]
    fn only_what_changed_is_written() {
        let class = |latency| SchedClass { event: 0, burst: 0, rate_ppm: 0, latency };
        let before = BTreeMap::from([(1, class(1)), (2, class(2)), (3, class(3))]);
        let now = BTreeMap::from([(2, class(2)), (3, class(4)), (5, class(5))]);
        assert_eq!(changes(&before, &now), [(1, None), (3, Some(class(4))), (5, Some(class(5)))]);
        assert!(changes(&now, &now).is_empty());
    }
}
