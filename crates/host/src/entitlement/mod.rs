//! How much CPU time each VM can have now: keeps what the VMs did in the last period, and asks entitle.h down the tree of
//! their cgroups, every few ms.

pub(crate) mod others;
mod parts;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use entrain_policy::entitle;
use entrain_policy::entitle_tree::{Leaf, entitle_tree};
use entrain_system::CpuSet;

use crate::cgroup::Group;
use parts::Part;

/// Between two looks while VMs compete. Guests that shrink wait for two of them; to grow they need none, since they see
/// pCPUs that idle by the host's other words.
const BUSY_PERIOD: Duration = Duration::from_nanos(entrain_channel::page::ENTITLE_NS);
/// Between two looks while there is enough for all: nobody gains by a faster answer, and idle hosts must cost nothing.
pub(crate) const CALM_PERIOD: Duration = Duration::from_millis(50);
/// A look takes at most one part in so many of a CPU: however many VMs there are, they are looked at the more seldom, the
/// longer it takes.
const PART: u32 = 100;

/// What a VM wanted is remembered, and loses about two thirds in this time: work that comes in bursts, or is held up by the
/// host itself, wants as much between two bursts as in them. Without it two busy guests are told to grow and shrink many
/// times a second.
const MEMORY: Duration = Duration::from_millis(100);
/// A VM that wants nothing and of which next to nothing ran or waited in so many looks (40 ms) is idle, and its past does not
/// count.
const IDLE: u32 = 2;
/// Next to nothing: less than this part of a pCPU. An idle guest still has its clock ticks and housekeeping.
const HOUSEKEEPING: u64 = 4;
/// A guest's word that it wants vCPUs counts when they ran or waited for so long since the last look, ns. An honest guest
/// that wants a CPU waits for it; one that wakes for its housekeeping just when it is looked at, or that lies, takes nothing
/// from its neighbours by its word alone.
const CREDIBLE: u64 = 2_000_000;

/// Looks that are kept of whether a VM uses more vCPUs than it was told, and how many of them say that it parks none. Judged
/// by what it does, so that a guest that promises to park and doesn't gains nothing by it for longer than this (0.6 s while
/// VMs compete), which is what an honest one has for parking by hotplug.
const LOOKS: u32 = 32;
const KEEPS: u32 = 24;
/// More than half a vCPU beyond what it was told is too many, 1/1024 pCPU.
const SLACK: u64 = 512;
/// The weight of what is no VM: that of a cgroup that nobody has set.
const OTHERS_WEIGHT: u64 = 100;
/// A VM that wants less than this is no reason for others not to park, 1/1024 pCPU.
const LITTLE: u64 = 256;

/// What counts for a VM's entitlement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    /// Which VM: any number that stays the same while it lives.
    pub(crate) vm: u64,
    /// vCPUs: a VM cannot use more pCPUs than that.
    pub(crate) vcpus: u32,
    /// Where the host's scheduler counts it.
    pub(crate) group: Group,
    /// pCPUs that one or another of its vCPUs may use; `None`: all.
    pub(crate) cpus: Option<CpuSet>,
    /// Time that its vCPUs ran or waited for a pCPU since some start, ns.
    pub(crate) busy: u64,
    /// vCPUs that its guest says it could use; 0 for a guest that says nothing.
    pub(crate) wants: u32,
}

impl Claim {
    /// The most that the VM can use of the pCPUs that are online, 1/1024 pCPU: its vCPUs, the pCPUs that they may use, or
    /// what its cgroups' limits leave it.
    fn ceiling(&self, online: &CpuSet) -> u64 {
        let cpus = self.cpus.as_ref().map_or(u64::MAX, |cpus| cpus.common(online).len().max(1) as u64);
        (u64::from(self.vcpus).min(cpus) * 1024).min(self.group.most)
    }
}

/// The shares of all VMs from one period to the next.
#[derive(Debug)]
pub(crate) struct Shares {
    at: Instant,
    past: BTreeMap<u64, Past>,
    contended: bool,
    /// How long the last look took.
    took: Duration,
    /// Whether the host's scheduler gives a VM in a cgroup of its own its share however few vCPUs it uses. EEVDF does not: it
    /// splits a group's weight among CPUs, and one vCPU beside four of another group got a third of two CPUs.
    by_group: bool,
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
    /// What it was to keep to, 1/1024 pCPU.
    told: u64,
    /// Periods in which it used more vCPUs than fit into that, less those in which it didn't; 0..=[`LOOKS`].
    over: u32,
}

