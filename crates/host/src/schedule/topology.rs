//! Which CPUs keep step with one another: those that share a last-level cache. Inside such a group a task that has fallen
//! behind is fetched from another CPU's queue; between groups the load is balanced (`bpf/sched/balance.bpf.h`), and a CPU
//! that has nothing at all to run fetches.

use std::collections::BTreeSet;

use entrain_system::{CpuSet, Result, Root};

/// CPUs of the host by group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    /// Number of possible CPUs: the highest CPU number and one.
    pub cpus: u32,
    /// Group of each CPU, below [`MAX_LLCS`]; `None`: it is offline, or there is no CPU of that number.
    pub llc_of: Vec<Option<u32>>,
}

/// Groups that the BPF side has room for; a host with more last-level caches has the rest of them in the last one.
pub(super) const MAX_LLCS: u32 = 64;

/// CPUs that the BPF side has room for.
pub(super) const MAX_CPUS: u32 = 1024;

impl Topology {
    /// Reads it. The cache is the kernel's notion of one ([`entrain_system::Topology`]), with one exception: where no cache
    /// is shared by two cores, a package is the group. There the kernel has its load balancer, and groups of one core would
    /// leave a task behind for as long as all other cores have something to run.
    pub fn read(root: &Root) -> Result<Topology> {
        Self::read_after(root, &[])
    }

    /// Reads it again, as CPUs have come or gone: a group that was there keeps its number, since clocks hang on it.
    pub fn follow(&self, root: &Root) -> Result<Topology> {
        Self::read_after(root, &self.llc_of)
    }

    fn read_after(root: &Root, before: &[Option<u32>]) -> Result<Topology> {
        let mut system = entrain_system::Topology::read(root)?;
        let online = root.cpus_or_none("sys/devices/system/cpu/online");
        system.cpus.truncate(MAX_CPUS as usize);
        // A CPU that is offline has no cache, and stands with its package.
        let shared = system.cpus.iter().any(|cpu| !cpu.llc.is_subset(&cpu.core) && cpu.llc != cpu.package);
        let groups = system.groups(|cpu| -> &CpuSet {
            if shared { &cpu.llc } else { &cpu.package }
        });
        let there = |cpu: usize| online.is_empty() || online.contains(cpu as u32);
        let groups: Vec<_> = groups.iter().enumerate().map(|(cpu, group)| there(cpu).then_some(*group)).collect();
        Ok(Topology { cpus: system.cpus.len() as u32, llc_of: numbered(&groups, before) })
    }
}

/// Numbers groups: by the number that one of its CPUs had `before`, else by the lowest that is free.
fn numbered(groups: &[Option<u32>], before: &[Option<u32>]) -> Vec<Option<u32>> {
    let old = |cpu: usize| before.get(cpu).copied().flatten();
    // Of the group with each number in `groups`; those that were there choose first.
    let mut number = vec![None; groups.len()];
    let mut taken = BTreeSet::new();
    for (cpu, group) in groups.iter().enumerate() {
        let Some(group) = *group else { continue };
        if let (None, Some(old)) = (number[group as usize], old(cpu))
            && taken.insert(old)
        {
            number[group as usize] = Some(old);
        }
    }
    for group in groups.iter().flatten() {
        if number[*group as usize].is_none() {
            let free = (0..MAX_LLCS).find(|free| !taken.contains(free)).unwrap_or(MAX_LLCS - 1);
            taken.insert(free);
            number[*group as usize] = Some(free);
        }
    }
    groups.iter().map(|group| number[(*group)? as usize]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use entrain_system::fake::Machine;

    /// Two caches of two CPUs.
    fn two_caches() -> Machine {
        let machine = Machine::new([("sys/devices/system/cpu/possible", "0-3\n")]);
        for cpu in 0..4 {
            let list = if cpu < 2 { "0-1\n" } else { "2-3\n" };
            let cache = format!("sys/devices/system/cpu/cpu{cpu}/cache");
            machine.put(&format!("{cache}/index3/level"), "3\n");
            machine.put(&format!("{cache}/index3/shared_cpu_list"), list);
            machine.put(&format!("{cache}/index0/level"), "1\n");
            machine.put(&format!("{cache}/index0/shared_cpu_list"), format!("{cpu}\n"));
        }
        machine
    }

    fn read(machine: &Machine) -> Topology {
        Topology::read(&machine.root()).expect("readable")
    }

    #[test]
    fn two_caches_make_two_groups() {
        let llc_of = vec![Some(0), Some(0), Some(1), Some(1)];
        assert_eq!(read(&two_caches()), Topology { cpus: 4, llc_of });
    }

    #[test]
    fn without_caches_the_nodes_count_and_without_nodes_all_share() {
        let machine = Machine::new([("sys/devices/system/cpu/possible", "0-2\n")]);
        assert_eq!(read(&machine).llc_of, [Some(0); 3]);
        machine.put("sys/devices/system/node/node0/cpulist", "0,2\n");
        machine.put("sys/devices/system/node/node1/cpulist", "1\n");
        assert_eq!(read(&machine).llc_of, [Some(0), Some(1), Some(0)]);
    }

    #[test]
    fn caches_of_one_core_each_make_no_groups() {
        let machine = Machine::new([("sys/devices/system/cpu/possible", "0-3\n")]);
        for cpu in 0..4 {
            let (own, core) = (format!("sys/devices/system/cpu/cpu{cpu}"), if cpu < 2 { "0-1\n" } else { "2-3\n" });
            machine.put(&format!("{own}/cache/index2/level"), "2\n");
            machine.put(&format!("{own}/cache/index2/shared_cpu_list"), core);
            machine.put(&format!("{own}/topology/thread_siblings_list"), core);
            machine.put(&format!("{own}/topology/package_cpus_list"), "0-3\n");
        }
        assert_eq!(read(&machine).llc_of, [Some(0); 4]);
    }

    #[test]
    fn a_group_keeps_its_number_as_cpus_go_and_come() {
        let machine = two_caches();
        let all = read(&machine);
        machine.put("sys/devices/system/cpu/online", "1-3\n");
        machine.put("sys/devices/system/cpu/cpu1/cache/index3/shared_cpu_list", "1\n");
        let without = all.follow(&machine.root()).expect("readable");
        assert_eq!(without.llc_of, [None, Some(0), Some(1), Some(1)]);
        machine.put("sys/devices/system/cpu/online", "1\n");
        let one = without.follow(&machine.root()).expect("readable");
        assert_eq!(one.llc_of, [None, Some(0), None, None]);
        // A group that nobody has any more is free for another, as if it were a new one.
        machine.put("sys/devices/system/cpu/online", "1-3\n");
        assert_eq!(one.follow(&machine.root()).expect("readable"), without);
    }

    #[test]
    fn groups_beyond_the_table_share_its_last_entry() {
        let groups: Vec<_> = (0..70).map(Some).collect();
        let numbers = numbered(&groups, &[]);
        assert_eq!((numbers[62], numbers[63], numbers[69]), (Some(62), Some(63), Some(63)));
        assert_eq!(numbered(&groups, &numbers), numbers);
    }

    #[test]
    fn groups_that_were_one_get_two_numbers() {
        let before = [Some(0), Some(0), Some(5)];
        assert_eq!(numbered(&[Some(0), Some(1), Some(2)], &before), [Some(0), Some(1), Some(5)]);
    }
}
