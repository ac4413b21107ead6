//! One event, as this side works with it. The BPF programs make it, and a file holds it, as the skeleton's
//! `struct record_event` of `bpf/record/interface.h`.

use crate::skeleton::types::{record_event, record_flag, record_kind};

/// Bytes of an event.
pub const EVENT_BYTES: usize = size_of::<record_event>();

// Files are little-endian, and so is every machine that Entrain is built for.
const _: () = assert!(cfg!(target_endian = "little"));

/// Declares what an event is about, by the kinds of `enum record_kind`.
macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $kind:ident,)+) => {
        /// What happened. Numbers of the file format: never changed.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Kind { $($(#[$doc])* $name = record_kind::$kind.0,)+ }

        impl Kind {
            /// `None` for kinds of a later version.
            pub fn new(number: u8) -> Option<Self> {
                match record_kind(number) {
                    $(record_kind::$kind => Some(Self::$name),)+
                    _ => None,
                }
            }
        }
    };
}

kinds! {
    /// On `cpu`: `tid` leaves, `other` comes.
    Switch = RECORD_SWITCH,
    /// `tid` becomes runnable and queues on `cpu`, where `other` runs.
    Wakeup = RECORD_WAKEUP,
    /// `tid`, which waits, moves to the queue of `cpu`, where `other` runs.
    Migrate = RECORD_MIGRATE,
    /// The guest's halt on `tid` is over; it took `arg` ns.
    Halt = RECORD_HALT,
    /// The guest spins on `tid`, and KVM was called for help.
    Spin = RECORD_SPIN,
    /// `tid` asks the scheduler to run `other` instead; `arg` is the kernel's answer, above 0 when it did.
    Yield = RECORD_YIELD,
    /// What `tid` was doing when the recording began, or when it was met later.
    State = RECORD_STATE,
}

/// Bits of [`Event::flags`].
pub mod flag {
    use super::record_flag;

    /// `Switch`: `tid` would have gone on; `State`: it was runnable.
    pub const RUNNABLE: u8 = record_flag::RECORD_F_RUNNABLE.0;
    /// `Switch`: it spun, and KVM gave its pCPU away.
    pub const GAVE_WAY: u8 = record_flag::RECORD_F_GAVE_WAY.0;
    /// `Switch`: whether it was inside a critical section is known.
    pub const CS_KNOWN: u8 = record_flag::RECORD_F_CS_KNOWN.0;
    /// `Switch`: it was.
    pub const CS: u8 = record_flag::RECORD_F_CS.0;
    /// `Switch`: `tid` has ended.
    pub const EXITED: u8 = record_flag::RECORD_F_EXITED.0;
    /// `Halt`: the thread slept; else polling was enough.
    pub const WAITED: u8 = record_flag::RECORD_F_WAITED.0;
    /// `Wakeup`, `Migrate`: `other` holds something.
    pub const OTHER_KNOWN: u8 = record_flag::RECORD_F_OTHER_KNOWN.0;
}

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// When, ns of CLOCK_MONOTONIC.
    pub ns: u64,
    /// What.
    pub kind: Kind,
    /// Bits of [`flag`].
    pub flags: u8,
    /// The pCPU.
    pub cpu: u16,
    /// The thread that it is about; 0 is the pCPU's idle task.
    pub tid: u32,
    /// Another thread; what it is to the first depends on the kind.
    pub other: u32,
    /// A figure; depends on the kind.
    pub arg: u64,
}

impl Event {
    /// `None` for kinds of a later version, which are skipped.
    pub fn from_bytes(bytes: &[u8; EVENT_BYTES]) -> Option<Self> {
        let event: record_event = bytemuck::pod_read_unaligned(bytes);
        Some(Self {
            ns: event.ns,
            kind: Kind::new(event.kind.0)?,
            flags: event.flags.0,
            cpu: event.cpu,
            tid: event.tid,
            other: event.other,
            arg: event.arg,
        })
    }

    /// As in the file.
    pub fn to_bytes(self) -> [u8; EVENT_BYTES] {
        bytemuck::cast(record_event {
            ns: self.ns,
            kind: record_kind(self.kind as u8),
            flags: record_flag(self.flags),
            cpu: self.cpu,
            tid: self.tid,
            other: self.other,
            pad: 0,
            arg: self.arg,
        })
    }

    /// Whether a bit of [`flag`] is set.
    pub fn has(&self, bit: u8) -> bool {
        self.flags & bit != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use libbpf_rs::AsRawLibbpf;
    use libbpf_rs::btf::types::{MemberAttr, Struct};
    use libbpf_rs::btf::{Btf, HasSize};
    use libbpf_rs::skel::{OpenSkel, SkelBuilder};
    use std::mem::MaybeUninit;

    #[test]
    fn the_bytes_are_where_the_bpf_object_has_them() {
        let mut storage = MaybeUninit::uninit();
        let open = crate::skeleton::RecordSkelBuilder::default().open(&mut storage).unwrap();
        // SAFETY: the object is open and outlives the reference.
        let object = unsafe { open.open_object().as_libbpf_object().as_ref() };
        let btf = Btf::from_bpf_object(object).unwrap().expect("compiled with BTF");
        let offsets = |name: &str| -> Vec<(String, usize)> {
            let found = btf.type_by_name::<Struct<'_>>(name).unwrap_or_else(|| panic!("no {name} in the object"));
            assert_eq!(found.size(), if name == "record_target" { 24 } else { EVENT_BYTES });
            let field = |member: libbpf_rs::btf::types::StructMember<'_>| {
                let MemberAttr::Normal { offset } = member.attr else { panic!("a bit field in {name}") };
                (member.name.expect("a name").to_str().expect("in ASCII").to_owned(), offset as usize / 8)
            };
            found.iter().map(field).collect()
        };
        let expect = |text: &str| -> Vec<(String, usize)> {
            text.split(' ')
                .map(|word| word.split_once(':').expect("NAME:OFFSET"))
                .map(|(name, at)| (name.to_owned(), at.parse().expect("a number")))
                .collect()
        };
        assert_eq!(offsets("record_event"), expect("ns:0 kind:8 flags:9 cpu:10 tid:12 other:16 pad:20 arg:24"));
        assert_eq!(offsets("record_name"), expect("tgid:0 kind:8 pad:9 tid:12 comm:16"));
        assert_eq!(offsets("record_target"), expect("kvm_vcpu:0 entry:8 waits_on:12 running:16 samples:20"));
    }

    #[test]
    fn bytes_and_back() {
        let event = Event { ns: 1 << 40, kind: Kind::Yield, flags: 5, cpu: 300, tid: 7, other: 9, arg: u64::MAX };
        assert_eq!(Event::from_bytes(&event.to_bytes()), Some(event));
        let mut later = event.to_bytes();
        later[8] = 200;
        assert_eq!(Event::from_bytes(&later), None);
    }
}
