//! How much CPU time each VM can have now: keeps what the VMs did in the last period, asks entitle.h, every few ms.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use entrain_policy::entitle;

use crate::cgroup::{cgroup_of, own_group};

/// Between two looks while VMs compete and a pCPU has gone idle: a guest learns of a neighbour's leaving within 10 ms.
const PERIOD: Duration = Duration::from_millis(2);
/// How many such looks follow an idle pCPU: one to see it, [`IDLE`] to be sure.
const STIRRED: u32 = 1 + IDLE;
/// Between two looks while VMs compete and no pCPU idles: then nobody has left.
const BUSY_PERIOD: Duration = Duration::from_millis(12);
/// Between two looks while there is enough for all: nobody gains by a faster answer, and idle hosts must cost nothing.
pub(crate) const CALM_PERIOD: Duration = Duration::from_millis(50);

/// What a VM wanted is remembered, and loses about two thirds in this time: work that comes in bursts, or is held up by the
/// host itself, wants as much between two bursts as in them. Without it two busy guests are told to grow and shrink many
/// times a second.
const MEMORY: Duration = Duration::from_millis(100);
/// A VM that wants nothing and of which next to nothing ran or waited in so many looks (4 to 6 ms) is idle, and its past
/// does not count.
const IDLE: u32 = 2;
/// Next to nothing: less than this part of a pCPU. An idle guest still has its clock ticks and housekeeping.
const HOUSEKEEPING: u64 = 4;
/// A guest's word that it wants vCPUs counts when they ran or waited for so long since the last look, ns. An honest guest
/// that wants a CPU waits for it; one that wakes for its housekeeping just when it is looked at, or that lies, takes nothing
/// from its neighbours by its word alone.
const CREDIBLE: u64 = 2_000_000;
/// What a VM did in less than this says little of what it wants, ns: its housekeeping can fill a look of 2 ms.
const TELLING: u64 = 8_000_000;

/// The weight of a cgroup that nobody has set.
const WEIGHT: u64 = 100;

/// What counts for a VM's entitlement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    /// Which VM: any number that stays the same while it lives.
    pub(crate) vm: u64,
    /// vCPUs: a VM cannot use more pCPUs than that.
    pub(crate) vcpus: u32,
    /// cgroup v2 weight, 1..=10000.
    pub(crate) weight: u64,
    /// Time that its vCPUs ran or waited for a pCPU since some start, ns.
    pub(crate) busy: u64,
    /// vCPUs that its guest says it could use; 0 for a guest that says nothing.
    pub(crate) wants: u32,
}

/// The shares of all VMs from one period to the next.
#[derive(Debug)]
pub(crate) struct Shares {
    at: Instant,
    past: BTreeMap<u64, Past>,
    contended: bool,
    /// Looks left that follow close on one another.
    stirred: u32,
}

/// What is kept of a VM.
#[derive(Clone, Copy, Debug)]
struct Past {
    busy: u64,
    /// What it wanted, 1/1024 pCPU, fading.
    demand: u64,
    /// The same, if its guest's word were taken as it is.
    said: u64,
    /// Periods in which it wanted nothing and next to nothing of it ran or waited.
    idle: u32,
}

impl Past {
    /// One period on.
    fn next(self, claim: &Claim, period: u64, ceiling: u64) -> Self {
        let busy = claim.busy.saturating_sub(self.busy);
        let quiet = busy < period.max(1) / HOUSEKEEPING + 1;
        let idle = if quiet && claim.wants == 0 { self.idle + 1 } else { 0 };
        let memory = MEMORY.as_nanos() as u64;
        let faded = if idle >= IDLE { 0 } else { self.demand * (memory - period.min(memory)) / memory };
        let demand = |wants| entitle::demand(busy, period.max(TELLING), wants).min(ceiling).max(faded);
        let said = demand(claim.wants);
        Self { busy: claim.busy, demand: if busy < CREDIBLE { demand(0) } else { said }, said, idle }
    }
}

impl Shares {
    pub(crate) fn new(now: Instant) -> Shares {
        Shares { at: now, past: BTreeMap::new(), contended: false, stirred: 0 }
    }

