//! What the host checks before it trusts anything that a page says. The guest is hostile until proven otherwise: it may
//! write any bits, at any moment, and lie about every number.

use std::collections::HashSet;

use thiserror::Error;

use crate::page::{HeaderValues, MAGIC0, MAGIC1, MAX_VCPUS, PAGE_SIZE, PreemptLayout, VERSION, feature};
use crate::protocol::Snapshot;
use crate::word::{Link, LinkState, Seed};

/// Biggest offset of the preempt count in `task_struct` that is believed, bytes; real ones are below 64.
const MAX_TASK_OFFSET: u32 = 16 * 1024;
/// Biggest guest-physical address + 1 of any architecture.
const MAX_GPA: u64 = 1 << 52;

/// Why a page is not accepted. Nothing has been written to it.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Refusal {
    /// Not a page of the channel.
    #[error("no Entrain page: the magic is missing")]
    Magic,
    /// A version that this host does not speak.
    #[error("the guest speaks version {0} of the channel, this host speaks version {VERSION}: update the older side")]
    Version(u32),
    /// No offer stands in it.
    #[error("the page is not on offer: its link word is {0:#x}")]
    NotOffered(u64),
    /// A seed that scrubbed memory could be mistaken for.
    #[error("the page's seed {0:#x} ends in 16 zero bits")]
    Seed(u64),
    /// A registration without identity.
    #[error("the page's cookie is 0")]
    Cookie,
    /// The page claims to be elsewhere: a copy, or a lie.
    #[error("the page says that it is at {claimed:#x} of the guest's memory, but it is at {found:#x}")]
    Elsewhere {
        /// What its header says.
        claimed: u64,
        /// Where it is.
        found: u64,
    },
    /// A count of vCPUs out of bounds.
    #[error("the guest claims {0} vCPUs; 1 to {MAX_VCPUS} are possible")]
    VcpuCount(u32),
    /// A vCPU number out of bounds.
    #[error("the page is for vCPU {vcpu} of {count}")]
    VcpuNumber {
        /// Its number.
        vcpu: u32,
        /// How many there are.
        count: u32,
    },
    /// A registered address that is not RAM of this guest, not aligned, or crosses a page.
    #[error("{what} is said to be at {gpa:#x}, which is not {length} aligned bytes of this guest's RAM")]
    Address {
        /// Of what.
        what: &'static str,
        /// The guest-physical address.
        gpa: u64,
        /// Bytes that it must have.
        length: u64,
    },
    /// An offset in `task_struct` that cannot be.
    #[error("the preempt count is said to be {0} bytes into task_struct")]
    TaskOffset(u32),
    /// A linear map that cannot be.
    #[error("the linear map is said to be {size:#x} bytes at {base:#x} that map {gpa:#x}")]
    LinearMap {
        /// Virtual address of its start.
        base: u64,
        /// Its length.
        size: u64,
        /// Guest-physical address of its start.
        gpa: u64,
    },
    /// Two pages of one vCPU number, or a page twice.
    #[error("the directory names the page at {0:#x} twice")]
    Twice(u64),
    /// A page of another registration.
    #[error("the page of vCPU {0} does not belong to the same registration as the first page")]
    Stranger(u32),
}

/// Where in the guest's memory its kernel keeps a vCPU's preempt count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preempt {
    /// A variable per CPU.
    PerCpu {
        /// Guest-physical address, aligned to `size`.
        gpa: u64,
        /// 4 or 8 bytes.
        size: u32,
    },
    /// A u32 in the `task_struct` of the task that runs.
    Task {
        /// Bytes from its start, a multiple of 4.
        offset: u32,
        /// How kernel pointers to tasks become guest-physical addresses.
        linear: LinearMap,
        /// Bits as since 7.x ([`PreemptLayout::Task64`]).
        new_bits: bool,
    },
}

/// The guest kernel's linear map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinearMap {
    base: u64,
    size: u64,
    gpa: u64,
}

impl LinearMap {
    /// The guest-physical address of `length` bytes at a virtual address; `None` where they are not in the linear map or
    /// cross a page.
    pub fn translate(&self, address: u64, length: u64) -> Option<u64> {
        let offset = address.checked_sub(self.base)?;
        let page = PAGE_SIZE as u64;
        (offset < self.size && offset % page + length <= page).then(|| self.gpa + offset)
    }
}

