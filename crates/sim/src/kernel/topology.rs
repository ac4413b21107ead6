//! Which CPUs share a core, a last-level cache, a node.

use super::mask::CpuMask;

/// The shape of a machine: how many of each stand in the next larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Shape {
    /// NUMA nodes.
    pub nodes: u32,
    /// Last-level caches in a node.
    pub llcs: u32,
    /// Cores at a cache.
    pub cores: u32,
    /// Threads of a core.
    pub threads: u32,
}

impl Shape {
    /// One node, one cache, no SMT.
    pub const fn flat(cpus: u32) -> Self {
        Self { nodes: 1, llcs: 1, cores: cpus, threads: 1 }
    }

    /// All CPUs.
    pub const fn cpus(&self) -> u32 {
        self.nodes * self.llcs * self.cores * self.threads
    }
}

/// A machine's CPUs and their neighbours. Threads of a core have neighbouring numbers.
pub struct Topology {
    /// What it was made from.
    pub shape: Shape,
    /// All CPUs.
    pub all: CpuMask,
    cores: Vec<CpuMask>,
    llcs: Vec<CpuMask>,
    nodes: Vec<CpuMask>,
}

impl Topology {
    /// Numbers the CPUs of a shape.
    pub fn new(shape: Shape) -> Self {
        let groups = |size: u32| (0..shape.cpus() / size).map(|g| (g * size..(g + 1) * size).collect()).collect();
        Self {
            shape,
            all: CpuMask::first(shape.cpus() as usize),
            cores: groups(shape.threads),
            llcs: groups(shape.threads * shape.cores),
            nodes: groups(shape.threads * shape.cores * shape.llcs),
        }
    }

    /// Number of CPUs.
    pub fn cpus(&self) -> u32 {
        self.shape.cpus()
    }

    /// Whether cores have more than one thread: `sched_smt_active()`.
    pub fn smt(&self) -> bool {
        self.shape.threads > 1
    }

    /// Number of last-level caches.
    pub fn nr_llcs(&self) -> u32 {
        self.llcs.len() as u32
    }

    /// The last-level cache of a CPU.
    pub fn llc_of(&self, cpu: u32) -> u32 {
        cpu / (self.shape.threads * self.shape.cores)
    }

    /// The node of a CPU.
    pub fn node_of(&self, cpu: u32) -> u32 {
        cpu / (self.shape.threads * self.shape.cores * self.shape.llcs)
    }

    /// The threads of a CPU's core, itself among them.
    pub fn core(&self, cpu: u32) -> &CpuMask {
        &self.cores[(cpu / self.shape.threads) as usize]
    }

    /// The CPUs at a CPU's last-level cache.
    pub fn llc(&self, cpu: u32) -> &CpuMask {
        &self.llcs[self.llc_of(cpu) as usize]
    }

    /// The same, as numbers: they are neighbours.
    pub fn llc_cpus(&self, cpu: u32) -> std::ops::Range<u32> {
        let (llc, cpus) = (self.llc_of(cpu), self.shape.threads * self.shape.cores);
        llc * cpus..(llc + 1) * cpus
    }

    /// The CPUs of a CPU's node.
    pub fn node(&self, cpu: u32) -> &CpuMask {
        self.node_cpus(self.node_of(cpu))
    }

    /// The CPUs of a node.
    pub fn node_cpus(&self, node: u32) -> &CpuMask {
        &self.nodes[node as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_a_core_are_neighbours() {
        let t = Topology::new(Shape { nodes: 2, llcs: 2, cores: 4, threads: 2 });
        assert_eq!(t.cpus(), 32);
        assert_eq!(t.core(5).iter().collect::<Vec<_>>(), [4, 5]);
        assert_eq!(t.llc(9).iter().collect::<Vec<_>>(), (8..16).collect::<Vec<_>>());
        assert_eq!((t.llc_of(31), t.node_of(31), t.node(0).count()), (3, 1, 16));
    }
}
