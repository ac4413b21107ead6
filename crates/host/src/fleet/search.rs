//! The search for agents in the guests, and the pairing with those that offer.

use std::time::{Duration, Instant};

use tracing::debug;

use super::Fleet;
use crate::channel::Channel;
use crate::memory::ProcessMemory;
use crate::register;
use crate::vm::Vm;

impl Fleet {
    /// Looks for agents and pairs with those that offer, for at most `budget`.
    pub(crate) fn pair(&mut self, budget: Duration) {
        let deadline = Instant::now() + budget;
        let kvms: Vec<u64> = self.vms.keys().copied().collect();
        for kvm in kvms {
            let vm = self.vms.get_mut(&kvm).expect("listed above");
            let idle = vm.registration.is_none() && (!vm.scan.due() || Instant::now() >= deadline);
            if idle || matches!(vm.channel, Channel::Paired | Channel::Migrating) {
                continue;
            }
            let memory = match ProcessMemory::read(&self.root, vm.found.tgid) {
                Ok(memory) => memory,
                // The VMM is about to end; the next discovery tells.
                Err(error) => {
                    debug!("{}: cannot read its memory map: {error}", vm.name);
                    continue;
                }
            };
            if vm.registration.is_some() {
                register::pair_registered(&self.programs, vm, &memory);
                if vm.registration.is_some() {
                    continue;
                }
            }
            match vm.scan.advance(&vm.found.slots, &memory, deadline) {
                Ok(Some(hits)) => {
                    debug!("{}: {} pages with the magic among {} looked at", vm.name, hits.len(), vm.scan.pages);
                    for gpa in hits {
                        register::consider(&self.programs, vm, &memory, gpa);
                    }
                }
                Ok(None) => {}
                Err(error) => debug!("{}: cannot look through its memory: {error}", vm.name),
            }
        }
    }

    /// Whether a VM has not been looked through at all yet.
    pub(crate) fn search_is_urgent(&self) -> bool {
        let open = |vm: &Vm| vm.registration.is_none() && !matches!(vm.channel, Channel::Paired | Channel::Migrating);
        self.vms.values().any(|vm| open(vm) && vm.scan.first())
    }

    /// A guest has rung: its page is at `gpa`. False when the VM is not known yet.
    pub(crate) fn doorbell(&mut self, tid: i32, tgid: i32, gpa: u64) -> bool {
        let known = |vm: &&mut Vm| vm.found.tgid == tgid && vm.vcpus.values().any(|vcpu| vcpu.tid == tid);
        let Some(vm) = self.vms.values_mut().find(known) else { return false };
        if vm.channel == Channel::Migrating {
            return true;
        }
        debug!("{}: doorbell for the page at {gpa:#x}", vm.name);
        if let Ok(memory) = ProcessMemory::read(&self.root, tgid) {
            register::consider(&self.programs, vm, &memory, gpa);
        }
        true
    }
}
