//! From the object to loaded programs that know the host's CPUs.

use std::mem::MaybeUninit;
use std::os::fd::AsFd;

use entrain_bpf::Features;
use entrain_system::Root;
use libbpf_rs::OpenObject;
use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};

use super::error::{ScheduleError, kernel};
use super::options::Options;
use super::topology::Topology;
use super::{counter, cpus, perf, tunables};
use crate::complexity::{self, Complexity};
use crate::skeleton::sched;

/// The verifier's work for the scheduler's programs, loaded for this and not started.
pub(crate) fn measure(features: &Features) -> Result<Vec<Complexity>, ScheduleError> {
    let options = Options { spins: features.kvm_wfx, ..Options::default() };
    let storage: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
    let topology = Topology::read(&options.root)?;
    let plan = perf::Plan::make(&options, &topology);
    let skel = load(storage, features, &options, &topology, &plan)?;
    Ok(complexity::of(skel.object()))
}

/// Whether an x86 has AMD's virtualization, and whether Intel's: the kernel may know the types of both.
fn virtualization(root: &Root) -> (bool, bool) {
    let text = root.text("proc/cpuinfo").unwrap_or_default();
    let flags = text.lines().find_map(|line| line.strip_prefix("flags")).unwrap_or_default();
    let has = |name| flags.split_whitespace().any(|flag| flag == name);
    (has("svm"), has("vmx"))
}

/// Loads the programs and tells them what they run on.
pub(super) fn load(
    storage: &'static mut MaybeUninit<OpenObject>,
    features: &Features,
    options: &Options,
    topology: &Topology,
    plan: &perf::Plan,
) -> Result<sched::SchedSkel<'static>, ScheduleError> {
    let mut open = sched::SchedSkelBuilder::default().open(storage).map_err(kernel("opening its object"))?;
    let rodata = open.maps.rodata_data.as_deref_mut().expect("the object has tunables");
    rodata.nr_cpus = topology.cpus;
    (rodata.x86_svm, rodata.x86_vmx) = virtualization(&options.root);
    plan.describe(rodata);
    for (name, value) in &options.tune {
        tunables::set(rodata, name, value)?;
    }
    open.progs.host_wfx.set_autoload(options.spins);
    open.progs.host_timer.set_autoload(features.kvm_timer);
    for (name, fd) in &options.share {
        for mut map in open.open_object_mut().maps_mut() {
            if map.name() == *name {
                map.reuse_fd(fd.as_fd()).map_err(kernel("sharing the channel's maps"))?;
            }
        }
    }
    let mut skel = open.load().map_err(kernel("loading its programs"))?;
    plan.write(&skel.maps.sched_perf_cpus).map_err(kernel("describing its CPUs"))?;
    cpus::place(&mut skel, topology, false)?;
    counter::tell(&mut skel);
    Ok(skel)
}

#[cfg(test)]
mod tests {
    use super::*;
    use entrain_system::fake::Machine;

    #[test]
    fn whose_virtualization_there_is_stands_in_the_flags() {
        let of = |text: &str| virtualization(&Machine::new([("proc/cpuinfo", text)]).root());
        assert_eq!(of("processor\t: 0\nflags\t\t: fpu svm avx\nbugs\t\t: none\n"), (true, false));
        assert_eq!(of("flags\t\t: fpu vmx\nvmx flags\t: svm\n"), (false, true));
        assert_eq!(of("processor\t: 0\nFeatures\t: fp asimd\n"), (false, false));
    }
}
