//! Whether CPUs are asked for performance, who listens, and which CPUs are bigger than others.

use bytemuck::bytes_of;
use entrain_system::Root;
use libbpf_rs::{MapCore, MapFlags};
use tracing::info;

use super::energy::{self, Domain};
use super::options::{Options, Perf};
use super::topology::Topology;
use crate::cpus;
use crate::figures::LevelStatus;
use crate::interface::from_bytes;
use crate::skeleton::sched::types::{rodata, sched_perf_cpu};

/// What a level is multiplied by, 1/1024, by a listener that adds nothing, and by schedutil (`map_util_perf`).
const NOTHING_ADDED: u32 = 1024;
const SCHEDUTIL_ADDS: u32 = 1280;

/// What the scheduler is told.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Plan {
    /// Levels are asked for.
    pub(super) ask: bool,
    /// Tasks are placed by capacity.
    pub(super) place: bool,
    listener: u32,
    /// Of each CPU, 0 = not there.
    capacities: Vec<u32>,
    /// What work costs where; empty = not known.
    energy: Vec<Domain>,
}

impl Plan {
    pub(super) fn make(options: &Options, topology: &Topology) -> Self {
        let schedutil = schedutil(&options.root);
        let capacities = capacities(&options.root, &options.capacities, topology.cpus);
        let mut there = capacities.iter().filter(|capacity| **capacity > 0);
        let first = there.next();
        let differ = there.any(|capacity| Some(capacity) != first);
        let ask = match options.perf {
            Perf::Auto => schedutil || differ,
            Perf::On => true,
            Perf::Off => false,
        };
        let place = ask && differ;
        let energy = if place { energy::read(&options.root, &capacities) } else { Vec::new() };
        if ask {
            let who = if schedutil { "schedutil listens" } else { "no schedutil listens" };
            let place = match (place, energy.is_empty()) {
                (false, _) => "",
                (true, true) => "; tasks are placed by capacity",
                (true, false) => "; tasks are placed by capacity and by the kernel's energy model",
            };
            info!("asking CPUs for performance ({who}){place}");
        }
        let listener = if schedutil { SCHEDUTIL_ADDS } else { NOTHING_ADDED };
        Self { ask, place, listener, capacities, energy }
    }

    /// Before the programs are loaded.
    pub(super) fn describe(&self, data: &mut rodata) {
        data.use_perf = self.ask;
        data.use_capacity = self.place;
        data.perf_listener = self.listener;
        energy::describe(&self.energy, data);
    }

    /// After it.
    pub(super) fn write(&self, map: &impl MapCore) -> Result<(), libbpf_rs::Error> {
        tell(map, &self.capacities)
    }
}

/// Capacity of each CPU, 0 = not there: `own` where it is given, else the kernel's.
pub(super) fn capacities(root: &Root, own: &[u32], cpus: u32) -> Vec<u32> {
    let known = cpus::read(root);
    let capacity = |cpu: usize| {
        let own = own.get(cpu).copied();
        known.get(cpu).filter(|cpu| cpu.online).map_or(0, |cpu| own.unwrap_or(cpu.capacity))
    };
    (0..cpus as usize).map(capacity).collect()
}

/// Writes the capacities that have changed. What else is known of such a CPU is kept, but for what its tasks do at this
/// moment: it comes or goes, and has none.
pub(super) fn tell(map: &impl MapCore, capacities: &[u32]) -> Result<(), libbpf_rs::Error> {
    for (cpu, capacity) in capacities.iter().enumerate() {
        let key = (cpu as u32).to_ne_bytes();
        let old: Option<sched_perf_cpu> = map.lookup(&key, MapFlags::ANY)?.and_then(|value| from_bytes(&value));
        let old = old.unwrap_or_default();
        if old.capacity != *capacity {
            map.update(&key, bytes_of(&sched_perf_cpu { capacity: *capacity, ..old }), MapFlags::ANY)?;
        }
    }
    Ok(())
}

/// Whether some policy of cpufreq is governed by schedutil.
fn schedutil(root: &Root) -> bool {
    let folder = "sys/devices/system/cpu/cpufreq";
    let governor = |policy| root.trimmed(format!("{folder}/{policy}/scaling_governor"));
    root.list(folder).into_iter().filter_map(governor).any(|governor| governor == "schedutil")
}

/// What one CPU is asked to run at.
pub(super) fn level(map: &impl MapCore, cpu: u32) -> Option<LevelStatus> {
    let entry: sched_perf_cpu = from_bytes(&map.lookup(&cpu.to_ne_bytes(), MapFlags::ANY).ok()??)?;
    Some(LevelStatus {
        util: (entry.own.load >> 10).min(1024) as u32,
        claim: entry.claim,
        wanted: entry.wanted,
        asked: entry.level.asked,
        asks: entry.asks,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use entrain_system::fake::Machine;

    fn put(machine: &Machine, path: &str, text: &str) {
        machine.put(&format!("sys/devices/system/cpu/{path}"), text);
    }

    fn plan(machine: &Machine, perf: Perf, capacities: &[u32]) -> Plan {
        let options = Options { root: machine.root(), perf, capacities: capacities.into(), ..Options::default() };
        Plan::make(&options, &Topology::read(&options.root).expect("readable"))
    }

    #[test]
    fn a_plain_machine_is_left_alone() {
        let machine = Machine::default();
        put(&machine, "possible", "0-1\n");
        let off = Plan { ask: false, place: false, listener: 1024, capacities: vec![1024, 1024], energy: Vec::new() };
        assert_eq!(plan(&machine, Perf::Auto, &[]), off);
        assert_eq!(plan(&machine, Perf::On, &[]), Plan { ask: true, ..off });
        let differ = plan(&machine, Perf::Auto, &[446, 1024]);
        let (capacities, energy) = (vec![446, 1024], Vec::new());
        assert_eq!(differ, Plan { ask: true, place: true, listener: 1024, capacities, energy });
        assert!(!plan(&machine, Perf::Off, &[446, 1024]).place);
    }

    #[test]
    fn schedutil_is_asked_for_less_since_it_adds_a_quarter() {
        let machine = Machine::default();
        put(&machine, "possible", "0-1\n");
        put(&machine, "cpufreq/policy0/scaling_governor", "performance\n");
        assert!(!plan(&machine, Perf::Auto, &[]).ask);
        put(&machine, "cpufreq/policy1/scaling_governor", "schedutil\n");
        let with = plan(&machine, Perf::Auto, &[]);
        assert!(with.ask && !with.place && with.listener == 1280);
    }
}
