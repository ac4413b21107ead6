//! How a host machine's CPUs stand to one another: sockets, caches, NUMA nodes, threads of a core.
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::Arch;

/// The shape. CPUs are dealt out evenly, in the order of their numbers.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Topology {
    /// Sockets.
    pub sockets: u32,
    /// Groups of cores in each socket that share a last-level cache: clusters on aarch64, dies on x86_64.
    pub clusters: u32,
    /// Threads of each core.
    pub threads: u32,
    /// NUMA nodes, each with as much memory as the others. CPUs that share a cache are in one node.
    pub nodes: u32,
}

impl Default for Topology {
    /// One socket, one cache, one node; each CPU is a core.
    fn default() -> Self {
        Self { sockets: 1, clusters: 1, threads: 1, nodes: 1 }
    }
}

impl FromStr for Topology {
    type Err = String;
    /// Four numbers: sockets, clusters in each, threads of a core, nodes.
    fn from_str(s: &str) -> Result<Self, String> {
        let numbers: Result<Vec<u32>, _> = s.split(',').map(str::parse).collect();
        match numbers.as_deref() {
            Ok(&[sockets, clusters, threads, nodes]) => Ok(Self { sockets, clusters, threads, nodes }),
            _ => Err(format!("'{s}' is not four numbers: sockets,clusters,threads,nodes")),
        }
    }
}

impl Topology {
    /// What is wrong with it for so many CPUs, if anything.
    pub fn fault(&self, cpus: u32) -> Option<String> {
        let Self { sockets, clusters, threads, nodes } = *self;
        if [sockets, clusters, threads, nodes].contains(&0) {
            return Some("sockets, clusters, threads and nodes are at least 1".into());
        }
        let groups = sockets * clusters;
        if !cpus.is_multiple_of(groups * threads) {
            return Some(format!(
                "{cpus} CPUs cannot be dealt out to {groups} clusters of cores with {threads} threads"
            ));
        }
        if !groups.is_multiple_of(nodes) {
            return Some(format!("{groups} clusters cannot be dealt out to {nodes} nodes"));
        }
        None
    }

    /// QEMU's `-smp` for so many CPUs.
    pub(super) fn smp(&self, arch: Arch, cpus: u32) -> String {
        if *self == Self::default() {
            return cpus.to_string();
        }
        let Self { sockets, clusters, threads, .. } = *self;
        let group = match arch {
            Arch::Aarch64 => "clusters",
            Arch::X86_64 => "dies",
        };
        let cores = cpus / (sockets * clusters * threads);
        format!("{cpus},sockets={sockets},{group}={clusters},cores={cores},threads={threads}")
    }

    /// What QEMU's `-machine` must say beside the board, so that the kernel sees the caches: on aarch64 it tells of none by
    /// itself. The emulated CPU has two levels; the second is the cluster's.
    pub(super) fn caches(&self, arch: Arch) -> String {
        if *self == Self::default() || arch == Arch::X86_64 {
            return String::new();
        }
        let levels = [("l1d", "core"), ("l1i", "core"), ("l2", "cluster")];
        let level = |(n, (cache, shared))| format!(",smp-cache.{n}.cache={cache},smp-cache.{n}.topology={shared}");
        levels.into_iter().enumerate().map(level).collect()
    }

    /// QEMU's arguments for the NUMA nodes: memory and CPUs of each.
    pub(super) fn numa(&self, cpus: u32, memory_mib: u32) -> Vec<String> {
        if self.nodes == 1 {
            return Vec::new();
        }
        let (each, memory) = (cpus / self.nodes, memory_mib / self.nodes);
        (0..self.nodes)
            .flat_map(|n| {
                let last = (n + 1) * each - 1;
                [
                    "-object".to_owned(),
                    format!("memory-backend-ram,id=node{n},size={memory}M"),
                    "-numa".to_owned(),
                    format!("node,nodeid={n},cpus={}-{last},memdev=node{n}", n * each),
                ]
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO_CACHES: Topology = Topology { sockets: 1, clusters: 2, threads: 1, nodes: 2 };

    #[test]
    fn cpus_are_dealt_out_evenly_or_not_at_all() {
        assert_eq!(TWO_CACHES.fault(8), None);
        assert!(TWO_CACHES.fault(7).is_some());
        assert!(Topology { nodes: 3, ..TWO_CACHES }.fault(8).is_some());
        assert_eq!("1,2,1,2".parse(), Ok(TWO_CACHES));
        assert!("1,2".parse::<Topology>().is_err() && "1,2,1,x".parse::<Topology>().is_err());
        assert!(Topology { threads: 0, ..TWO_CACHES }.fault(8).is_some());
        assert_eq!(Topology { sockets: 2, clusters: 2, threads: 2, nodes: 2 }.fault(16), None);
    }

    #[test]
    fn qemu_is_told_the_shape() {
        assert_eq!(Topology::default().smp(Arch::Aarch64, 2), "2");
        assert_eq!(TWO_CACHES.smp(Arch::Aarch64, 8), "8,sockets=1,clusters=2,cores=4,threads=1");
        assert_eq!(TWO_CACHES.smp(Arch::X86_64, 8), "8,sockets=1,dies=2,cores=4,threads=1");
        assert!(TWO_CACHES.caches(Arch::Aarch64).ends_with(",smp-cache.2.cache=l2,smp-cache.2.topology=cluster"));
        let numa = TWO_CACHES.numa(8, 4096);
        assert_eq!(numa[3], "node,nodeid=0,cpus=0-3,memdev=node0");
        assert_eq!(numa[6..], ["-numa", "node,nodeid=1,cpus=4-7,memdev=node1"]);
    }
}
