//! From the object to loaded programs that know the host's CPUs.

use std::mem::MaybeUninit;
use std::os::fd::AsFd;

use bytemuck::bytes_of;
use entrain_bpf::Features;
use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, OpenObject};

use super::error::{ScheduleError, kernel};
use super::options::Options;
use super::topology::Topology;
use super::{perf, tunables};
use crate::complexity::{self, Complexity};
use crate::skeleton::sched;

/// The verifier's work for the scheduler's programs, loaded for this and not started.
pub(crate) fn measure(features: &Features) -> Result<Vec<Complexity>, ScheduleError> {
    let options = Options { spins: features.kvm_wfx, ..Options::default() };
    let storage: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
    let topology = Topology::read(&options.root)?;
    let plan = perf::Plan::make(&options, &topology);
    let skel = load(storage, &options, &topology, &plan)?;
    Ok(complexity::of(skel.object()))
}

/// Loads the programs and tells them what they run on.
pub(super) fn load(
    storage: &'static mut MaybeUninit<OpenObject>,
    options: &Options,
    topology: &Topology,
    plan: &perf::Plan,
) -> Result<sched::SchedSkel<'static>, ScheduleError> {
    let mut open = sched::SchedSkelBuilder::default().open(storage).map_err(kernel("opening its object"))?;
    let rodata = open.maps.rodata_data.as_deref_mut().expect("the object has tunables");
    rodata.nr_cpus = topology.cpus;
    rodata.nr_llcs = topology.llcs;
    plan.describe(rodata);
    for (name, value) in &options.tune {
        tunables::set(rodata, name, value)?;
    }
    open.progs.host_wfx.set_autoload(options.spins);
    for (name, fd) in &options.share {
        for mut map in open.open_object_mut().maps_mut() {
            if map.name() == *name {
                map.reuse_fd(fd.as_fd()).map_err(kernel("sharing the channel's maps"))?;
            }
        }
    }
    let skel = open.load().map_err(kernel("loading its programs"))?;
    plan.write(&skel.maps.sched_perf_cpus).map_err(kernel("describing its CPUs"))?;
    for (cpu, llc) in topology.llc_of.iter().enumerate() {
        // Nothing is scheduled yet: the rest of the entry is 0.
        let entry = sched::types::cpu_ctx { llc: *llc, ..Default::default() };
        let key = (cpu as u32).to_ne_bytes();
        skel.maps.sched_cpus.update(&key, bytes_of(&entry), MapFlags::ANY).map_err(kernel("describing its CPUs"))?;
    }
    Ok(skel)
}