    /// How long to wait for the next update.
    pub(crate) fn period(&self) -> Duration {
        match (self.contended, self.stirred) {
            (false, _) => CALM_PERIOD,
            (true, 0) => BUSY_PERIOD,
            (true, _) => PERIOD,
        }
    }

    /// A pCPU went idle.
    pub(crate) fn stir(&mut self) {
        self.stirred = STIRRED;
    }

    /// Whether the next idle pCPU is worth a look at once.
    pub(crate) fn waits_for_idle(&self) -> bool {
        self.contended && self.stirred == 0
    }

    /// The entitlement of each VM in 1/1024 pCPU, at least 1: 0 would say that none is published.
    ///
    /// A VM that was not there in the last period counts as wanting all it can use.
    pub(crate) fn update(&mut self, now: Instant, pcpus: u32, claims: &[Claim]) -> Vec<u32> {
        let period = now.saturating_duration_since(self.at).as_nanos() as u64;
        let past: BTreeMap<u64, Past> = claims
            .iter()
            .map(|claim| {
                let ceiling = u64::from(claim.vcpus) * 1024;
                let first = Past { busy: claim.busy, demand: ceiling, said: ceiling, idle: 0 };
                (claim.vm, self.past.get(&claim.vm).map_or(first, |past| past.next(claim, period, ceiling)))
            })
            .collect();
        let vms: Vec<entitle::Vm> = claims
            .iter()
            .map(|claim| entitle::Vm::new(claim.weight, past[&claim.vm].demand, u64::from(claim.vcpus) * 1024))
            .collect();
        self.at = now;
        self.stirred = self.stirred.saturating_sub(1);
        // A guest's word that is not believed yet is looked at again soon.
        self.contended = past.values().map(|past| past.said).sum::<u64>() > u64::from(pcpus) * 1024;
        self.past = past;
        let answers = entitle::entitle(&vms, u64::from(pcpus) * 1024);
        answers.iter().map(|answer| answer.entitlement.max(1) as u32).collect()
    }
}

