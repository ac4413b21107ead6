//! What the BPF programs and the daemon exchange: the mirror of `bpf/interface.h` (and of the pairing in
//! `bpf/channel.h`), compared with the BPF objects' type information by the test below.

/// vCPUs that one host can hold.
pub(crate) const HOST_VCPUS: usize = 4096;
/// VMs that one host can hold.
pub(crate) const HOST_VMS: usize = 1024;
/// Memory slots of a VM that BPF knows, the biggest ones.
pub(crate) const VM_SLOTS: usize = 8;

/// Declares a `repr(C)` mirror of which every bit pattern is a value.
macro_rules! mirror {
    ($(#[$doc:meta])* $name:ident = $c:literal { $($(#[$field_doc:meta])* $field:ident: $type:ty,)+ }) => {
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default)]
        pub(crate) struct $name { $($(#[$field_doc])* pub(crate) $field: $type,)+ }

        #[cfg(test)]
        impl $name {
            const C: &'static str = $c;
            fn fields() -> Vec<(&'static str, usize)> {
                vec![$((stringify!($field), std::mem::offset_of!($name, $field)),)+]
            }
        }
    };
}

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
        domain: u32,
        capacity: u32,
        perf: u32,
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

/// The bytes of a mirror, for the kernel.
pub(crate) fn bytes_of<T: Copy>(value: &T) -> &[u8] {
    // SAFETY: the mirrors have no padding (the test compares their sizes with the sum of C's), so every byte is set.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}

/// The bytes of a mirror, for the kernel to change.
pub(crate) fn bytes_of_mut<T: Copy>(value: &mut T) -> &mut [u8] {
    // SAFETY: as `bytes_of`, and every bit pattern is a value of a mirror.
    unsafe { std::slice::from_raw_parts_mut(std::ptr::from_mut(value).cast(), size_of::<T>()) }
}

/// A mirror out of bytes from the kernel; `None` when they are too few.
pub(crate) fn from_bytes<T: Copy>(bytes: &[u8]) -> Option<T> {
    // SAFETY: the length is checked, the read is unaligned, and every bit pattern is a value of a mirror.
    (bytes.len() >= size_of::<T>()).then(|| unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use libbpf_rs::AsRawLibbpf;
    use libbpf_rs::btf::types::{MemberAttr, Struct};
    use libbpf_rs::btf::{Btf, HasSize};
    use libbpf_rs::skel::{OpenSkel, SkelBuilder};
    use std::mem::MaybeUninit;

    /// Offsets and size of a struct as the BPF object has it.
    fn from_object(btf: &Btf<'_>, name: &str) -> (Vec<(String, usize)>, usize) {
        let found = btf.type_by_name::<Struct<'_>>(name).unwrap_or_else(|| panic!("no struct {name} in the object"));
        let fields = found.iter().map(|member| {
            let MemberAttr::Normal { offset } = member.attr else { panic!("a bit field in {name}") };
            (member.name.expect("members have names").to_str().expect("in ASCII").to_owned(), offset as usize / 8)
        });
        (fields.collect(), found.size())
    }

    macro_rules! same {
        ($open:expr, $($mirror:ident)+) => {
            let open = $open;
            // SAFETY: the object is open and outlives the reference.
            let object = unsafe { open.open_object().as_libbpf_object().as_ref() };
            let btf = Btf::from_bpf_object(object).unwrap().expect("compiled with BTF");
            $(
                let (fields, size) = from_object(&btf, $mirror::C);
                let mine: Vec<_> = $mirror::fields().into_iter().map(|(n, o)| (n.to_owned(), o)).collect();
                assert_eq!(mine, fields, "{}", $mirror::C);
                assert_eq!(size_of::<$mirror>(), size, "{}", $mirror::C);
            )+
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
