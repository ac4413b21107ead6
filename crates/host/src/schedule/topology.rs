//! Which CPUs keep step with one another: those that share a last-level cache. Inside such a group a task that has fallen
//! behind is fetched from another CPU's queue; between groups only a CPU that has nothing at all to run fetches.

use entrain_system::{CpuSet, Result, Root};

/// CPUs of the host by group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    /// Number of possible CPUs: the highest CPU number and one.
    pub cpus: u32,
    /// Group of each CPU, dense from 0.
    pub llc_of: Vec<u32>,
    /// Number of groups.
    pub llcs: u32,
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
        let mut system = entrain_system::Topology::read(root)?;
        system.cpus.truncate(MAX_CPUS as usize);
        // A CPU that is offline has no cache, and stands with its package.
        let shared = system.cpus.iter().any(|cpu| !cpu.llc.is_subset(&cpu.core) && cpu.llc != cpu.package);
        let groups = system.groups(|cpu| -> &CpuSet {
            if shared { &cpu.llc } else { &cpu.package }
        });
        let llcs = groups.iter().max().map_or(1, |last| last + 1).min(MAX_LLCS);
        let llc_of = groups.into_iter().map(|group| group.min(MAX_LLCS - 1)).collect();
        Ok(Topology { cpus: system.cpus.len() as u32, llc_of, llcs })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use entrain_system::fake::Machine;

    #[test]
    fn two_caches_make_two_groups() {
        let machine = Machine::new([("sys/devices/system/cpu/possible", "0-3\n")]);
        for cpu in 0..4 {
            let list = if cpu < 2 { "0-1\n" } else { "2-3\n" };
            let cache = format!("sys/devices/system/cpu/cpu{cpu}/cache");
            machine.put(&format!("{cache}/index3/level"), "3\n");
            machine.put(&format!("{cache}/index3/shared_cpu_list"), list);
            machine.put(&format!("{cache}/index0/level"), "1\n");
            machine.put(&format!("{cache}/index0/shared_cpu_list"), format!("{cpu}\n"));
        }
        let topology = Topology::read(&machine.root()).expect("readable");
        assert_eq!(topology, Topology { cpus: 4, llc_of: vec![0, 0, 1, 1], llcs: 2 });
    }

    #[test]
    fn without_caches_the_nodes_count_and_without_nodes_all_share() {
        let machine = Machine::new([("sys/devices/system/cpu/possible", "0-2\n")]);
        assert_eq!(Topology::read(&machine.root()).expect("readable").llc_of, [0, 0, 0]);
        machine.put("sys/devices/system/node/node0/cpulist", "0,2\n");
        machine.put("sys/devices/system/node/node1/cpulist", "1\n");
        assert_eq!(Topology::read(&machine.root()).expect("readable").llc_of, [0, 1, 0]);
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
        assert_eq!(Topology::read(&machine.root()).expect("readable").llc_of, [0, 0, 0, 0]);
    }
}