impl Past {
    /// One period on.
    fn next(self, claim: &Claim, period: u64, ceiling: u64) -> Self {
        let busy = claim.busy.saturating_sub(self.busy);
        let quiet = busy < period.max(1) / HOUSEKEEPING + 1;
        let idle = if quiet && claim.wants == 0 { self.idle + 1 } else { 0 };
        let memory = MEMORY.as_nanos() as u64;
        let faded = if idle >= IDLE { 0 } else { self.demand * (memory - period.min(memory)) / memory };
        let demand = |wants| entitle::demand(busy, period, wants).min(ceiling).max(faded);
        let said = demand(claim.wants);
        let used = entitle::demand(busy, period, 0);
        let over = if used > self.told.div_ceil(1024) * 1024 + SLACK {
            (self.over + 1).min(LOOKS)
        } else {
            self.over.saturating_sub(1)
        };
        let demand = if busy < CREDIBLE { demand(0) } else { said };
        Self { busy: claim.busy, demand, said, idle, told: self.told, over }
    }

    /// Whether it works without ever giving a vCPU up.
    fn keeps_all(&self) -> bool {
        self.over >= KEEPS && self.demand > LITTLE
    }
}

impl Shares {
    /// `by_group`: a VM in a cgroup of its own has its share however few vCPUs it uses.
    pub(crate) fn new(now: Instant, by_group: bool) -> Shares {
        Shares { at: now, past: BTreeMap::new(), contended: false, took: Duration::ZERO, by_group }
    }

    /// The host's scheduler has changed; `by_group` as in [`Self::new`].
    pub(crate) fn set_by_group(&mut self, by_group: bool) {
        self.by_group = by_group;
    }

    /// How long to wait for the next update.
    pub(crate) fn period(&self) -> Duration {
        let period = if self.contended { BUSY_PERIOD } else { CALM_PERIOD };
        period.max(self.took * PART)
    }

    /// An update took so long, with all that goes with it.
    pub(crate) fn took(&mut self, took: Duration) {
        self.took = took;
    }

    /// The entitlement of each VM in 1/1024 pCPU, at least 1: 0 would say that none is published.
    ///
    /// A VM that was not there in the last period counts as wanting all it can use. While one whose share depends on the number
    /// of its vCPUs keeps them all, every such VM is told that it may: parking would give time away. `others`: what the host's
    /// other tasks use of the pCPUs that are `online`, 1/1024 pCPU.
    pub(crate) fn update(&mut self, now: Instant, online: &CpuSet, claims: &[Claim], others: u64) -> Vec<u32> {
        let period = now.saturating_duration_since(self.at).as_nanos() as u64;
        let mut past: BTreeMap<u64, Past> = claims
            .iter()
            .map(|claim| {
                let ceiling = claim.ceiling(online);
                let first = Past { busy: claim.busy, demand: ceiling, said: ceiling, idle: 0, told: ceiling, over: 0 };
                (claim.vm, self.past.get(&claim.vm).map_or(first, |past| past.next(claim, period, ceiling)))
            })
            .collect();
        self.at = now;
        self.contended = false;
        let mut told = vec![1; claims.len()];
        for part in parts::of(online, claims.iter().map(|claim| claim.cpus.as_ref())) {
            let others = others * part.cpus.len() as u64 / online.len().max(1) as u64;
            self.update_part(&mut past, &part, online, claims, others, &mut told);
        }
        self.past = past;
        told
    }

