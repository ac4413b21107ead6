//! Which VMs this host runs, for whoever wants to know: the daemon, the recorder.

use std::collections::{BTreeMap, HashMap};
use std::io::{ErrorKind, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use entrain_bpf::{ArrayView, Error, Step};
use entrain_system::Root;
use libbpf_rs::query::MapInfoIter;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Iter, Link, MapCore, MapHandle};

use crate::discover::{FoundVm, group};
use crate::identity::Identity;
use crate::interface::{FOUND_VM, Found, HOST_VCPUS, ListArgs, LookArgs, Vcpu, from_bytes};
use crate::programs::run;
use crate::skeleton::discover;
use crate::vm_list::{Kernel, Seen, VmList};

/// The loaded discovery programs; they run only when they are asked.
pub struct Finder {
    programs: Loaded,
    list: VmList,
}

struct Loaded {
    link: Link,
    skel: discover::DiscoverSkel<'static>,
    table: ArrayView<Found>,
    /// Whether the programs that walk KVM's list are loaded.
    has_list: bool,
}

/// Loads the programs, with those that walk KVM's list or without.
fn open(list: bool) -> Result<discover::DiscoverSkel<'static>, Error> {
    // The object lives as long as the process.
    let storage = Box::leak(Box::new(MaybeUninit::uninit()));
    let mut open = discover::DiscoverSkelBuilder::default().open(storage).map_err(Error::at(Step::Open, "discover"))?;
    open.progs.list_vms.set_autoload(list);
    open.progs.look_into_vm.set_autoload(list);
    open.load().map_err(Error::at(Step::Load, "discover"))
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
    /// Loads the programs; where the kernel refuses those that walk its list, all VMs are found by their files.
    pub fn load() -> Result<Self, Error> {
        let (skel, has_list) = match open(true) {
            Ok(skel) => (skel, true),
            Err(error) => (open(false).map_err(|_| error)?, false),
        };
        let link = skel.progs.discover.attach().map_err(Error::at(Step::Attach, "discover"))?;
        let entries = skel.maps.found.max_entries() as usize;
        // SAFETY: the skeleton's type of the map's value, plain numbers all.
        let table = unsafe { ArrayView::new(skel.maps.found.as_fd(), entries) };
        let table = table.map_err(|error| Error::at(Step::Run, "found")(std::io::Error::from(error).into()))?;
        Ok(Self { programs: Loaded { link, skel, table, has_list }, list: VmList::default() })
    }

    /// The VMs that there are now, by the address of the kernel's struct kvm; `None`: that cannot be said now.
    pub(crate) fn vms(&mut self) -> Result<Option<BTreeMap<u64, FoundVm>>, Error> {
        Ok(match self.list.look(&mut self.programs)? {
            Seen::All(records) => Some(group(&records)),
            Seen::Changing => None,
            Seen::Unknown => Some(group(&self.programs.walk()?)),
        })
    }

    /// The VMs that have run, by pid.
    pub fn machines(&mut self) -> Result<Vec<Machine>, Error> {
        let found = self.vms()?.unwrap_or_default();
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

impl Loaded {
    /// One pass over all open files of all processes.
    fn iterate(&mut self) -> Result<Iter, Error> {
        if let Some(data) = self.skel.maps.bss_data.as_deref_mut() {
            data.pass += 1;
        }
        Iter::new(&self.link).map_err(Error::at(Step::Run, "discover"))
    }

    /// Everything about all VMs that an open file leads to.
    fn walk(&mut self) -> Result<Vec<Found>, Error> {
        let mut bytes = Vec::new();
        let mut iter = self.iterate()?;
        loop {
            match iter.read_to_end(&mut bytes) {
                Ok(_) => break,
                // A million files without one: the kernel goes on where it stopped.
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(at("discover")(error)),
            }
        }
        Ok(bytes.chunks_exact(size_of::<Found>()).filter_map(from_bytes).collect())
    }

    fn found(&self, count: u32) -> Vec<Found> {
        (0..self.table.entries().min(count as usize)).map(|entry| self.table.get(entry)).collect()
    }
}

impl Kernel for Loaded {
    type Error = Error;

    fn first(&mut self) -> Result<Option<u64>, Error> {
        if !self.has_list {
            return Ok(Some(0));
        }
        let mut iter = self.iterate()?;
        let mut record = [0; size_of::<Found>()];
        loop {
            // The kernel hands out what there is as soon as it fills the buffer, and looks no further.
            match iter.read(&mut record) {
                Ok(0) => return Ok(None),
                Ok(_) => match from_bytes::<Found>(&record) {
                    Some(found) if found.kind == FOUND_VM => return Ok(Some(found.c)),
                    _ => {}
                },
                // A million files without one.
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(at("discover")(error)),
            }
        }
    }

    fn list(&mut self, args: &mut ListArgs) -> Result<Vec<Found>, Error> {
        run(&self.skel.progs.list_vms, "list_vms", args)?;
        Ok(self.found(args.count))
    }

    fn look(&mut self, args: &mut LookArgs) -> Result<Vec<Found>, Error> {
        run(&self.skel.progs.look_into_vm, "look_into_vm", args)?;
        Ok(self.found(args.count))
    }
}

fn at(program: &str) -> impl Fn(std::io::Error) -> Error {
    move |error| Error::at(Step::Run, program)(libbpf_rs::Error::from(error))
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

#[cfg(test)]
mod tests {
    use super::*;

    /// On this computer as it is, best with some VMs: `entrain-load besiege --seconds 60 --vcpus 300`.
    #[test]
    #[ignore = "takes root, BPF and KVM"]
    fn the_list_tells_what_the_files_tell() {
        let mut finder = Finder::load().expect("root, and a kernel with BPF");
        let by_files = group(&finder.programs.walk().expect("the files"));
        let by_list = finder.vms().expect("the list").expect("it stands still");
        assert_eq!(by_list, by_files);
        // The second time without the files, and without the slots.
        assert_eq!(finder.vms().expect("the list").expect("it stands still"), by_files);
        let vcpus = by_list.values().map(|vm| vm.vcpus.len()).sum::<usize>();
        println!("{} VMs, {vcpus} vCPUs", by_list.len());
    }
}
