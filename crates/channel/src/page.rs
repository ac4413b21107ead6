//! The mirror of `include/entrain.h`: names, offsets and sizes are the same, and a test compares them.
//!
//! Every field is atomic, since the other side may write at any moment, whatever it is allowed to.

use std::sync::atomic::AtomicU64;

use crate::mirror::mirror;

/// Bytes of a page of the channel; also the page size that both kernels must have.
pub const PAGE_SIZE: usize = 4096;
/// "entrain\0" as a little-endian word.
pub const MAGIC0: u64 = 0x006e_6961_7274_6e65;
/// The second word of the magic; not text, so that 16 random-looking bytes must match.
pub const MAGIC1: u64 = 0xb5e1_f7a9_0c3d_2864;
/// The version that this code speaks.
pub const VERSION: u32 = 1;
/// vCPUs of one guest that can have a page.
pub const MAX_VCPUS: usize = 256;
/// Rings the doorbell. x86: number of a hypercall; arm64: x0 of a `wfe` from user mode.
pub const DOORBELL_NR: u64 = 0x656e_7472;
/// Period of the guest agent's heartbeat, ns.
pub const GUEST_BEAT_NS: u64 = 500_000_000;
/// A guest heartbeat that stood still for so long has expired, ns.
pub const GUEST_EXPIRY_NS: u64 = 2_000_000_000;
/// Period of the host's heartbeat, ns.
pub const HOST_BEAT_NS: u64 = 100_000_000;
/// A host heartbeat that stood still for so long has expired, ns.
pub const HOST_EXPIRY_NS: u64 = 1_000_000_000;
/// The host works out the entitlement at least so often while one of its VMs works, ns.
pub const ENTITLE_NS: u64 = 20_000_000;
/// Full capacity, full performance level and full utilisation.
pub const CAPACITY_SCALE: u64 = 1024;

/// Feature bits, `ENTRAIN_F_*`: a side uses a feature only when both have set it; unknown bits are ignored.
pub mod feature {
    /// Guest: where its preempt count stands is registered.
    pub const PREEMPT_COUNT: u64 = 1 << 0;
    /// Guest: where its run-queue load stands is registered.
    pub const RQ_LOAD: u64 = 1 << 1;
    /// Guest: a scheduler in the guest keeps the guest words current.
    pub const GUEST_WORDS: u64 = 1 << 2;
    /// Host: state, since and steal are current.
    pub const VCPU_STATE: u64 = 1 << 3;
    /// Host: the instant bit is current.
    pub const INSTANT: u64 = 1 << 4;
    /// Host: capacity and performance level are current.
    pub const CAPACITY: u64 = 1 << 5;
    /// Host: entitlement is current.
    pub const ENTITLEMENT: u64 = 1 << 6;
    /// Host: an Entrain scheduler acts on the guest words.
    pub const HOST_SCHED: u64 = 1 << 7;
    /// Both: started for the self-test.
    pub const SELFTEST: u64 = 1 << 8;
    /// Guest: its agent keeps `spins_for` current.
    pub const SPINS: u64 = 1 << 9;

    /// Every bit with its name.
    pub const NAMES: [(&str, u64); 10] = [
        ("PREEMPT_COUNT", PREEMPT_COUNT),
        ("RQ_LOAD", RQ_LOAD),
        ("GUEST_WORDS", GUEST_WORDS),
        ("VCPU_STATE", VCPU_STATE),
        ("INSTANT", INSTANT),
        ("CAPACITY", CAPACITY),
        ("ENTITLEMENT", ENTITLEMENT),
        ("HOST_SCHED", HOST_SCHED),
        ("SELFTEST", SELFTEST),
        ("SPINS", SPINS),
    ];
}