    /// The same of VMs that share some pCPUs with one another and with no others.
    fn update_part(
        &mut self,
        past: &mut BTreeMap<u64, Past>,
        part: &Part,
        online: &CpuSet,
        claims: &[Claim],
        others: u64,
        told: &mut [u32],
    ) {
        let capacity = part.cpus.len() as u64 * 1024;
        let claims: Vec<(usize, &Claim)> = part.members.iter().map(|&member| (member, &claims[member])).collect();
        let mut leaves: Vec<Leaf<'_>> = claims
            .iter()
            .map(|(_, claim)| {
                let vm = entitle::Vm::new(claim.group.weight, past[&claim.vm].demand, claim.ceiling(online));
                Leaf { vm, above: &claim.group.above }
            })
            .collect();
        // As one group beside those of the VMs that wants what it uses: what a cgroup of the system's has by itself.
        leaves.push(Leaf { vm: entitle::Vm::new(OTHERS_WEIGHT, others, others), above: &[] });
        // A guest's word that is not believed yet is looked at again soon.
        let said: u64 = claims.iter().map(|(_, claim)| past[&claim.vm].said).sum();
        self.contended |= said + others > capacity;
        let answers = entitle_tree(&leaves, capacity);
        let counted = |claim: &Claim| !(self.by_group && claim.group.own.is_some());
        let keeps_all: Vec<bool> =
            claims.iter().map(|(_, claim)| counted(claim) && past[&claim.vm].keeps_all()).collect();
        let crowded = keeps_all.contains(&true);
        for (((member, claim), answer), keeps) in claims.iter().zip(&answers).zip(&keeps_all) {
            let all = claim.ceiling(online);
            let share = if counted(claim) && crowded { all } else { answer.entitlement }.max(1);
            told[*member] = share as u32;
            // Who keeps all stays of that kind until it does with less; the others use what they may.
            let bound = if *keeps { answer.entitlement } else { share };
            past.entry(claim.vm).and_modify(|past| past.told = bound);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use entrain_policy::entitle_tree::Above;

    const STEP: Duration = Duration::from_millis(20);

    fn pcpus(count: u32) -> CpuSet {
        (0..count).collect()
    }

    fn claim(vm: u64, busy: u64, wants: u32) -> Claim {
        Claim { vm, vcpus: 4, group: Group { own: Some("own".into()), ..Group::default() }, cpus: None, busy, wants }
    }

    #[test]
    fn two_busy_vms_halve_the_host_and_one_that_leaves_leaves_it_all() {
        let start = Instant::now();
        let mut shares = Shares::new(start, true);
        assert_eq!(shares.update(start, &pcpus(2), &[claim(1, 0, 0), claim(2, 0, 0)], 0), [1024, 1024]);
        // Both want four vCPUs, though parked down to one each.
        let busy = STEP.as_nanos() as u64;
        assert_eq!(shares.update(start + STEP, &pcpus(2), &[claim(1, busy, 4), claim(2, busy, 4)], 0), [1024, 1024]);
        assert_eq!(shares.period(), BUSY_PERIOD);
        // The second goes idle, and its pCPU with it: after two periods of that the first is told.
        assert_eq!(
            shares.update(start + 2 * STEP, &pcpus(2), &[claim(1, 2 * busy, 4), claim(2, busy, 0)], 0),
            [1024, 1024]
        );
        assert_eq!(
            shares.update(start + 3 * STEP, &pcpus(2), &[claim(1, 3 * busy, 4), claim(2, busy, 0)], 0),
            [2048, 1024]
        );
    }

    #[test]
    fn a_limit_bounds_what_a_vm_is_told_and_leaves_the_rest_to_others() {
        let start = Instant::now();
        let limited = |busy, wants| Claim {
            group: Group { own: Some("own".into()), most: 512, ..Group::default() },
            ..claim(1, busy, wants)
        };
        let mut shares = Shares::new(start, true);
        assert_eq!(shares.update(start, &pcpus(2), &[limited(0, 0), claim(2, 0, 0)], 0), [512, 1536]);
        let busy = STEP.as_nanos() as u64;
        assert_eq!(shares.update(start + STEP, &pcpus(2), &[limited(busy, 4), claim(2, busy, 4)], 0), [512, 1536]);
        // Also where nobody else wants anything.
        let mut alone = Shares::new(start, true);
        assert_eq!(alone.update(start, &pcpus(2), &[limited(0, 0)], 0), [512]);
    }

    #[test]
    fn housekeeping_is_no_claim() {
        let start = Instant::now();
        let mut shares = Shares::new(start, true);
        let busy = STEP.as_nanos() as u64;
        shares.update(start, &pcpus(2), &[claim(1, 0, 4), claim(2, 0, 4)], 0);
        shares.update(start + STEP, &pcpus(2), &[claim(1, busy, 4), claim(2, busy, 4)], 0);
        // The second has nothing to do any more, but its timers go on.
        shares.update(start + 2 * STEP, &pcpus(2), &[claim(1, 2 * busy, 4), claim(2, busy + busy / 20, 0)], 0);
        let told =
            shares.update(start + 3 * STEP, &pcpus(2), &[claim(1, 3 * busy, 4), claim(2, busy + busy / 10, 0)], 0);
        assert!(told[0] > 1900, "{told:?}");
    }

    #[test]
    fn a_word_counts_with_the_work_that_goes_with_it() {
        let start = Instant::now();
        let mut shares = Shares::new(start, true);
        let busy = STEP.as_nanos() as u64;
        for period in 0..3 {
            shares.update(
                start + period * STEP,
                &pcpus(2),
                &[claim(1, u64::from(period) * busy, 4), claim(2, 0, 0)],
                0,
            );
        }
        // The second wakes for its housekeeping, just when it is looked at; or it lies.
        let told = shares.update(start + 3 * STEP, &pcpus(2), &[claim(1, 3 * busy, 4), claim(2, 200_000, 4)], 0);
        assert!(told[0] > 2000, "{told:?}");
        assert!(shares.period() <= BUSY_PERIOD, "it may be about to work");
        // It does work.
        assert_eq!(shares.update(start + 4 * STEP, &pcpus(2), &[claim(1, 4 * busy, 4), claim(2, busy, 4)], 0)[0], 1024);
    }

    #[test]
    fn who_shares_a_cgroup_with_a_vm_that_parks_nothing_is_not_asked_to() {
        let start = Instant::now();
        let flat = |vm, busy, wants| Claim { group: Group::default(), ..claim(vm, busy, wants) };
        let busy = |period: u32| u64::from(period) * STEP.as_nanos() as u64;
        let scheduled = |by_group, claims: &dyn Fn(u32) -> [Claim; 2], periods: u32| {
            let mut shares = Shares::new(start, by_group);
            (0..periods).map(|at| shares.update(start + at * STEP, &pcpus(2), &claims(at), 0)).last().unwrap()
        };
        let run = |claims: &dyn Fn(u32) -> [Claim; 2], periods| scheduled(true, claims, periods);
        // The second works on all four vCPUs, whatever it says.
        for wants in [0, 4] {
            let both = |at| [flat(1, busy(at), 4), flat(2, 4 * busy(at), wants)];
            assert_eq!((run(&both, 10)[0], run(&both, 100)[0]), (1024, 4096));
        }
        // In cgroups of their own it does no harm, if the host's scheduler goes by them.
        let groups = |at| [claim(1, busy(at), 4), claim(2, 4 * busy(at), 0)];
        assert_eq!((run(&groups, 40)[0], scheduled(false, &groups, 40)[0]), (1024, 4096));
        // It does nothing, or no more than it is told.
        assert_eq!(run(&|at| [flat(1, busy(at), 4), flat(2, 0, 0)], 40)[0], 2048);
        assert_eq!(run(&|at| [flat(1, busy(at), 4), flat(2, busy(at), 4)], 40), [1024, 1024]);
        // It parks no more at some time; the first, which then uses all it may, is not held to be of that kind itself.
        let stops = |at: u32| busy(at) + 3 * busy(at.saturating_sub(40));
        let first = |at: u32| busy(at) + 3 * busy(at.saturating_sub(70));
        assert_eq!(run(&|at| [flat(1, busy(at), 4), flat(2, stops(at), 4)], 50)[0], 1024);
        let both = |at| [flat(1, first(at), 4), flat(2, stops(at), 4)];
        assert_eq!(run(&both, 200), [4096, 4096]);
        // The second goes idle, and the first parks again as it is told.
        let ends =
            |at: u32| [flat(1, first(at.min(200)) + busy(at.saturating_sub(200)), 4), flat(2, stops(at.min(200)), 0)];
        assert_eq!(run(&ends, 300), [2048, 1024]);
    }

    #[test]
    fn an_idle_host_is_looked_at_rarely() {
        let start = Instant::now();
        let mut shares = Shares::new(start, true);
        for period in 0..3 {
            shares.update(start + period * STEP, &pcpus(2), &[claim(1, 0, 0), claim(2, 0, 0)], 0);
        }
        assert_eq!(shares.period(), CALM_PERIOD);
    }

    #[test]
    fn a_pause_between_bursts_is_not_idleness() {
        let start = Instant::now();
        let mut shares = Shares::new(start, true);
        let (mut busy, mut told) = (0, Vec::new());
        for period in 0..40 {
            // Of three periods one is full of work, one has little, one has none.
            busy += [20_000_000, 500_000, 0][period as usize % 3];
            let wants = [4, 1, 0][period as usize % 3];
            told.push(shares.update(
                start + period * STEP,
                &pcpus(2),
                &[claim(1, u64::from(period) * 20_000_000, 4), claim(2, busy, wants)],
                0,
            ));
        }
        assert!(told.iter().all(|shares| *shares == [1024, 1024]), "{told:?}");
    }

    #[test]
    fn what_was_wanted_fades() {
        let start = Instant::now();
        let mut shares = Shares::new(start, true);
        let mut last = 0;
        // The second needs a tenth of a pCPU; what it wanted in the beginning is forgotten.
        for period in 0..100u64 {
            let claims = [claim(1, period * 20_000_000, 4), claim(2, period * 2_000_000, 0)];
            let told = shares.update(start + period as u32 * STEP, &pcpus(2), &claims, 0);
            assert!(told[0] >= last, "period {period}: {told:?}");
            last = told[0];
        }
        assert!((1900..2000).contains(&last), "{last}");
    }

    #[test]
    fn weights_count_and_no_answer_is_zero() {
        let start = Instant::now();
        let heavy =
            Claim { group: Group { weight: 300, own: Some("own".into()), ..Group::default() }, ..claim(1, 0, 4) };
        assert_eq!(
            Shares::new(start, true).update(start, &pcpus(4), &[heavy.clone(), claim(2, 0, 4)], 0),
            [3072, 1024]
        );
        assert_eq!(Shares::new(start, true).update(start, &pcpus(0), &[heavy], 0), [1]);
        assert!(Shares::new(start, true).update(start, &pcpus(4), &[], 0).is_empty());
    }

    /// Two VMs on four pCPUs with a task of the host's that computes on one of them: the first was told that it may use two.
    #[test]
    fn what_is_no_vm_uses_pcpus_as_well() {
        let start = Instant::now();
        let mut shares = Shares::new(start, true);
        let told = shares.update(start, &pcpus(4), &[claim(1, 0, 0), claim(2, 0, 0)], 1024);
        assert_eq!(told, [1536, 1536]);
        // It takes its share by weight, not more.
        assert_eq!(shares.update(start, &pcpus(4), &[claim(1, 0, 0), claim(2, 0, 0)], 4096), [1365, 1365]);
    }

    /// VMs that are bound to pCPUs: each was told its part of all.
    #[test]
    fn a_vm_can_have_what_its_affinity_leaves_it() {
        let start = Instant::now();
        let bound = |vm, cpus: std::ops::Range<u32>| Claim { cpus: Some(cpus.collect()), ..claim(vm, 0, 0) };
        let told = |claims: &[Claim]| Shares::new(start, true).update(start, &pcpus(8), claims, 0);
        // Three on the first two pCPUs, one on the six others.
        let three = [bound(1, 0..2), bound(2, 0..2), bound(3, 0..2), bound(4, 2..8)];
        assert_eq!(told(&three), [682, 682, 682, 4096]);
        // One that may use them all competes with everybody; no VM gets more than the pCPUs that it may use.
        assert_eq!(told(&[bound(1, 0..1), claim(2, 0, 0)]), [1024, 4096]);
        // Bound to pCPUs that are not there: the kernel lets it run anywhere.
        assert_eq!(told(&[bound(1, 100..101)]), [1024]);
    }

    /// Of 100 VMs with 8 vCPUs each, that all want more than there is, in groups of ten.
    #[test]
    fn a_hundred_vms_are_looked_at_in_a_hundredth_of_a_cpu() {
        let start = Instant::now();
        let above = |user: u64| [Above { id: 1, weight: 100 }, Above { id: 2 + user, weight: 50 + user }].into();
        let of = |vm: u64, busy| Claim {
            group: Group { own: Some("own".into()), above: above(vm / 10), ..Group::default() },
            ..Claim { vcpus: 8, ..claim(vm, busy, 8) }
        };
        let mut shares = Shares::new(start, true);
        let mut spent = Duration::ZERO;
        for look in 0..50 {
            let claims: Vec<Claim> = (0..100).map(|vm| of(vm, u64::from(look) * 4 * STEP.as_nanos() as u64)).collect();
            let began = Instant::now();
            let told = shares.update(start + look * STEP, &pcpus(64), &claims, 512);
            let took = began.elapsed();
            shares.took(took);
            spent += took;
            assert!(shares.period() >= (took * 100).max(BUSY_PERIOD));
            let sum: u64 = told.iter().map(|told| u64::from(*told)).sum();
            assert!((60 * 1024..=64 * 1024).contains(&sum), "{sum}");
        }
        println!("{} us a look, of {} us", spent.as_micros() / 50, BUSY_PERIOD.as_micros());
    }
}
