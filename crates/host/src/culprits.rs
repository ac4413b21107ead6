//! For whom VMs waited, as counters that a fleet's monitoring can keep: a bounded number for each VM.
//!
//! BPF sums each vCPU's waits by whoever ran instead; here they become time by VM and culprit. Names of culprits are others'
//! choice and there may be ever new ones, so a VM has [`NAMED`] of them, those that it has waited for most of late, and one
//! sum for all others. A culprit that is named anew begins at zero, its time before stays in `other`; one that loses its name
//! takes its time along. So no counter falls while it is there, and each wait adds to one counter, once.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

use crate::status::WaitCause;

/// Culprits of a VM that have a name: more are not read, and each has up to four series.
const NAMED: usize = 10;
/// VMs whose culprits have names; of those beyond there is only `other`. With [`NAMED`] this bounds the series to
/// 250 × 11 × 4.
const VMS: usize = 250;
/// Culprits whose recent time is kept, to know which is to have a name.
const KNOWN: usize = 64;
/// What a VM waited for counts half after so many looks, five minutes at the pace of [`crate::waits`]: a culprit of an hour
/// ago gives its name up for one of now.
const HALF_LIFE: u32 = 60;
/// Of whoever else there was.
pub(crate) const OTHER: &str = "other";

/// Who ran while a VM waited.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Culprit {
    /// For people: a VM's name, a program's, `idle` or `other`.
    pub name: String,
    /// What metrics call the VM; empty where it is none.
    #[serde(default)]
    pub vm: String,
}

/// Time that a VM waited for somebody, since it is counted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitedFor {
    /// For whom.
    #[serde(flatten)]
    pub culprit: Culprit,
    /// Why.
    pub cause: WaitCause,
    /// How long, ns.
    pub ns: u64,
}

/// One of BPF's sums.
#[derive(Clone, Debug)]
pub(crate) struct Sum {
    /// Which it is: vCPU's entry, who, cause.
    pub(crate) key: (u32, i32, WaitCause),
    /// Thread of the vCPU: entries are given to others when it ends.
    pub(crate) tid: i32,
    /// The VM that waited.
    pub(crate) vm: String,
    pub(crate) culprit: Culprit,
    pub(crate) ns: u64,
}

/// A culprit's time by cause.
type Times = BTreeMap<WaitCause, u64>;

#[derive(Debug, Default)]
struct Account {
    /// Whether its culprits have names.
    names: bool,
    named: BTreeMap<Culprit, Times>,
    other: Times,
    /// Time of late, ns, of those that have a name and of those that may get one.
    recent: BTreeMap<Culprit, u64>,
}

/// Of all VMs.
#[derive(Debug, Default)]
pub(crate) struct Culprits {
    seen: HashMap<(u32, i32, WaitCause), (i32, u64)>,
    vms: BTreeMap<String, Account>,
    looks: u32,
}

impl Culprits {
    /// Takes in BPF's sums as they are now.
    pub(crate) fn learn(&mut self, sums: Vec<Sum>) {
        let mut seen = HashMap::with_capacity(sums.len());
        for sum in sums {
            let new = match self.seen.get(&sum.key) {
                // A sum that has fallen was dropped, for there being too many, and began anew.
                Some((tid, before)) if *tid == sum.tid => sum.ns.checked_sub(*before).unwrap_or(sum.ns),
                // What is there of the entry's former vCPU is not this one's.
                Some(_) => 0,
                None => sum.ns,
            };
            seen.insert(sum.key, (sum.tid, sum.ns));
            if new > 0 {
                let names = self.vms.len() < VMS;
                let account = self.vms.entry(sum.vm).or_insert_with(|| Account { names, ..Account::default() });
                account.add(sum.culprit, sum.key.2, new);
            }
        }
        self.seen = seen;
        self.looks += 1;
        if self.looks.is_multiple_of(HALF_LIFE) {
            let all = self.vms.values_mut().flat_map(|account| account.recent.values_mut());
            all.for_each(|ns| *ns /= 2);
        }
    }

    /// VMs that have ended are forgotten.
    pub(crate) fn keep(&mut self, known: impl Fn(&str) -> bool) {
        self.vms.retain(|vm, _| known(vm));
    }

    /// For whom this VM waited.
    pub(crate) fn of(&self, vm: &str) -> Vec<WaitedFor> {
        let Some(account) = self.vms.get(vm) else { return Vec::new() };
        let other = Culprit { name: OTHER.to_owned(), vm: String::new() };
        let all = account.named.iter().chain([(&other, &account.other)]);
        let told = all.flat_map(|(culprit, times)| {
            times.iter().map(|(&cause, &ns)| WaitedFor { culprit: culprit.clone(), cause, ns })
        });
        told.collect()
    }
}

impl Account {
    fn add(&mut self, culprit: Culprit, cause: WaitCause, ns: u64) {
        let recent = self.recent.entry(culprit.clone()).or_default();
        *recent += ns;
        let recent = *recent;
        if self.recent.len() > KNOWN {
            self.forget();
        }
        if !self.named.contains_key(&culprit) && self.has_name_for(recent) {
            self.named.insert(culprit.clone(), Times::new());
        }
        let times = self.named.get_mut(&culprit).unwrap_or(&mut self.other);
        *times.entry(cause).or_default() += ns;
    }

