//! What the BPF programs and the daemon exchange, by the daemon's names: the skeletons' types of `bpf/interface.h` and of
//! the pairing in `bpf/channel.bpf.h`.

use crate::skeleton::discover::types::entrain_found_kind;
use crate::skeleton::observe::types::{entrain_event_kind, entrain_link_op, entrain_wait_cause};

pub(crate) use crate::skeleton::discover::types::{
    entrain_found as Found, entrain_list_args as ListArgs, entrain_look_args as LookArgs,
};
pub(crate) use crate::skeleton::observe::types::{
    entrain_event as Event, entrain_link_args as LinkArgs, entrain_pairing as Pairing, entrain_pcpu as Pcpu,
    entrain_selftest_args as SelftestArgs, entrain_side as Side, entrain_slot as Slot, entrain_tick_args as TickArgs,
    entrain_track_args as TrackArgs, entrain_vcpu as Vcpu, entrain_vm as Vm, entrain_wait as Wait,
    entrain_wait_key as WaitKey,
};

/// A value out of bytes from the kernel; `None` when they are too few.
pub(crate) fn from_bytes<T: bytemuck::AnyBitPattern>(bytes: &[u8]) -> Option<T> {
    bytes.get(..size_of::<T>()).map(bytemuck::pod_read_unaligned)
}

/// vCPUs that one host can hold.
pub(crate) const HOST_VCPUS: usize = 4096;
/// VMs that one host can hold.
pub(crate) const HOST_VMS: usize = 1024;

/// `Event::kind`: a guest rang; `arg` is the guest-physical address that it named.
pub(crate) const EVENT_DOORBELL: entrain_event_kind = entrain_event_kind::ENTRAIN_EVENT_DOORBELL;
/// `Event::kind`: a vCPU thread has ended.
#[cfg(test)]
pub(crate) const EVENT_EXIT: entrain_event_kind = entrain_event_kind::ENTRAIN_EVENT_EXIT;

/// `LinkArgs::op`.
pub(crate) type LinkOp = entrain_link_op;
/// Exchange; on success publishing begins.
pub(crate) const LINK_PAIR: LinkOp = entrain_link_op::ENTRAIN_LINK_OP_PAIR;
/// Publishing ends.
pub(crate) const LINK_CLOSE: LinkOp = entrain_link_op::ENTRAIN_LINK_OP_CLOSE;
/// Exchange, after a close and a grace period.
pub(crate) const LINK_RELEASE: LinkOp = entrain_link_op::ENTRAIN_LINK_OP_RELEASE;

/// `Found::kind`: a VM; `a` = vCPUs created, `c` = its place in KVM's list or 0, `id` = its process's user.
pub(crate) const FOUND_VM: entrain_found_kind = entrain_found_kind::ENTRAIN_FOUND_VM;
/// `Found::kind`: a vCPU; `a` = struct kvm_vcpu, `id` = vcpu_id.
pub(crate) const FOUND_VCPU: entrain_found_kind = entrain_found_kind::ENTRAIN_FOUND_VCPU;
/// `Found::kind`: a memory slot; `a` = gpa, `b` = size, `c` = hva, `id` = flags.
pub(crate) const FOUND_SLOT: entrain_found_kind = entrain_found_kind::ENTRAIN_FOUND_SLOT;
/// `Found::kind`: a member of KVM's list of VMs that is no VM of a process; `c` = its place.
pub(crate) const FOUND_MEMBER: entrain_found_kind = entrain_found_kind::ENTRAIN_FOUND_MEMBER;
/// `LookArgs::generation` that no memory slots have.
pub(crate) const NO_GENERATION: u64 = u64::MAX;

/// `WaitKey::cause`.
pub(crate) type WaitedFor = entrain_wait_cause;

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::MaybeUninit;

    use libbpf_rs::skel::SkelBuilder;

    use crate::skeleton::observe::ObserveSkelBuilder;

    #[test]
    fn the_tables_have_the_size_that_the_daemon_knows() {
        let mut object = MaybeUninit::uninit();
        let open = ObserveSkelBuilder::default().open(&mut object).expect("an object");
        assert_eq!(open.maps.vcpus.max_entries() as usize, HOST_VCPUS);
        assert_eq!(open.maps.vms.max_entries() as usize, HOST_VMS);
    }
}
