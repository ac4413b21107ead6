//! What the BPF programs and the daemon exchange: the mirror of `bpf/interface.h` (and of the pairing in
//! `bpf/channel.h`), compared with the BPF objects' type information by the test below.

use entrain_bpf::mirror;
pub(crate) use entrain_bpf::{Mirror, bytes_of, bytes_of_mut, from_bytes};

/// vCPUs that one host can hold.
pub(crate) const HOST_VCPUS: usize = 4096;
/// VMs that one host can hold.
pub(crate) const HOST_VMS: usize = 1024;
/// Memory slots of a VM that BPF knows, the biggest ones.
pub(crate) const VM_SLOTS: usize = 8;

mirror! {
    /// One vCPU; see the C declaration for who writes what.
    Vcpu = "entrain_vcpu" {
        used: u32,
        vm: u32,
        tid: i32,
        tgid: i32,
        kvm_vcpu: u64,
        preempt_hva: u64,
        preempt_layout: u32,
        entitlement: u32,
        state: u32,
        pcpu: u32,
        seq: u32,
        in_cs: u32,
        since: u64,
        run_ns: u64,
        ready_ns: u64,
        halted_ns: u64,
        switches: u64,
        preemptions: u64,
        samples: u64,
        preemptions_cs: u64,
        boosts: u64,
        instant: u32,
        preempt_count: u32,
        extended: u32,
        wired: u32,
        gave_way: u32,
        pad: u32,
        link: u64,
        util: u64,
        runnable: u64,
        guest_beat: u64,
        wants: u64,
        gone: u32,
        races: u32,
    }
}

/// `Vcpu::gone`: a host word was not what the host had written.
pub(crate) const GONE_WORD: u32 = 1;
/// `Vcpu::gone`: magic, cookie or boot id changed.
pub(crate) const GONE_HEADER: u32 = 2;
/// `Vcpu::gone`: the link word left the pairing.
pub(crate) const GONE_LINK: u32 = 3;

mirror! {
    /// A range of guest-physical memory and where the VMM has it.
    Slot = "entrain_slot" {
        gpa: u64,
        size: u64,
        hva: u64,
    }
}

mirror! {
    /// One VM.
    Vm = "entrain_vm" {
        preempt_offset: u32,
        nr_slots: u32,
        linear_base: u64,
        linear_size: u64,
        linear_gpa: u64,
        slots: [Slot; VM_SLOTS],
    }
}

mirror! {
    /// One pCPU.
    Pcpu = "entrain_pcpu" {
        idle: u32,
        open: u32,
        domain: u32,
        capacity: u32,
        perf: u32,
        counted: u32,
        slots: [u32; 4],
        switches: u64,
        idles: u64,
        instants: u64,
        wakeups: u64,
        doorbells: u64,
    }
}

mirror! {
    /// A rare event.
    Event = "entrain_event" {
        kind: u32,
        tid: i32,
        tgid: i32,
        pad: u32,
        arg: u64,
    }
}

/// `Event::kind`: a guest rang; `arg` is the guest-physical address that it named.
pub(crate) const EVENT_DOORBELL: u32 = 1;
/// `Event::kind`: a pCPU went idle.
pub(crate) const EVENT_IDLE: u32 = 3;
mirror! {
    /// Arguments of `track` and `untrack`.
    TrackArgs = "entrain_track_args" {
        index: u32,
        tid: i32,
        error: i32,
    }
}

mirror! {
    /// Arguments of `link_step`.
    LinkArgs = "entrain_link_args" {
        index: u32,
        op: u32,
        expected: u64,
        wanted: u64,
        was: u64,
        error: i32,
        pad: u32,
    }
}

/// `LinkArgs::op`: exchange; on success publishing begins.
pub(crate) const LINK_PAIR: u32 = 1;
/// `LinkArgs::op`: publishing ends.
pub(crate) const LINK_CLOSE: u32 = 2;
/// `LinkArgs::op`: exchange, after a close and a grace period.
pub(crate) const LINK_RELEASE: u32 = 3;

mirror! {
    /// Arguments of `tick` and `levels`.
    TickArgs = "entrain_tick_args" {
        entries: u32,
        paired: u32,
        gone: u32,
        pad: u32,
        layouts: u64,
    }
}

mirror! {
    /// Arguments of `selftest`.
    SelftestArgs = "entrain_selftest_args" {
        entries: u32,
        loops: u32,
        trips: u64,
        added: u64,
    }
}

mirror! {
    /// What the discovery reports.
    Found = "entrain_found" {
        kind: u32,
        tgid: i32,
        kvm: u64,
        a: u64,
        b: u64,
        c: u64,
        id: u32,
        tid: i32,
    }
}

/// `Found::kind`: a VM; `a` = vCPUs created.
pub(crate) const FOUND_VM: u32 = 1;
/// `Found::kind`: a vCPU; `a` = struct kvm_vcpu, `id` = vcpu_id.
pub(crate) const FOUND_VCPU: u32 = 2;
/// `Found::kind`: a memory slot; `a` = gpa, `b` = size, `c` = hva, `id` = flags.
pub(crate) const FOUND_SLOT: u32 = 3;

mirror! {
    /// The value of the map `pairings`. The first five are addresses in this process at the update; the kernel pins
    /// what they point to.
    Pairing = "entrain_pairing" {
        page: u64,
        preempt32: u64,
        preempt64: u64,
        util: u64,
        nr_running: u64,
        seed: u64,
        cookie: u64,
        boot_id: u64,
        generation: u32,
        closed: u32,
        instant_busy: u32,
        pad: u32,
        features: u64,
        ready0: u64,
        preemptions0: u64,
        preemptions_cs0: u64,
        boosts0: u64,
        slow: [u64; 8],
        fast: [u64; 8],
    }
}

mirror! {
    /// The key of the map `waits`.
    WaitKey = "entrain_wait_key" {
        index: u32,
        who: i32,
        cause: u32,
    }
}

mirror! {
    /// The value of the map `waits`.
    Wait = "entrain_wait" {
        ns: u64,
        waits: u64,
        comm: [u8; 16],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use entrain_bpf::difference;
    use libbpf_rs::skel::{OpenSkel, SkelBuilder};
    use std::mem::MaybeUninit;

    macro_rules! same {
        ($open:expr, $($mirror:ident)+) => {
            let open = $open;
            $(assert_eq!(difference::<$mirror>(open.open_object()), None);)+
        };
    }

    #[test]
    fn the_mirrors_are_what_the_bpf_objects_have() {
        use crate::skeleton::{discover::DiscoverSkelBuilder, observe::ObserveSkelBuilder};
        let (mut one, mut two) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        same!(
            ObserveSkelBuilder::default().open(&mut one).unwrap(),
            Vcpu Slot Vm Pcpu Event TrackArgs LinkArgs TickArgs SelftestArgs Pairing WaitKey Wait
        );
        same!(DiscoverSkelBuilder::default().open(&mut two).unwrap(), Found);
    }
}