    /// Room for a culprit with so much time of late: a free one, or that of one with less than half of it.
    fn has_name_for(&mut self, recent: u64) -> bool {
        if !self.names || self.named.len() < NAMED {
            return self.names;
        }
        let of = |culprit: &Culprit| self.recent.get(culprit).copied().unwrap_or(0);
        let Some(least) = self.named.keys().min_by_key(|culprit| of(culprit)).cloned() else { return false };
        if of(&least) >= recent / 2 {
            return false;
        }
        self.named.remove(&least).is_some()
    }

    /// The half that was waited for least.
    fn forget(&mut self) {
        let mut all: Vec<u64> = self.recent.values().copied().collect();
        all.sort_unstable();
        let middle = all[all.len() / 2];
        let named = &self.named;
        self.recent.retain(|culprit, ns| named.contains_key(culprit) || *ns > middle);
        // Many with the same time: they are as good as unknown.
        if self.recent.len() > KNOWN {
            self.recent.retain(|culprit, _| named.contains_key(culprit));
        }
    }
}

/// The program's name without what numbers its copies, so that all kworkers are one: `kworker/3:1`, `ksoftirqd/7`.
pub(crate) fn program(comm: &str) -> &str {
    let (name, rest) = comm.rsplit_once('/').unwrap_or((comm, ""));
    match comm.split_once('/') {
        Some(("kworker", _)) => "kworker",
        Some(_) if rest.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => comm,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sum(index: u32, who: i32, tid: i32, ns: u64) -> Sum {
        let culprit = Culprit { name: format!("p{who}"), vm: String::new() };
        Sum { key: (index, who, WaitCause::Preempted), tid, vm: "a".into(), culprit, ns }
    }

    fn of(culprits: &Culprits, name: &str) -> u64 {
        culprits.of("a").iter().filter(|one| one.culprit.name == name).map(|one| one.ns).sum()
    }

    #[test]
    fn time_is_that_between_two_looks() {
        let mut culprits = Culprits::default();
        culprits.learn(vec![sum(0, 7, 100, 50), sum(1, 7, 101, 5)]);
        assert_eq!(of(&culprits, "p7"), 55);
        culprits.learn(vec![sum(0, 7, 100, 80)]);
        assert_eq!(of(&culprits, "p7"), 85);
        culprits.learn(vec![sum(0, 7, 100, 20)]);
        assert_eq!(of(&culprits, "p7"), 105, "its sum was dropped and began anew");
        culprits.learn(vec![sum(0, 7, 999, 60)]);
        assert_eq!(of(&culprits, "p7"), 105, "the entry is another vCPU's now");
        culprits.learn(vec![sum(0, 7, 999, 61)]);
        assert_eq!(of(&culprits, "p7"), 106);
        culprits.keep(|_| false);
        assert!(culprits.of("a").is_empty());
    }

    #[test]
    fn a_culprit_of_now_takes_the_name_of_one_that_did_less() {
        let mut culprits = Culprits::default();
        culprits.learn((0..10).map(|who| sum(0, who, 100, 100 + who as u64)).collect());
        let later = |ns| (0..10).map(|who| sum(0, who, 100, 100 + who as u64)).chain([sum(0, 77, 100, ns)]).collect();
        culprits.learn(later(150));
        assert_eq!((of(&culprits, "p77"), of(&culprits, OTHER)), (0, 150));
        culprits.learn(later(250));
        assert_eq!(of(&culprits, "p77"), 100, "from here on");
        assert_eq!((of(&culprits, "p0"), of(&culprits, OTHER)), (0, 150), "p0's 100 went with its name");
    }

    proptest! {
        #[test]
        fn series_are_bounded_and_each_wait_is_told_once(waits in proptest::collection::vec((0i32..300, 1u64..1000), 1..600)) {
            let mut culprits = Culprits::default();
            let (mut sums, mut before) = (BTreeMap::<i32, u64>::new(), BTreeMap::new());
            for (who, ns) in &waits {
                *sums.entry(*who).or_default() += ns;
                culprits.learn(sums.iter().map(|(who, ns)| sum(0, *who, 100, *ns)).collect());
                let now: BTreeMap<Culprit, u64> =
                    culprits.of("a").into_iter().map(|one| (one.culprit, one.ns)).collect();
                prop_assert!(now.len() <= NAMED + 1 && culprits.vms["a"].recent.len() <= KNOWN);
                let more = |culprit| now[culprit] - before.get(culprit).copied().unwrap_or(0);
                prop_assert_eq!(now.keys().map(more).sum::<u64>(), *ns, "one counter has it");
                before = now;
            }
        }
    }

    #[test]
    fn copies_of_a_program_are_one() {
        for (comm, is) in [
            ("kworker/3:1H-kblo", "kworker"),
            ("kworker/u8:2", "kworker"),
            ("ksoftirqd/7", "ksoftirqd"),
            ("kvm-pit/17855", "kvm-pit"),
            ("CPU 1/TCG", "CPU 1/TCG"),
            ("stress", "stress"),
        ] {
            assert_eq!(program(comm), is);
        }
    }
}