mirror! {
    /// Lines 0-1: written by the guest before the offer, constant until the next generation.
    Header => HeaderValues {
        /// [`MAGIC0`], [`MAGIC1`].
        magic: [u64; 2],
        /// [`VERSION`] of the guest.
        version: u32,
        /// Possible CPUs of the guest that have a page: 1..=[`MAX_VCPUS`].
        nr_vcpus: u32,
        /// The guest's number of this CPU: 0..nr_vcpus.
        vcpu: u32,
        /// KVM's vcpu_id, or `u32::MAX`.
        vcpu_hwid: u32,
        /// Random, the same in all pages of one registration, never 0.
        cookie: u64,
        /// Guest-physical address of this page.
        gpa: u64,
        /// [`feature`] bits of the guest.
        features: u64,
        /// First 8 bytes of the guest kernel's boot_id.
        boot_id: u64,
        /// A [`PreemptLayout`].
        preempt_layout: u32,
        /// Task layouts: bytes from the start of `task_struct`.
        preempt_offset: u32,
        /// Per-CPU layouts: guest-physical address of the count.
        preempt_gpa: u64,
        /// Task layouts: virtual address of the linear map's start.
        linear_base: u64,
        /// Task layouts: length of the linear map, bytes.
        linear_size: u64,
        /// Task layouts: guest-physical address that the linear map's start maps.
        linear_gpa: u64,
        /// Guest-physical address of the run queue's utilisation.
        util_gpa: u64,
        /// Guest-physical address of the run queue's count of runnable tasks.
        nr_running_gpa: u64,
        /// 0.
        reserved: u64,
    }
}

mirror! {
    /// Line 2: the pairing.
    LinkLine {
        /// A [`crate::word::Link`]; both sides write it, by compare-and-swap only.
        link: u64,
        /// Written by the guest before the offer: random, its low 16 bits not 0.
        seed: u64,
        /// 0.
        reserved: [u64; 6],
    }
}

mirror! {
    /// Line 3: guest to host, plain words.
    GuestWords => GuestWordValues {
        /// Utilisation of this CPU's run queue, 0..=1024.
        util: u64,
        /// Tasks runnable on this CPU, the running one included.
        runnable: u64,
        /// Kernel priority of what runs, 0..=139; 140 is idle.
        prio: u64,
        /// vCPUs that this guest could use now.
        wants: u64,
        /// 0, or 1 + the number of the vCPU that this one spins for.
        spins_for: u64,
        /// Nonzero: what runs or wakes is latency-critical; weight 1..=10000.
        latency: u64,
        /// Raised every [`GUEST_BEAT_NS`] while the guest's agent lives.
        heartbeat: u64,
        /// 0.
        reserved: u64,
    }
}

mirror! {
    /// Line 4: host to guest, changes seldom. Host words.
    HostSlow => HostSlowValues {
        /// [`feature`] bits of the host.
        features: u64,
        /// [`VERSION`] of the host.
        version: u64,
        /// Host clock, [time units](crate::word::TIME_SHIFT); raised every [`HOST_BEAT_NS`].
        heartbeat: u64,
        /// Of the pCPU, 0..=1024.
        capacity: u64,
        /// Performance level of the pCPU now, 0..=1024.
        perf: u64,
        /// CPU time that the VM can have now, in 1/1024 pCPU.
        entitlement: u64,
        /// 0.
        reserved: [u64; 2],
    }
}

mirror! {
    /// Line 5: host to guest, changes with every switch of the vCPU. Host words.
    HostFast => HostFastValues {
        /// A [`crate::word::VcpuState`], packed.
        state: u64,
        /// Host clock at the last change of state, time units.
        since: u64,
        /// Time spent runnable but not running since pairing, time units.
        steal: u64,
        /// Involuntary switch-outs since pairing.
        preemptions: u64,
        /// Those inside a critical section of the guest.
        preemptions_cs: u64,
        /// Yields and extensions that were granted to it.
        boosts: u64,
        /// Bit 0: if this vCPU were kicked now, it would run at once.
        instant: u64,
        /// 0.
        reserved: u64,
    }
}

mirror! {
    /// Line 6: the self-test; both sides add to `shared`.
    SelftestShared {
        /// Sum of all additions.
        shared: u64,
        /// 0.
        reserved: [u64; 7],
    }
}

mirror! {
    /// Line 7: the guest's side of the self-test.
    SelftestGuest {
        /// Raised by one when the host's equals it: one round trip.
        word: u64,
        /// The guest's additions to `shared`.
        added: u64,
        /// 1 + the preempt_disable levels that this vCPU is known to be in; 0: not known.
        levels: u64,
        /// 0.
        reserved: [u64; 5],
    }
}