/// Where the guest's kernel keeps a run queue's load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Guest-physical address of the utilisation, 8 bytes; the value is to be clamped.
    pub util: u64,
    /// Guest-physical address of the count of runnable tasks, 4 bytes.
    pub nr_running: u64,
}

/// A page that may be paired with: every number is within its bounds, every address aligned RAM of the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValidatedHeader {
    /// The guest's number of the vCPU, less than `nr_vcpus`.
    pub vcpu: u32,
    /// 1..=[`MAX_VCPUS`].
    pub nr_vcpus: u32,
    /// KVM's vcpu_id, if the guest knows it. A claim: check it against KVM.
    pub hwid: Option<u32>,
    /// Identity of the registration.
    pub cookie: u64,
    /// Where the page is.
    pub gpa: u64,
    /// Known features that the guest offers and that passed.
    pub features: u64,
    /// Identity of the guest kernel's boot.
    pub boot_id: u64,
    /// Seed of the host words.
    pub seed: Seed,
    /// Generation of the offer.
    pub generation: u32,
    /// The preempt count; `None` if not registered, or in a layout from the future.
    pub preempt: Option<Preempt>,
    /// The run queue's load, if registered.
    pub load: Option<Load>,
}

/// Checks what was read from a page that was found at guest-physical address `found`. `in_ram(gpa, length)` says whether
/// these bytes are RAM of this guest.
pub fn validate(
    snapshot: &Snapshot<HeaderValues>,
    found: u64,
    in_ram: &dyn Fn(u64, u64) -> bool,
) -> Result<ValidatedHeader, Refusal> {
    let header = &snapshot.header;
    if header.magic != [MAGIC0, MAGIC1] {
        return Err(Refusal::Magic);
    }
    if header.version != VERSION {
        return Err(Refusal::Version(header.version));
    }
    let link = Link::from_raw(snapshot.link)
        .filter(|link| link.state == LinkState::Offered)
        .ok_or(Refusal::NotOffered(snapshot.link))?;
    let seed = Seed::from_raw(snapshot.seed).ok_or(Refusal::Seed(snapshot.seed))?;
    if header.cookie == 0 {
        return Err(Refusal::Cookie);
    }
    if header.gpa != found {
        return Err(Refusal::Elsewhere { claimed: header.gpa, found });
    }
    let address = |what, gpa: u64, length: u64| bytes_in_ram(what, gpa, length, in_ram);
    address("the page", header.gpa, PAGE_SIZE as u64)?;
    let count = header.nr_vcpus;
    if count == 0 || count as usize > MAX_VCPUS {
        return Err(Refusal::VcpuCount(count));
    }
    if header.vcpu >= count {
        return Err(Refusal::VcpuNumber { vcpu: header.vcpu, count });
    }
    let mut features = header.features & feature::NAMES.iter().fold(0, |all, (_, bit)| all | bit);
    let preempt = match features & feature::PREEMPT_COUNT {
        0 => None,
        _ => preempt(header, &address)?,
    };
    if preempt.is_none() {
        features &= !feature::PREEMPT_COUNT;
    }
    let load = match features & feature::RQ_LOAD {
        0 => None,
        _ => Some(Load {
            util: address("the utilisation", header.util_gpa, 8)?,
            nr_running: address("the count of runnable tasks", header.nr_running_gpa, 4)?,
        }),
    };
    Ok(ValidatedHeader {
        vcpu: header.vcpu,
        nr_vcpus: count,
        hwid: (header.vcpu_hwid != u32::MAX).then_some(header.vcpu_hwid),
        cookie: header.cookie,
        gpa: header.gpa,
        features,
        boot_id: header.boot_id,
        seed,
        generation: link.generation,
        preempt,
        load,
    })
}

/// Checks the directory of vCPU 0's page and returns the pages' addresses by vCPU number.
pub fn validate_directory(
    first: &ValidatedHeader,
    directory: &[u64; MAX_VCPUS],
    in_ram: &dyn Fn(u64, u64) -> bool,
) -> Result<Vec<u64>, Refusal> {
    if first.vcpu != 0 {
        return Err(Refusal::VcpuNumber { vcpu: first.vcpu, count: first.nr_vcpus });
    }
    let pages = &directory[..first.nr_vcpus as usize];
    if pages[0] != first.gpa {
        return Err(Refusal::Elsewhere { claimed: pages[0], found: first.gpa });
    }
    let mut seen = HashSet::with_capacity(pages.len());
    for &gpa in pages {
        bytes_in_ram("a page of the directory", gpa, PAGE_SIZE as u64, in_ram)?;
        if !seen.insert(gpa) {
            return Err(Refusal::Twice(gpa));
        }
    }
    Ok(pages.to_vec())
}

