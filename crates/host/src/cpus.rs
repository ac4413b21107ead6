//! The host's pCPUs: how many, how strong, and which share a cache.

use entrain_system::{Root, Topology};

/// One possible pCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cpu {
    /// Lowest CPU of those that share its last-level cache; the kernel looks for an idle CPU among these. An offline CPU is
    /// in the first domain.
    pub(crate) domain: u32,
    /// Compute capacity, 1..=1024, 1024 = the strongest kind on this host.
    pub(crate) capacity: u32,
    /// Performance level from cpufreq, 0..=1024 of its highest frequency; 1024 when unknown.
    pub(crate) level: u32,
    /// It is there.
    pub(crate) online: bool,
}

/// Reads the possible pCPUs, indexed by number. What cannot be read is a host of one kind of CPU.
pub(crate) fn read(root: &Root) -> Vec<Cpu> {
    let online = root.cpus_or_none("sys/devices/system/cpu/online");
    let topology = Topology::read(root).map_or_else(|_| Vec::new(), |topology| topology.cpus);
    let count = topology.len().max(1) as u32;
    (0..count)
        .map(|cpu| {
            let own = format!("sys/devices/system/cpu/cpu{cpu}");
            let capacity: u64 = root.parse(format!("{own}/cpu_capacity")).unwrap_or(1024);
            Cpu {
                domain: topology.get(cpu as usize).and_then(|cpu| cpu.llc.first()).unwrap_or(0),
                capacity: capacity.clamp(1, 1024) as u32,
                level: level(root, &format!("{own}/cpufreq")).unwrap_or(1024),
                online: online.is_empty() || online.contains(cpu),
            }
        })
        .collect()
}

fn level(root: &Root, cpufreq: &str) -> Option<u32> {
    let now: u64 = root.parse(format!("{cpufreq}/scaling_cur_freq"))?;
    let most: u64 = root.parse(format!("{cpufreq}/cpuinfo_max_freq"))?;
    (most > 0).then(|| (now * 1024 / most).min(1024) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use entrain_system::fake::Machine;

    fn put(machine: &Machine, path: &str, text: &str) {
        machine.put(&format!("sys/devices/system/cpu/{path}"), text);
    }

    #[test]
    fn big_and_little_cpus_with_two_caches() {
        let machine = Machine::default();
        put(&machine, "possible", "0-3\n");
        put(&machine, "online", "0-2\n");
        for (cpu, shared, capacity) in [(0, "0-1", "1024"), (1, "0-1", "1024"), (2, "2-3", "446"), (3, "2-3", "446")] {
            put(&machine, &format!("cpu{cpu}/cache/index2/level"), "3\n");
            put(&machine, &format!("cpu{cpu}/cache/index2/shared_cpu_list"), &format!("{shared}\n"));
            put(&machine, &format!("cpu{cpu}/cpu_capacity"), &format!("{capacity}\n"));
        }
        put(&machine, "cpu2/cpufreq/scaling_cur_freq", "900000\n");
        put(&machine, "cpu2/cpufreq/cpuinfo_max_freq", "1800000\n");
        let cpus = read(&machine.root());
        assert_eq!(cpus.len(), 4);
        assert_eq!(cpus[1], Cpu { domain: 0, capacity: 1024, level: 1024, online: true });
        assert_eq!(cpus[2], Cpu { domain: 2, capacity: 446, level: 512, online: true });
        assert!(!cpus[3].online);
    }

    #[test]
    fn without_description_all_share_one_domain() {
        let machine = Machine::default();
        put(&machine, "possible", "0-1\n");
        let cpus = read(&machine.root());
        assert_eq!(cpus, vec![Cpu { domain: 0, capacity: 1024, level: 1024, online: true }; 2]);
    }
}
