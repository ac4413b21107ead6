//! Tells the loaded scheduler where the CPUs are, and again when some have come or gone: it goes on meanwhile.

use bytemuck::bytes_of_mut;
use entrain_system::Root;
use libbpf_rs::ProgramInput;
use tracing::{info, warn};

use super::error::{ScheduleError, kernel};
use super::perf;
use super::topology::Topology;
use crate::skeleton::sched::SchedSkel;
use crate::skeleton::sched::types::sched_arrange_args;

/// `SCHED_NO_LLC`.
const NO_LLC: u32 = u32::MAX;

/// Writes where each CPU is, and has the BPF side put them in order. `running`: tasks are scheduled already.
pub(super) fn place(skel: &mut SchedSkel<'_>, topology: &Topology, running: bool) -> Result<(), ScheduleError> {
    let data = skel.maps.bss_data.as_deref_mut().expect("the object has variables");
    for (place, llc) in data.llc_of.iter_mut().zip(&topology.llc_of) {
        // SAFETY: an aligned word of the mapped data, which BPF only reads.
        unsafe { (&raw mut *place).write_volatile(llc.unwrap_or(NO_LLC)) };
    }
    let mut args = sched_arrange_args { running: running.into() };
    let input = ProgramInput { context_in: Some(bytes_of_mut(&mut args)), ..ProgramInput::default() };
    skel.progs.host_arrange.test_run(input).map(drop).map_err(kernel("describing its CPUs"))
}

/// CPUs as the scheduler knows them.
pub(super) struct Cpus {
    pub(super) topology: Topology,
    root: Root,
    /// Capacities that were given instead of the kernel's.
    capacities: Vec<u32>,
    /// How often CPUs had come or gone when they were looked at.
    changes: u32,
}

impl Cpus {
    pub(super) fn new(topology: Topology, root: &Root, capacities: &[u32]) -> Self {
        // Unlike any count at first: one look more, in case that CPUs came or went while the scheduler was loaded.
        Self { topology, root: root.clone(), capacities: capacities.into(), changes: u32::MAX }
    }

    /// Looks whether CPUs have come or gone, and places them anew. What cannot be read or told now is tried again with
    /// the next call.
    pub(super) fn follow(&mut self, skel: &mut SchedSkel<'_>, asks: bool) {
        let Some(data) = skel.maps.bss_data.as_deref() else { return };
        // SAFETY: an aligned word of the mapped data, which BPF alone writes.
        let changes = unsafe { (&raw const data.cpu_changes).read_volatile() };
        if changes == self.changes {
            return;
        }
        let placed = self.topology.follow(&self.root).map_err(ScheduleError::from).and_then(|topology| {
            place(skel, &topology, true)?;
            if asks {
                let capacities = perf::capacities(&self.root, &self.capacities, topology.cpus);
                perf::tell(&skel.maps.sched_perf_cpus, &capacities).map_err(kernel("describing its CPUs"))?;
            }
            Ok(topology)
        });
        match placed {
            Ok(topology) => {
                let there = topology.llc_of.iter().flatten().count();
                if topology != self.topology {
                    info!("CPUs have come or gone: {there} are there");
                }
                self.topology = topology;
                self.changes = changes;
            }
            Err(error) => warn!("CPUs have come or gone, and the scheduler cannot be told yet: {error}"),
        }
    }
}
