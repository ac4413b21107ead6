//! Which CPUs share a core, a last-level cache and a package.
//!
//! The last-level cache is the kernel scheduler's (`sd_llc`): the CPUs among which it looks for an idle one when it wakes
//! a task, and thinks nothing of moving it. Whoever foresees or replaces those choices has to mean the same CPUs. Where
//! the kernel has them from differs:
//!
//! * x86 (`cpu_llc_shared_mask`, set up by `match_llc`) takes the level-3 cache, the level-2 cache where there is no
//!   third, and the package where CPUID tells of neither. It never crosses a NUMA node, though CPUID may say so (sub-NUMA
//!   clustering).
//! * arm64 and riscv (`cpu_coregroup_mask`, drivers/base/arch_topology.c) take the smaller of node and package, then the
//!   CPUs of the last cache if the firmware describes it and they lie within. Where that is no bigger than a cluster, the
//!   cluster takes its place: machines whose only shared cache is the interconnect's describe one cache a core.
//!
//! Both are one rule on what sysfs shows, which [`Topology::read`] applies. So the level-2 cache that a little cluster or
//! an Atom module shares counts although it is not level 3, a package counts where caches are not described, as in many
//! VMs, and a node counts only where it is smaller than that. Level 1 never counts: it is a core's own everywhere, and
//! told of alone it says that the description is not complete.

use crate::{CpuSet, Result, Root};

/// What one possible CPU shares with others; it is in each set itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cpu {
    /// Hardware threads of its core.
    pub core: CpuSet,
    /// CPUs of its last-level cache, as the kernel's scheduler has it.
    pub llc: CpuSet,
    /// CPUs of its package, or of its NUMA node where that is smaller. All possible CPUs where neither is described, as
    /// of a CPU that is offline.
    pub package: CpuSet,
}

/// All CPUs that may ever be there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// By number, from 0 to the highest possible one.
    pub cpus: Vec<Cpu>,
}

const CPUS: &str = "sys/devices/system/cpu";

impl Topology {
    /// Reads it. What a machine does not describe is made up for as the types say.
    ///
    /// # Errors
    /// The list of possible CPUs cannot be read, or is none.
    pub fn read(root: &Root) -> Result<Self> {
        let possible = root.possible_cpus()?;
        let nodes = nodes(root);
        let count = possible.last().map_or(1, |last| last + 1);
        let all = (0..count).collect();
        Ok(Self { cpus: (0..count).map(|cpu| read(root, cpu, &nodes, &all)).collect() })
    }

    /// Groups of CPUs that share `of` them (a core, a cache), each CPU's by its number, dense from 0.
    pub fn groups<'a>(&'a self, of: impl Fn(&'a Cpu) -> &'a CpuSet) -> Vec<u32> {
        let mut firsts: Vec<Option<u32>> = Vec::new();
        let number = |cpu| {
            let first = of(cpu).first();
            let known = firsts.iter().position(|known| *known == first);
            known.unwrap_or_else(|| {
                firsts.push(first);
                firsts.len() - 1
            }) as u32
        };
        self.cpus.iter().map(number).collect()
    }
}

fn read(root: &Root, cpu: u32, nodes: &[CpuSet], all: &CpuSet) -> Cpu {
    // A list that does not hold the CPU itself is a mistake of firmware or of a hypervisor.
    let list = |name: &str| {
        let cpus = root.parse::<CpuSet>(format!("{CPUS}/cpu{cpu}/{name}"))?.common(all);
        cpus.contains(cpu).then_some(cpus)
    };
    let node = nodes.iter().find(|node| node.contains(cpu));
    let package = list("topology/package_cpus_list");
    let package = match (package, node) {
        (Some(package), Some(node)) if !package.is_subset(node) => Some(node.common(all)),
        (None, Some(node)) => Some(node.common(all)),
        (package, _) => package,
    };
    let mut llc = package.clone();
    if let Some(cache) = last_cache(root, cpu).and_then(|index| list(&format!("cache/{index}/shared_cpu_list")))
        && llc.as_ref().is_none_or(|llc| cache.is_subset(llc))
    {
        llc = Some(cache);
    }
    if let Some(cluster) = list("topology/cluster_cpus_list")
        && llc.as_ref().is_some_and(|llc| llc.is_subset(&cluster))
    {
        llc = Some(cluster);
    }
    Cpu {
        core: list("topology/thread_siblings_list").unwrap_or_else(|| CpuSet::from_iter([cpu])),
        llc: llc.unwrap_or_else(|| all.clone()),
        package: package.unwrap_or_else(|| all.clone()),
    }
}