/// Checks that the validated page at place `vcpu` of the directory belongs to the registration of the first page.
pub fn validate_sibling(first: &ValidatedHeader, vcpu: u32, page: &ValidatedHeader) -> Result<(), Refusal> {
    let same = page.vcpu == vcpu
        && page.nr_vcpus == first.nr_vcpus
        && page.cookie == first.cookie
        && page.boot_id == first.boot_id;
    if same { Ok(()) } else { Err(Refusal::Stranger(vcpu)) }
}

fn bytes_in_ram(what: &'static str, gpa: u64, length: u64, in_ram: &dyn Fn(u64, u64) -> bool) -> Result<u64, Refusal> {
    // Lengths are powers of two up to a page, so what is aligned never crosses one.
    let fits = gpa.is_multiple_of(length) && gpa < MAX_GPA && in_ram(gpa, length);
    if fits { Ok(gpa) } else { Err(Refusal::Address { what, gpa, length }) }
}

type CheckAddress<'a> = dyn Fn(&'static str, u64, u64) -> Result<u64, Refusal> + 'a;

fn preempt(header: &HeaderValues, address: &CheckAddress<'_>) -> Result<Option<Preempt>, Refusal> {
    let per_cpu = |size: u32| {
        let gpa = address("the preempt count", header.preempt_gpa, u64::from(size))?;
        Ok(Some(Preempt::PerCpu { gpa, size }))
    };
    let task = |new_bits| {
        let offset = header.preempt_offset;
        if offset > MAX_TASK_OFFSET || !offset.is_multiple_of(4) {
            return Err(Refusal::TaskOffset(offset));
        }
        let linear = LinearMap { base: header.linear_base, size: header.linear_size, gpa: header.linear_gpa };
        let LinearMap { base, size, gpa } = linear;
        let page = PAGE_SIZE as u64;
        let possible = (base | size | gpa) % page == 0
            && size != 0
            && base.checked_add(size - 1).is_some()
            && gpa.checked_add(size).is_some_and(|end| end <= MAX_GPA);
        if !possible {
            return Err(Refusal::LinearMap { base, size, gpa });
        }
        Ok(Some(Preempt::Task { offset, linear, new_bits }))
    };
    match PreemptLayout::from_raw(header.preempt_layout) {
        None | Some(PreemptLayout::None) => Ok(None),
        Some(PreemptLayout::PerCpu32) => per_cpu(4),
        Some(PreemptLayout::PerCpu64) => per_cpu(8),
        Some(PreemptLayout::Task32) => task(false),
        Some(PreemptLayout::Task64) => task(true),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::page::Page;

    const RAM: u64 = 512 << 20;
    const AT: u64 = 0x28_3000;

    fn in_ram(gpa: u64, length: u64) -> bool {
        gpa.checked_add(length).is_some_and(|end| end <= RAM)
    }

    fn good() -> Snapshot<HeaderValues> {
        let header = HeaderValues {
            magic: [MAGIC0, MAGIC1],
            version: VERSION,
            nr_vcpus: 4,
            vcpu: 0,
            vcpu_hwid: 0,
            cookie: 77,
            gpa: AT,
            features: feature::PREEMPT_COUNT | feature::RQ_LOAD | 1 << 60,
            boot_id: 5,
            preempt_layout: PreemptLayout::PerCpu64 as u32,
            preempt_gpa: 0x1f41_8028,
            util_gpa: 0x1f42_0080,
            nr_running_gpa: 0x1f42_0004,
            ..HeaderValues::default()
        };
        Snapshot { link: Link { generation: 3, state: LinkState::Offered }.raw(), seed: 0xabcd, header }
    }

    fn refused(change: impl Fn(&mut Snapshot<HeaderValues>)) -> Refusal {
        let mut page = good();
        change(&mut page);
        validate(&page, AT, &in_ram).expect_err("must be refused")
    }

    #[test]
    fn a_good_page_passes_and_unknown_features_are_ignored() {
        let valid = validate(&good(), AT, &in_ram).expect("good");
        assert_eq!(valid.features, feature::PREEMPT_COUNT | feature::RQ_LOAD);
        assert_eq!(valid.preempt, Some(Preempt::PerCpu { gpa: 0x1f41_8028, size: 8 }));
    }

    #[test]
    fn lies_are_refused() {
        assert_eq!(refused(|p| p.header.magic[1] ^= 1), Refusal::Magic);
        assert_eq!(refused(|p| p.header.version = 2), Refusal::Version(2));
        assert_eq!(refused(|p| p.link = 2), Refusal::NotOffered(2));
        assert_eq!(refused(|p| p.seed = 1 << 16), Refusal::Seed(1 << 16));
        assert_eq!(refused(|p| p.header.cookie = 0), Refusal::Cookie);
        assert_eq!(refused(|p| p.header.gpa += 4096), Refusal::Elsewhere { claimed: AT + 4096, found: AT });
        for count in [0, 257, u32::MAX] {
            assert_eq!(refused(|p| p.header.nr_vcpus = count), Refusal::VcpuCount(count));
        }
        assert_eq!(refused(|p| p.header.vcpu = 4), Refusal::VcpuNumber { vcpu: 4, count: 4 });
        for gpa in [RAM, RAM - 4, 0x1f41_8029, u64::MAX - 7, 1 << 60] {
            assert!(matches!(refused(|p| p.header.preempt_gpa = gpa), Refusal::Address { .. }), "{gpa:#x}");
        }
        assert!(matches!(refused(|p| p.header.util_gpa = RAM), Refusal::Address { .. }));
        assert!(matches!(refused(|p| p.header.nr_running_gpa = 2), Refusal::Address { .. }));
    }

    #[test]
    fn a_layout_from_the_future_costs_the_feature_alone() {
        let mut page = good();
        page.header.preempt_layout = 99;
        let valid = validate(&page, AT, &in_ram).expect("still a good page");
        assert_eq!((valid.features, valid.preempt), (feature::RQ_LOAD, None));
    }

    #[test]
    fn the_linear_map_is_bounded() {
        let task = |p: &mut Snapshot<HeaderValues>| {
            p.header.preempt_layout = PreemptLayout::Task64 as u32;
            p.header.preempt_offset = 16;
            p.header.linear_base = 0xffff_0000_0000_0000;
            p.header.linear_size = RAM;
            p.header.linear_gpa = 0x4000_0000;
        };
        let mut page = good();
        task(&mut page);
        let valid = validate(&page, AT, &in_ram).expect("good");
        let Some(Preempt::Task { linear, offset: 16, new_bits: true }) = valid.preempt else { panic!("{valid:?}") };
        assert_eq!(linear.translate(0xffff_0000_0000_1010, 4), Some(0x4000_1010));
        assert_eq!(linear.translate(0xffff_0000_0000_0ffe, 4), None, "crosses a page");
        assert_eq!(linear.translate(0xffff_0000_0000_0000 + RAM, 4), None);
        assert_eq!(linear.translate(0x1000, 4), None);
        for change in [
            (|p| p.header.linear_size = 0) as fn(&mut Snapshot<HeaderValues>),
            |p| p.header.linear_size = u64::MAX - 4095,
            |p| p.header.linear_gpa = u64::MAX - 4095,
            |p| p.header.linear_base = 0xffff_ffff_ffff_f000,
            |p| p.header.linear_base += 8,
        ] {
            let refusal = refused(|p| {
                task(p);
                change(p);
            });
            assert!(matches!(refusal, Refusal::LinearMap { .. }), "{refusal:?}");
        }
        let refusal = refused(|p| {
            task(p);
            p.header.preempt_offset = 1 << 30;
        });
        assert_eq!(refusal, Refusal::TaskOffset(1 << 30));
    }

    #[test]
    fn the_directory_names_each_page_once() {
        let first = validate(&good(), AT, &in_ram).expect("good");
        let mut directory = [0; MAX_VCPUS];
        directory[..4].copy_from_slice(&[AT, 0x1000, 0x9000, 0x5000]);
        assert_eq!(validate_directory(&first, &directory, &in_ram), Ok(vec![AT, 0x1000, 0x9000, 0x5000]));
        directory[2] = 0x1000;
        assert_eq!(validate_directory(&first, &directory, &in_ram), Err(Refusal::Twice(0x1000)));
        directory[2] = 0x9008;
        assert!(matches!(validate_directory(&first, &directory, &in_ram), Err(Refusal::Address { .. })));
        directory[0] = 0x2000;
        assert!(matches!(validate_directory(&first, &directory, &in_ram), Err(Refusal::Elsewhere { .. })));
    }

    #[test]
    fn a_stranger_is_not_a_sibling() {
        let first = validate(&good(), AT, &in_ram).expect("good");
        let sibling = ValidatedHeader { vcpu: 1, gpa: 0x1000, ..first };
        assert_eq!(validate_sibling(&first, 1, &sibling), Ok(()));
        assert_eq!(validate_sibling(&first, 2, &sibling), Err(Refusal::Stranger(2)));
        let stranger = ValidatedHeader { cookie: 1, ..sibling };
        assert_eq!(validate_sibling(&first, 1, &stranger), Err(Refusal::Stranger(1)));
    }

    /// Whatever passes is within bounds.
    fn check_bounds(valid: &ValidatedHeader) {
        assert!(valid.nr_vcpus as usize <= MAX_VCPUS && valid.vcpu < valid.nr_vcpus);
        assert!(in_ram(valid.gpa, 4096) && valid.seed.raw() & 0xffff != 0);
        match valid.preempt {
            Some(Preempt::PerCpu { gpa, size }) => {
                assert!(in_ram(gpa, size.into()) && gpa % 4096 + u64::from(size) <= 4096);
            }
            Some(Preempt::Task { linear, .. }) => {
                for address in [linear.base, linear.base + (linear.size - 1), u64::MAX, 0] {
                    assert!(linear.translate(address, 4).is_none_or(|gpa| gpa < MAX_GPA));
                }
            }
            None => {}
        }
        if let Some(load) = valid.load {
            assert!(in_ram(load.util, 8) && in_ram(load.nr_running, 4));
        }
    }

    proptest! {
        #[test]
        fn random_pages_do_no_harm(words in proptest::collection::vec(any::<u64>(), 512)) {
            let page = fill(&words);
            prop_assert_eq!(validate(&Snapshot::read(&*page), AT, &in_ram), Err(Refusal::Magic));
        }

        /// A good header with any one word of it replaced.
        #[test]
        fn forged_headers_do_no_harm(index in 0_usize..16, word: u64, small in 0_u64..0x4000_0000, choose: bool,
                                     layout in 0_u32..6) {
            let mut start = good();
            start.header.preempt_layout = layout;
            let page = Page::zeroed();
            start.header.store(&page.header);
            page.link.link.store(start.link, std::sync::atomic::Ordering::Relaxed);
            page.link.seed.store(start.seed, std::sync::atomic::Ordering::Relaxed);
            words_of(&page)[index].store(if choose { word } else { small }, std::sync::atomic::Ordering::Relaxed);
            if let Ok(valid) = validate(&Snapshot::read(&*page), AT, &in_ram) {
                check_bounds(&valid);
            }
        }

        #[test]
        fn random_directories_do_no_harm(count in 1_u32..=256, seed: u64, step in 0_u64..0x20_0000) {
            let first = ValidatedHeader { nr_vcpus: count, ..validate(&good(), AT, &in_ram).expect("good") };
            let mut directory: [u64; MAX_VCPUS] = std::array::from_fn(|i| seed.wrapping_add(step * i as u64) % (2 * RAM));
            directory[0] = AT;
            if let Ok(pages) = validate_directory(&first, &directory, &in_ram) {
                prop_assert_eq!(pages.len(), count as usize);
                prop_assert!(pages.iter().all(|&gpa| gpa % 4096 == 0 && in_ram(gpa, 4096)));
            }
        }
    }

    fn words_of(page: &Page) -> &[std::sync::atomic::AtomicU64; 512] {
        // SAFETY: a page is 512 aligned words, and atomic words may be looked at in either shape.
        unsafe { &*std::ptr::from_ref(page).cast() }
    }

    fn fill(words: &[u64]) -> Box<Page> {
        let page = Page::zeroed();
        for (to, from) in words_of(&page).iter().zip(words) {
            to.store(*from, std::sync::atomic::Ordering::Relaxed);
        }
        page
    }
}
