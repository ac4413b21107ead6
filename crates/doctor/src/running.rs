//! The VMs that run here: KVM's files among the open ones of each process, and what backs the biggest part of its memory.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use entrain_host::Identity;
use entrain_system::maps;
use serde::Serialize;

use crate::machine::Machine;
use crate::vmm::Vmm;

/// A mapping up to this is not the RAM of a VM: 16 MiB boots no Linux, and is what QEMU's graphics card has.
const NO_RAM: u64 = 16 << 20;
const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;

/// What stands behind a VM's RAM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Backing {
    /// A file (memfd, tmpfs, a disk's) that is mapped shared.
    Shared,
    /// Huge pages of hugetlbfs, mapped shared.
    SharedHuge,
    /// Memory that the VMM alone sees.
    Private,
    /// The same, of huge pages.
    PrivateHuge,
    /// guest_memfd: a confidential guest, whose memory the host cannot read.
    Confidential,
}

/// A VM's RAM, as its VMM has mapped it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Ram {
    /// Bytes that QEMU was told to give it, else those of all mappings of this kind.
    pub bytes: u64,
    /// What stands behind them.
    pub backing: Backing,
}

/// A process that runs a VM.
#[derive(Clone, Debug, Serialize)]
pub struct RunningVm {
    /// The process.
    pub pid: i32,
    /// Its name, its UUID, its manager and what that calls it.
    #[serde(flatten)]
    pub identity: Identity,
    /// The program.
    pub vmm: Vmm,
    /// vCPUs that it has made.
    pub vcpus: usize,
    /// `None` where its memory map cannot be read.
    pub ram: Option<Ram>,
}

/// All processes that hold a VM of KVM. Without the right to look into processes of others, there are none.
pub(crate) fn find(machine: &Machine) -> Vec<RunningVm> {
    let pids = machine.root.list("proc").into_iter().filter_map(|name| name.parse().ok());
    pids.filter_map(|pid| look(machine, pid)).collect()
}

fn look(machine: &Machine, pid: i32) -> Option<RunningVm> {
    let fds = format!("proc/{pid}/fd");
    let files: Vec<String> =
        machine.root.list(&fds).iter().filter_map(|fd| machine.root.link(Path::new(&fds).join(fd))).collect();
    // The name that the kernel gives to KVM's own files; no user can make a file of that name.
    if !files.iter().any(|file| file == "anon_inode:kvm-vm") {
        return None;
    }
    // A VMM may hold a vCPU's file more than once.
    let vcpus: BTreeSet<&String> = files.iter().filter(|file| file.starts_with("anon_inode:kvm-vcpu:")).collect();
    let vcpus = vcpus.len();
    let confidential = files.iter().any(|file| file.contains("kvm-gmem"));
    let line = machine.root.text(format!("proc/{pid}/cmdline")).unwrap_or_default();
    let words: Vec<String> = line.split('\0').map(str::to_owned).collect();
    let program =
        machine.root.link(format!("proc/{pid}/exe")).or_else(|| machine.root.text(format!("proc/{pid}/comm")));
    let identity = Identity::of(&machine.root, pid);
    let vmm = Vmm::recognise(program.unwrap_or_default().trim(), &words, identity.manager);
    let told = vmm.ram(&words);
    let ram = ram(machine, pid).map(|ram| Ram {
        bytes: told.unwrap_or(ram.bytes),
        backing: if confidential { Backing::Confidential } else { ram.backing },
    });
    Some(RunningVm { pid, identity, vmm, vcpus, ram })
}

/// The RAM is what most of the process's big writable mappings are. That is a guess, since only KVM's memory slots tell
/// for certain; `entrain host` reads those, and its word (`vm.agent`) counts more.
fn ram(machine: &Machine, pid: i32) -> Option<Ram> {
    let mut sums: BTreeMap<Backing, u64> = BTreeMap::new();
    for mapping in maps::of(&machine.root, pid).ok()? {
        if mapping.bytes() <= NO_RAM || !mapping.writable {
            continue;
        }
        let huge = mapping.path.starts_with("/anon_hugepage")
            || mapping.file && is_hugetlb(&machine.root.path(format!("proc/{pid}/map_files/{}", mapping.map_file())));
        let backing = match (mapping.shared && mapping.file, huge) {
            (true, false) => Backing::Shared,
            (true, true) => Backing::SharedHuge,
            (false, false) => Backing::Private,
            (false, true) => Backing::PrivateHuge,
        };
        *sums.entry(backing).or_default() += mapping.bytes();
    }
    sums.into_iter().max_by_key(|(_, bytes)| *bytes).map(|(backing, bytes)| Ram { bytes, backing })
}

/// Asks for the file system behind a mapping; its page sizes in `smaps` would cost the VM a walk of its page tables.
fn is_hugetlb(link: &Path) -> bool {
    rustix::fs::statfs(link).is_ok_and(|fs| fs.f_type as u64 == HUGETLBFS_MAGIC)
}
