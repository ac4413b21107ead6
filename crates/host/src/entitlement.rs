//! How much CPU time each VM can have now: keeps what the VMs did in the last period, asks entitle.h, every few ms.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use entrain_policy::entitle;

use crate::cgroup::{cgroup_of, own_group};

/// Between two looks. With a guest's tick of 4 ms behind it, a guest has its vCPUs within 10 ms of a neighbour's leaving.
pub(crate) const PERIOD: Duration = Duration::from_millis(3);

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
    busy: BTreeMap<u64, u64>,
}

impl Shares {
    pub(crate) fn new(now: Instant) -> Shares {
        Shares { at: now, busy: BTreeMap::new() }
    }

    /// The entitlement of each VM in 1/1024 pCPU, at least 1: 0 would say that none is published.
    ///
    /// A VM that was not there in the last period counts as wanting all it can use.
    pub(crate) fn update(&mut self, now: Instant, pcpus: u32, claims: &[Claim]) -> Vec<u32> {
        let period = now.saturating_duration_since(self.at).as_nanos() as u64;
        let vms: Vec<entitle::Vm> = claims
            .iter()
            .map(|claim| {
                let ceiling = u64::from(claim.vcpus) * 1024;
                let demand = self
                    .busy
                    .get(&claim.vm)
                    .map_or(ceiling, |&busy| entitle::demand(claim.busy.saturating_sub(busy), period, claim.wants));
                entitle::Vm::new(claim.weight, demand, ceiling)
            })
            .collect();
        self.at = now;
        self.busy = claims.iter().map(|claim| (claim.vm, claim.busy)).collect();
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
        // The second goes idle: the first is told in the same period.
        assert_eq!(shares.update(start + 2 * STEP, 2, &[claim(1, 2 * busy, 4), claim(2, busy, 0)]), [2048, 1024]);
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
