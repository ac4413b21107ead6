//! Which VMs this host runs, for whoever wants to know: the daemon, the recorder.

use std::collections::{BTreeMap, HashMap};
use std::io::Read;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use entrain_bpf::{ArrayView, Error, Step};
use entrain_system::Root;
use libbpf_rs::query::MapInfoIter;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Iter, Link, MapHandle};

use crate::discover::{FoundVm, group};
use crate::identity::Identity;
use crate::interface::{Found, HOST_VCPUS, Vcpu, from_bytes};
use crate::skeleton::discover;

/// The loaded discovery program; it runs only when it is asked.
pub struct Finder {
    link: Link,
    skel: discover::DiscoverSkel<'static>,
}

/// A VM that runs on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Tells VMs of one process apart; the address of the kernel's struct kvm.
    pub kvm: u64,
    /// For people.
    pub name: String,
    /// The VMM's process.
    pub pid: i32,
    /// Its vCPUs that have run, in the order of their numbers.
    pub vcpus: Vec<MachineVcpu>,
}

/// A vCPU of a [`Machine`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachineVcpu {
    /// KVM's vcpu_id.
    pub id: u32,
    /// The thread that runs it.
    pub tid: i32,
    /// Address of the kernel's struct kvm_vcpu, for probes.
    pub kvm_vcpu: u64,
    /// By how much its counter is ahead of the host's, where the kernel tells.
    pub counter: Option<i64>,
}

impl Finder {
    /// Loads the program.
    pub fn load() -> Result<Self, Error> {
        // The object lives as long as the process.
        let storage = Box::leak(Box::new(MaybeUninit::uninit()));
        let open = discover::DiscoverSkelBuilder::default().open(storage).map_err(Error::at(Step::Open, "discover"))?;
        let skel = open.load().map_err(Error::at(Step::Load, "discover"))?;
        let link = skel.progs.discover.attach().map_err(Error::at(Step::Attach, "discover"))?;
        Ok(Self { link, skel })
    }

    /// One pass over all open files of all processes: VMs by the address of the kernel's struct kvm.
    pub(crate) fn vms(&mut self) -> Result<BTreeMap<u64, FoundVm>, Error> {
        Ok(group(&self.records()?))
    }

    fn records(&mut self) -> Result<Vec<Found>, Error> {
        if let Some(data) = self.skel.maps.bss_data.as_deref_mut() {
            data.pass += 1;
        }
        let mut iter = Iter::new(&self.link).map_err(Error::at(Step::Run, "discover"))?;
        let mut bytes = Vec::new();
        iter.read_to_end(&mut bytes).map_err(|e| Error::at(Step::Run, "discover")(libbpf_rs::Error::from(e)))?;
        Ok(bytes.chunks_exact(size_of::<Found>()).filter_map(from_bytes).collect())
    }

    /// The VMs that have run, by pid.
    pub fn machines(&mut self) -> Result<Vec<Machine>, Error> {
        let found = self.vms()?;
        let mut machines: Vec<Machine> = found
            .into_iter()
            .filter(|(_, found)| !found.vcpus.is_empty())
            .map(|(kvm, found)| Machine {
                kvm,
                name: Identity::of(&Root::live(), found.tgid).name,
                pid: found.tgid,
                vcpus: found
                    .vcpus
                    .iter()
                    .map(|(id, vcpu)| MachineVcpu {
                        id: *id,
                        tid: vcpu.tid,
                        kvm_vcpu: vcpu.kvm_vcpu,
                        counter: vcpu.counter,
                    })
                    .collect(),
            })
            .collect();
        machines.sort_by_key(|machine| (machine.pid, machine.kvm));
        Ok(machines)
    }
}

/// The daemon's table of vCPUs, if a daemon of this version runs.
pub struct DaemonTable {
    map: OwnedFd,
    view: ArrayView<Vcpu>,
}

impl DaemonTable {
    /// Looks among the kernel's BPF maps; the table that holds any of these threads is the one.
    pub fn find(tids: &[i32]) -> Option<Self> {
        MapInfoIter::default()
            .filter(|info| {
                info.name == "vcpus"
                    && info.max_entries as usize == HOST_VCPUS
                    && info.value_size as usize == size_of::<Vcpu>()
            })
            .filter_map(|info| {
                let map = MapHandle::from_map_id(info.id).ok()?.as_fd().try_clone_to_owned().ok()?;
                // SAFETY: a map of this name and shape is the daemon's, whose values are plain numbers; at worst they
                // mean nothing, and then no thread is found.
                let view = unsafe { ArrayView::new(map.as_fd(), HOST_VCPUS).ok()? };
                Some(Self { map, view })
            })
            .find(|table| !table.entries(tids).is_empty())
    }

    /// For a BPF object to share.
    pub fn map(&self) -> &OwnedFd {
        &self.map
    }

    /// Where these threads are in the table.
    pub fn entries(&self, tids: &[i32]) -> HashMap<i32, u32> {
        (0..HOST_VCPUS)
            .filter_map(|index| {
                let entry = self.view.get(index);
                (entry.used == 1 && tids.contains(&entry.tid)).then_some((entry.tid, index as u32))
            })
            .collect()
    }
}
