//! The whole fleet without a kernel: VMs come, change and go, guests offer and ring, pairings begin and end.
//!
//! The VMs' memory and threads are this process's own. What BPF does is `entrain_host.h` natively (`programs::fake`).

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use entrain_system::Root;

use super::{RawSlot, slots};
use crate::discover::{FoundVcpu, FoundVm};
use crate::fleet::{Fleet as Table, Remembered, Search};
use crate::interface::HOST_VCPUS;
use crate::memory::ALL_CALLS;
use crate::programs::Programs;

/// A VM as discovery finds it: the address of its struct kvm, its user, its memory, its vCPUs (number, thread, address of
/// the struct kvm_vcpu).
pub type RawVm = (u64, u32, Vec<RawSlot>, Vec<(u32, i32, u64)>);

/// What one search for agents may ask the kernel for, for each VM: its offers and finds (20), each with the pages of a
/// look (at most 16 vCPUs and 8 to spare), each of which is read, mapped and compared in 48 calls at most; and the pieces
/// of the search itself.
const MOST_CALLS_A_VM: u64 = 20 * 24 * 48 + 4096;
const BUDGET: Duration = Duration::from_millis(20);

/// The daemon's table of VMs.
pub struct Fleet {
    table: Table,
}

impl Fleet {
    /// Without VMs.
    ///
    /// # Errors
    /// No memory for the tables.
    pub fn new() -> io::Result<Self> {
        let search = Search { never: false, bell: true };
        // No run folder: nothing is remembered.
        let remembered = Remembered::open(Path::new("/nonexistent"));
        Ok(Self { table: Table::new(Programs::fake()?, Root::live(), search, remembered) })
    }

    /// Discovery has found these and no others.
    pub fn follow(&mut self, vms: &[RawVm]) {
        let found = |(kvm, user, raw, vcpus): &RawVm| {
            let vcpus = vcpus.iter().map(|&(id, tid, kvm_vcpu)| (id, FoundVcpu { tid, kvm_vcpu, counter: None }));
            let tgid = std::process::id() as i32;
            (*kvm, FoundVm { tgid, user: *user, slots: slots(raw), vcpus: vcpus.collect() })
        };
        let found: BTreeMap<u64, FoundVm> = vms.iter().map(found).collect();
        self.table.follow(found).expect("the programs can be called");
        self.check();
    }

    /// A thread has rung for a page.
    pub fn ring(&mut self, tid: i32, gpa: u64) {
        self.table.doorbell(tid, std::process::id() as i32, gpa);
        self.check();
    }

    /// Looks for agents and pairs, for as long as the daemon would.
    pub fn pair(&mut self) {
        self.table.look_again();
        let before = ALL_CALLS.load(Relaxed);
        self.table.pair(BUDGET);
        let calls = ALL_CALLS.load(Relaxed) - before;
        let most = MOST_CALLS_A_VM * self.table.vms.len() as u64;
        assert!(calls <= most, "{calls} system calls for {} VMs", self.table.vms.len());
        self.check();
    }

    /// Every vCPU is switched.
    pub fn switch(&mut self) {
        self.table.programs.as_fake().switch();
    }

    /// A heartbeat, and what the daemon makes of it.
    pub fn tick(&mut self) {
        let found = self.table.programs.tick(self.table.entries()).expect("the programs can be called");
        self.table.let_go(found.gone > 0).expect("the programs can be called");
        self.check();
    }

    /// The daemon ends: every page is given back, and nothing stays pinned.
    pub fn end(&mut self) {
        self.table.release_all().expect("the programs can be called");
        assert_eq!(self.table.programs.as_fake().pairings(), 0, "pages that stay pinned");
    }

    /// Pages that are paired.
    pub fn paired(&self) -> usize {
        self.table.vms.values().map(|vm| vm.paired()).sum()
    }

    /// What must hold of the tables at any time.
    fn check(&self) {
        let vcpus = self.table.vms.values().flat_map(|vm| vm.vcpus.values());
        let indices: BTreeSet<u32> = vcpus.clone().map(|vcpu| vcpu.index).collect();
        assert_eq!(indices.len(), vcpus.count(), "an entry for each vCPU");
        let used = (0..HOST_VCPUS.min(256)).filter(|&index| self.table.programs.vcpus.get(index).used == 1);
        assert!(used.map(|index| index as u32).eq(indices), "entries that are in use");
        assert!(self.paired() <= self.table.programs.as_fake().pairings(), "a pairing for each that is known");
        for vm in self.table.vms.values() {
            assert!(vm.offers.len() <= 12, "{} offers wait", vm.offers.len());
            let pages: BTreeSet<u64> = vm.vcpus.values().filter_map(|vcpu| Some(vcpu.paired.as_ref()?.gpa())).collect();
            assert_eq!(pages.len(), vm.paired(), "a page for each vCPU");
        }
    }
}