mirror! {
    /// Line 8: the host's side of the self-test.
    SelftestHost {
        /// A copy of the guest's word.
        word: u64,
        /// The host's additions to `shared`.
        added: u64,
        /// Preempt counts read at an involuntary switch-out while `levels` was known.
        samples: u64,
        /// Those that agreed with it.
        matches: u64,
        /// 0.
        reserved: [u64; 4],
    }
}

/// The whole page.
#[repr(C, align(4096))]
#[derive(Debug)]
pub struct Page {
    /// Lines 0-1.
    pub header: Header,
    /// Line 2.
    pub link: LinkLine,
    /// Line 3.
    pub guest: GuestWords,
    /// Line 4.
    pub host_slow: HostSlow,
    /// Line 5.
    pub host_fast: HostFast,
    /// Line 6.
    pub selftest: SelftestShared,
    /// Line 7.
    pub selftest_guest: SelftestGuest,
    /// Line 8.
    pub selftest_host: SelftestHost,
    /// 0.
    pub reserved: [AtomicU64; 184],
    /// In the page of vCPU 0: the guest-physical address of each vCPU's page.
    pub directory: [AtomicU64; MAX_VCPUS],
}

const _: () = assert!(size_of::<Page>() == PAGE_SIZE);

impl Page {
    /// Every field with its offset and size, in order.
    pub fn fields() -> Vec<crate::Field> {
        macro_rules! table {
            ($($field:ident: $type:ty),+ $(,)?) => {
                vec![$(crate::Field {
                    name: stringify!($field),
                    offset: std::mem::offset_of!(Page, $field),
                    size: size_of::<$type>(),
                }),+]
            };
        }
        table!(
            header: Header,
            link: LinkLine,
            guest: GuestWords,
            host_slow: HostSlow,
            host_fast: HostFast,
            selftest: SelftestShared,
            selftest_guest: SelftestGuest,
            selftest_host: SelftestHost,
            reserved: [u64; 184],
            directory: [u64; MAX_VCPUS],
        )
    }

    /// A page in memory of our own, all zero: for tests and simulations.
    pub fn zeroed() -> Box<Page> {
        // SAFETY: every field is an atomic integer, for which all zero bits are a value.
        unsafe { Box::new(std::mem::zeroed()) }
    }

    /// A copy of bytes that were read from a page elsewhere.
    pub fn copied(bytes: &[u8; PAGE_SIZE]) -> Box<Page> {
        let page = Self::zeroed();
        // SAFETY: the page is ours alone, has this size, and any bytes are a Page.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), std::ptr::from_ref(&*page).cast_mut().cast(), PAGE_SIZE)
        };
        page
    }

    /// The page at `address`.
    ///
    /// # Safety
    /// `address` is aligned to [`PAGE_SIZE`], and readable and writable for [`PAGE_SIZE`] bytes during `'a`.
    pub unsafe fn at<'a>(address: *mut u8) -> &'a Page {
        debug_assert_eq!(address as usize % PAGE_SIZE, 0);
        // SAFETY: the caller vouches for the address; every field is atomic, so changes by others are no data race.
        unsafe { &*address.cast::<Page>() }
    }
}

/// How the guest kernel's preempt count is found and read, `ENTRAIN_PREEMPT_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum PreemptLayout {
    /// Not registered.
    None = 0,
    /// x86 before 7.x: u32 per CPU, hardirq 16-19, nmi 20-23, inverted need-resched 31.
    PerCpu32 = 1,
    /// x86 since 7.x: u64 per CPU, hardirq 24-27, nmi 28-31, inverted need-resched 63.
    PerCpu64 = 2,
    /// arm64: u32 in the running task's thread_info, bits as `PerCpu32`.
    Task32 = 3,
    /// arm64: u32 in the running task's thread_info, bits as `PerCpu64`.
    Task64 = 4,
}

impl PreemptLayout {
    /// The layout of a header's field; `None` for a number from the future.
    pub fn from_raw(raw: u32) -> Option<Self> {
        Some(match raw {
            0 => Self::None,
            1 => Self::PerCpu32,
            2 => Self::PerCpu64,
            3 => Self::Task32,
            4 => Self::Task64,
            _ => return None,
        })
    }
}
