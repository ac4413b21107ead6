//! The cgroups of VMs' processes, each looked at with every look for VMs, or more seldom where its owner has made that long.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use entrain_system::Root;

use crate::cgroup::Group;

/// Groups that are looked at below one VM's, on average, each second; a VM of 64 vCPUs has some 70. Threat model: a user may
/// have hundreds of VMs in cgroups with thousands of empty ones below. Each of these costs some 15 µs, so that a process of
/// his takes a millisecond of a look and not 60, after a first one.
const EACH_SECOND: u32 = 64;

/// What is known of a process.
#[derive(Debug)]
struct Known {
    group: Group,
    /// It is looked at again then.
    due: Instant,
}

/// Of all VMs.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    /// By process: one may run several VMs.
    known: BTreeMap<i32, Known>,
}

impl Groups {
    /// Forgets the processes that run no VM.
    pub(crate) fn keep(&mut self, runs: impl Fn(i32) -> bool) {
        self.known.retain(|tgid, _| runs(*tgid));
    }

    /// The cgroup of a process that runs a VM. One that cannot be read though the process is there stays what it was; of a
    /// new VM it counts as the lightest.
    pub(crate) fn of(&mut self, root: &Root, tgid: i32, now: Instant) -> Group {
        let before = self.known.get(&tgid);
        if let Some(known) = before.filter(|known| now < known.due) {
            return known.group.clone();
        }
        let (found, looked) = Group::of(root, tgid);
        let group = found.or_else(|| Some(before?.group.clone())).unwrap_or_else(Group::least);
        let due = now + Duration::from_secs(1) * (looked / EACH_SECOND);
        self.known.insert(tgid, Known { group: group.clone(), due });
        group
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use entrain_system::fake::Machine;

    #[test]
    fn what_takes_long_is_looked_at_more_seldom() {
        let machine = Machine::default();
        let weight = |group: &str, weight: &str| machine.put(&format!("sys/fs/cgroup/{group}/cpu.weight"), weight);
        machine.put("proc/7/cgroup", "0::/vm\n");
        machine.put("proc/8/cgroup", "0::/wide\n");
        for group in ["vm", "wide"] {
            weight(group, "50\n");
            machine.put(&format!("sys/fs/cgroup/{group}/cgroup.procs"), if group == "vm" { "7\n" } else { "8\n" });
        }
        for child in 0..1000 {
            machine.put(&format!("sys/fs/cgroup/wide/{child}/cgroup.procs"), "");
        }
        let mut groups = Groups::default();
        let start = Instant::now();
        let mut at = |tgid, seconds| groups.of(&machine.root(), tgid, start + Duration::from_secs(seconds)).weight;
        assert_eq!([at(7, 0), at(8, 0)], [50, 50]);
        weight("vm", "70\n");
        weight("wide", "70\n");
        assert_eq!([at(7, 1), at(8, 1)], [70, 50]);
        assert_eq!(at(8, 20), 70);
    }

    #[test]
    fn a_group_that_is_hidden_stays_what_it_was_and_gains_a_new_vm_nothing() {
        let machine = Machine::default();
        machine.put("sys/fs/cgroup/vm/cpu.weight", "50\n");
        machine.put("sys/fs/cgroup/vm/cgroup.procs", "7\n");
        machine.put("proc/7/cgroup", "0::/vm\n");
        let mut groups = Groups::default();
        let start = Instant::now();
        let mut at = |tgid, seconds| groups.of(&machine.root(), tgid, start + Duration::from_secs(seconds));
        assert_eq!(at(7, 0).weight, 50);
        // A path of more than 4,095 bytes cannot be read; neither can a folder.
        std::fs::remove_file(machine.root().path("proc/7/cgroup")).unwrap();
        machine.put("proc/7/cgroup/x", "");
        machine.put("proc/8/cgroup/x", "");
        assert_eq!((at(7, 2).weight, at(8, 2).weight), (50, 1));
        groups.keep(|tgid| tgid == 8);
        assert_eq!(groups.known.len(), 1);
    }
}