/// The weight of the cgroup that holds a process and no other, or else of the process's cgroup; `proc` and `cgroup` are
/// where those file systems are.
pub(crate) fn weight(proc: &Path, cgroup: &Path, tgid: i32) -> u64 {
    let read = || {
        let path = cgroup_of(proc, tgid)?;
        let group = own_group(cgroup, &path, tgid).or_else(|| Some(cgroup.join(path.strip_prefix('/')?)))?;
        fs::read_to_string(group.join("cpu.weight")).ok()?.trim().parse().ok()
    };
    // The root has no weight, and neither has a group without the cpu controller: everybody is equal there.
    read().unwrap_or(WEIGHT)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_millis(4);

    fn claim(vm: u64, busy: u64, wants: u32) -> Claim {
        Claim { vm, vcpus: 4, weight: WEIGHT, busy, wants }
    }

    #[test]
    fn two_busy_vms_halve_the_host_and_one_that_leaves_leaves_it_all() {
        let start = Instant::now();
        let mut shares = Shares::new(start);
        assert_eq!(shares.update(start, 2, &[claim(1, 0, 0), claim(2, 0, 0)]), [1024, 1024]);
        // Both want four vCPUs, though parked down to one each.
        let busy = STEP.as_nanos() as u64;
        assert_eq!(shares.update(start + STEP, 2, &[claim(1, busy, 4), claim(2, busy, 4)]), [1024, 1024]);
        assert!(shares.waits_for_idle() && shares.period() == BUSY_PERIOD);
        // The second goes idle, and its pCPU with it: after two periods of that the first is told.
        shares.stir();
        assert_eq!(shares.update(start + 2 * STEP, 2, &[claim(1, 2 * busy, 4), claim(2, busy, 0)]), [1024, 1024]);
        assert!(shares.period() < STEP);
        assert_eq!(shares.update(start + 3 * STEP, 2, &[claim(1, 3 * busy, 4), claim(2, busy, 0)]), [2048, 1024]);
    }

    #[test]
    fn housekeeping_is_no_claim() {
        let start = Instant::now();
        let mut shares = Shares::new(start);
        let busy = STEP.as_nanos() as u64;
        shares.update(start, 2, &[claim(1, 0, 4), claim(2, 0, 4)]);
        shares.update(start + STEP, 2, &[claim(1, busy, 4), claim(2, busy, 4)]);
        // The second has nothing to do any more, but its timers go on.
        shares.update(start + 2 * STEP, 2, &[claim(1, 2 * busy, 4), claim(2, busy + busy / 20, 0)]);
        let told = shares.update(start + 3 * STEP, 2, &[claim(1, 3 * busy, 4), claim(2, busy + busy / 10, 0)]);
        assert!(told[0] > 1900, "{told:?}");
    }

    #[test]
    fn a_word_counts_with_the_work_that_goes_with_it() {
        let start = Instant::now();
        let mut shares = Shares::new(start);
        let busy = STEP.as_nanos() as u64;
        for period in 0..3 {
            shares.update(start + period * STEP, 2, &[claim(1, u64::from(period) * busy, 4), claim(2, 0, 0)]);
        }
        // The second wakes for its housekeeping, just when it is looked at; or it lies.
        let told = shares.update(start + 3 * STEP, 2, &[claim(1, 3 * busy, 4), claim(2, busy / 20, 4)]);
        assert!(told[0] > 2000, "{told:?}");
        assert!(shares.period() <= BUSY_PERIOD, "it may be about to work");
        // It does work.
        assert_eq!(shares.update(start + 4 * STEP, 2, &[claim(1, 4 * busy, 4), claim(2, busy, 4)])[0], 1024);
    }

    #[test]
    fn an_idle_host_is_looked_at_rarely() {
        let start = Instant::now();
        let mut shares = Shares::new(start);
        for period in 0..3 {
            shares.update(start + period * STEP, 2, &[claim(1, 0, 0), claim(2, 0, 0)]);
        }
        assert_eq!(shares.period(), CALM_PERIOD);
    }

    #[test]
    fn a_pause_between_bursts_is_not_idleness() {
        let start = Instant::now();
        let mut shares = Shares::new(start);
        let (mut busy, mut told) = (0, Vec::new());
        for period in 0..40 {
            // Of three periods one is full of work, one has little, one has none.
            busy += [4_000_000, 100_000, 0][period as usize % 3];
            let wants = [4, 1, 0][period as usize % 3];
            told.push(shares.update(
                start + period * STEP,
                2,
                &[claim(1, u64::from(period) * 4_000_000, 4), claim(2, busy, wants)],
            ));
        }
        assert!(told.iter().all(|shares| *shares == [1024, 1024]), "{told:?}");
    }

    #[test]
    fn what_was_wanted_fades() {
        let start = Instant::now();
        let mut shares = Shares::new(start);
        let mut last = 0;
        // The second needs a tenth of a pCPU; what it wanted in the beginning is forgotten.
        for period in 0..100u64 {
            let claims = [claim(1, period * 4_000_000, 4), claim(2, period * 400_000, 0)];
            let told = shares.update(start + period as u32 * STEP, 2, &claims);
            assert!(told[0] >= last, "period {period}: {told:?}");
            last = told[0];
        }
        assert!((1900..2000).contains(&last), "{last}");
    }

    #[test]
    fn weights_count_and_no_answer_is_zero() {
        let start = Instant::now();
        let heavy = Claim { weight: 300, ..claim(1, 0, 4) };
        assert_eq!(Shares::new(start).update(start, 4, &[heavy, claim(2, 0, 4)]), [3072, 1024]);
        assert_eq!(Shares::new(start).update(start, 0, &[heavy]), [1]);
        assert!(Shares::new(start).update(start, 4, &[]).is_empty());
    }

    #[test]
    fn a_weight_is_that_of_the_process_s_cgroup() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let file = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("inside the root")).expect("a folder");
            fs::write(path, text).expect("a file");
        };
        file("proc/7/cgroup", "0::/machine/a\n");
        file("proc/8/cgroup", "0::/\n");
        file("cgroup/machine/a/cpu.weight", "250\n");
        let weight = |tgid| weight(&root.path().join("proc"), &root.path().join("cgroup"), tgid);
        assert_eq!((weight(7), weight(8), weight(9)), (250, WEIGHT, WEIGHT));
    }
}
