//! From the records of the discovery program to VMs.

use std::collections::BTreeMap;

use crate::interface::{FOUND_SLOT, FOUND_VCPU, FOUND_VM, Found};
use crate::slots::{MemorySlot, Slots};

/// A VM as KVM has it now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FoundVm {
    /// The VMM's process.
    pub(crate) tgid: i32,
    /// The user that it runs as.
    pub(crate) user: u32,
    /// Its memory.
    pub(crate) slots: Slots,
    /// Its vCPUs that have run, by KVM's vcpu_id.
    pub(crate) vcpus: BTreeMap<u32, FoundVcpu>,
}

/// A vCPU as KVM has it now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FoundVcpu {
    /// The thread that runs it.
    pub(crate) tid: i32,
    /// Address of the kernel's struct kvm_vcpu.
    pub(crate) kvm_vcpu: u64,
    /// By how much its counter is ahead of the host's, where the kernel tells.
    pub(crate) counter: Option<i64>,
}

/// Groups records by VM (the address of the kernel's struct kvm). A process may hold a file twice; that changes nothing.
pub(crate) fn group(found: &[Found]) -> BTreeMap<u64, FoundVm> {
    let mut vms: BTreeMap<u64, FoundVm> = BTreeMap::new();
    let mut slots: BTreeMap<u64, Vec<MemorySlot>> = BTreeMap::new();
    for record in found {
        let vm = vms.entry(record.kvm).or_insert_with(|| FoundVm { tgid: record.tgid, ..FoundVm::default() });
        match record.kind {
            FOUND_VM => vm.user = record.id,
            // KVM knows the thread once it has entered the vCPU for the first time.
            FOUND_VCPU if record.tid > 0 => {
                vm.vcpus.insert(
                    record.id,
                    FoundVcpu {
                        tid: record.tid,
                        kvm_vcpu: record.a,
                        counter: (record.c == 1).then_some(record.b.cast_signed()),
                    },
                );
            }
            FOUND_SLOT => {
                let slot = MemorySlot { gpa: record.a, size: record.b, hva: record.c, flags: record.id };
                let slots = slots.entry(record.kvm).or_default();
                if !slots.contains(&slot) {
                    slots.push(slot);
                }
            }
            _ => {}
        }
    }
    for (kvm, raw) in slots {
        if let Some(vm) = vms.get_mut(&kvm) {
            vm.slots = Slots::new(raw);
        }
    }
    vms
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_two_vms_in_one_process_stay_apart() {
        let vcpu = |kvm, id, tid| Found { kind: FOUND_VCPU, tgid: 7, kvm, a: 0x10 + kvm, id, tid, ..Found::default() };
        let slot = |kvm| Found { kind: FOUND_SLOT, tgid: 7, kvm, a: 0, b: 1 << 20, c: 0x1000, ..Found::default() };
        let vms = group(&[slot(1), slot(1), vcpu(1, 0, 70), vcpu(2, 0, 71), vcpu(2, 1, 0)]);
        assert_eq!(vms.len(), 2);
        assert_eq!(vms[&1].slots.iter().count(), 1, "seen through two files, counted once");
        assert_eq!(vms[&2].vcpus.len(), 1, "a vCPU that never ran has no thread");
    }
}