/// The folder of a CPU's highest cache above level 1.
fn last_cache(root: &Root, cpu: u32) -> Option<String> {
    let folder = format!("{CPUS}/cpu{cpu}/cache");
    let level = |index: &String| root.parse::<u32>(format!("{folder}/{index}/level")).unwrap_or(0);
    let caches = root.list(&folder).into_iter().map(|index| (level(&index), index));
    caches.filter(|(level, _)| *level >= 2).max_by_key(|(level, _)| *level).map(|(_, index)| index)
}

fn nodes(root: &Root) -> Vec<CpuSet> {
    // Numbers of nodes may have gaps.
    let folder = "sys/devices/system/node";
    let names = root.list(folder).into_iter().filter(|name| name.starts_with("node"));
    names.filter_map(|node| root.parse(format!("{folder}/{node}/cpulist"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Machine;

    /// A machine whose CPUs each have these lists, by the file's name below the CPU's folder.
    fn machine(possible: &str, files: &[(&str, &[(&str, &str)])]) -> Machine {
        let machine = Machine::new([(format!("{CPUS}/possible"), format!("{possible}\n"))]);
        for (file, lists) in files {
            for (cpus, text) in *lists {
                for cpu in cpus.parse::<CpuSet>().unwrap().iter() {
                    machine.put(&format!("{CPUS}/cpu{cpu}/{file}"), format!("{text}\n"));
                }
            }
        }
        machine
    }

    fn topology(machine: &Machine) -> Topology {
        Topology::read(&machine.root()).unwrap()
    }

    fn llcs(machine: &Machine) -> Vec<u32> {
        topology(machine).groups(|cpu| &cpu.llc)
    }

    const PACKAGE: &str = "topology/package_cpus_list";
    const CLUSTER: &str = "topology/cluster_cpus_list";

    #[test]
    fn two_caches_make_two_groups() {
        let machine = machine(
            "0-3",
            &[
                ("cache/index3/level", &[("0-3", "3")]),
                ("cache/index3/shared_cpu_list", &[("0-1", "0-1"), ("2-3", "2-3")]),
                ("cache/index0/level", &[("0-3", "1")]),
                ("cache/index0/shared_cpu_list", &[("0", "0"), ("1", "1"), ("2", "2"), ("3", "3")]),
            ],
        );
        assert_eq!(llcs(&machine), [0, 0, 1, 1]);
        let cpu = &topology(&machine).cpus[3];
        assert_eq!(
            (cpu.llc.to_string(), cpu.core.to_string(), cpu.package.to_string()),
            ("2-3".into(), "3".into(), "0-3".into())
        );
    }

    #[test]
    fn without_caches_the_package_counts_then_the_node_and_else_all_share() {
        let machine = machine("0-2", &[]);
        assert_eq!(llcs(&machine), [0, 0, 0]);
        machine.put("sys/devices/system/node/node0/cpulist", "0,2\n");
        machine.put("sys/devices/system/node/node2/cpulist", "1\n");
        assert_eq!(llcs(&machine), [0, 1, 0]);
        machine.put(&format!("{CPUS}/cpu0/{PACKAGE}"), "0-2\n");
        assert_eq!(llcs(&machine), [0, 1, 0], "nodes in a package");
        machine.put(&format!("{CPUS}/cpu0/{PACKAGE}"), "0\n");
        machine.put(&format!("{CPUS}/cpu2/{PACKAGE}"), "2\n");
        assert_eq!(llcs(&machine), [0, 1, 2], "packages in a node");
    }

    #[test]
    fn level_2_counts_where_there_is_no_third_and_level_1_never_does() {
        let little = machine(
            "0-3",
            &[
                (PACKAGE, &[("0-3", "0-3")]),
                ("cache/index0/level", &[("0-3", "1")]),
                ("cache/index0/shared_cpu_list", &[("0", "0"), ("1", "1"), ("2", "2"), ("3", "3")]),
                ("cache/index2/level", &[("0-3", "2")]),
                ("cache/index2/shared_cpu_list", &[("0-1", "0-1"), ("2-3", "2-3")]),
            ],
        );
        assert_eq!(llcs(&little), [0, 0, 1, 1]);
        let incomplete = machine(
            "0-1",
            &[("cache/index0/level", &[("0-1", "1")]), ("cache/index0/shared_cpu_list", &[("0", "0"), ("1", "1")])],
        );
        assert_eq!(llcs(&incomplete), [0, 0]);
    }

    #[test]
    fn a_cache_across_nodes_is_cut_at_the_node() {
        let machine = machine(
            "0-3",
            &[
                (PACKAGE, &[("0-3", "0-3")]),
                ("cache/index3/level", &[("0-3", "3")]),
                ("cache/index3/shared_cpu_list", &[("0-3", "0-3")]),
            ],
        );
        machine.put("sys/devices/system/node/node0/cpulist", "0-1\n");
        machine.put("sys/devices/system/node/node1/cpulist", "2-3\n");
        assert_eq!(llcs(&machine), [0, 0, 1, 1]);
    }

    #[test]
    fn a_cluster_widens_the_cache_of_one_core_and_never_narrows() {
        let own: &[(&str, &str)] = &[("0", "0"), ("1", "1"), ("2", "2"), ("3", "3")];
        let pairs: &[(&str, &str)] = &[("0-1", "0-1"), ("2-3", "2-3")];
        let level: &[(&str, &str)] = &[("0-3", "2")];
        let whole: &[(&str, &str)] = &[("0-3", "0-3")];
        let (cache, shared) = ("cache/index2/level", "cache/index2/shared_cpu_list");
        let widened = machine("0-3", &[(PACKAGE, whole), (cache, level), (shared, own), (CLUSTER, pairs)]);
        assert_eq!(llcs(&widened), [0, 0, 1, 1]);
        let alone = machine("0-3", &[(PACKAGE, whole), (cache, level), (shared, own), (CLUSTER, own)]);
        assert_eq!(llcs(&alone), [0, 1, 2, 3]);
        let below = machine("0-3", &[(PACKAGE, whole), (cache, level), (shared, whole), (CLUSTER, pairs)]);
        assert_eq!(llcs(&below), [0, 0, 0, 0]);
    }

    #[test]
    fn a_cpu_that_is_offline_stands_with_all() {
        let machine = machine("0-2", &[(PACKAGE, &[("0-1", "0-1")])]);
        let topology = topology(&machine);
        assert_eq!(topology.cpus[2].llc.to_string(), "0-2");
        assert_eq!(topology.groups(|cpu| &cpu.llc), [0, 0, 0], "no group of its own");
    }

    #[test]
    fn lists_that_cannot_be_are_not_believed() {
        let machine = machine("0-1", &[(PACKAGE, &[("0", "1"), ("1", "0-9")])]);
        let topology = topology(&machine);
        assert_eq!(topology.cpus[0].package.to_string(), "0-1");
        assert_eq!(topology.cpus[1].package.to_string(), "0-1");
        assert!(Topology::read(&Machine::new([("proc/x", "")]).root()).is_err());
    }
}
