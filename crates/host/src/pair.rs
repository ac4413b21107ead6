//! One vCPU's pairing: verify the page, pin it, accept the offer; and let go again.

use std::io;

use entrain_channel::hosting::{self, Gone, Kernel};
use entrain_channel::page::{HeaderValues, MAX_VCPUS, PAGE_SIZE, Page, PreemptLayout};
use entrain_channel::protocol::Snapshot;
use entrain_channel::validate::{Preempt, Refusal, ValidatedHeader, validate};
use thiserror::Error;

use crate::interface::{Pairing, Side};
use crate::memory::{Mapped, ProcessMemory};
use crate::pidfd;
use crate::programs::{Place, Programs};
use crate::slots::Slots;

/// Why a vCPU could not be paired. Nothing of the guest's has been changed.
#[derive(Debug, Error)]
pub(crate) enum PairError {
    /// The page is not acceptable.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The page cannot be read in the VMM's memory.
    #[error("cannot read the guest's page at {gpa:#x}: {source}")]
    Read { gpa: u64, source: io::Error },
    /// The page is not there (yet).
    #[error("the guest's page at {gpa:#x} is not in the VMM's memory yet")]
    Absent { gpa: u64 },
    /// The memory cannot be mapped.
    #[error("cannot map the guest's memory at {gpa:#x}: {source}")]
    Map { gpa: u64, source: io::Error },
    /// The kernel does not take the mapping.
    #[error("the kernel does not pin the guest's page at {gpa:#x}: {source}")]
    Pin { gpa: u64, source: libbpf_rs::Error },
    /// The pinned memory is not what was verified.
    #[error("the VMM's memory at {gpa:#x} of the guest changed while it was being paired")]
    Swapped { gpa: u64 },
    /// The offer went away meanwhile.
    #[error("the guest took its offer back")]
    TakenBack,
    /// Looking at it does not end.
    #[error("looking at the VMM's memory is held up")]
    HeldUp,
    /// The thread has ended.
    #[error("the vCPU's thread has ended")]
    Ended,
    /// There is no file descriptor for the vCPU's thread.
    #[error("no file descriptor for the vCPU's thread: {0}")]
    Descriptor(io::Error),
    /// The BPF programs cannot be called.
    #[error(transparent)]
    Bpf(#[from] entrain_bpf::Error),
}

fn no_descriptor(error: io::Error) -> PairError {
    match error.raw_os_error() {
        Some(libc::ESRCH) => PairError::Ended,
        _ => PairError::Descriptor(error),
    }
}

/// What was read of a page, and passed.
#[derive(Debug)]
pub(crate) struct Verified {
    pub(crate) page: ValidatedHeader,
    /// As the guest wrote it.
    pub(crate) header: HeaderValues,
    pub(crate) directory: [u64; MAX_VCPUS],
}

/// Reads the page at `gpa` and checks it.
pub(crate) fn verify(slots: &Slots, memory: &ProcessMemory, gpa: u64) -> Result<Verified, PairError> {
    let read = |source| PairError::Read { gpa, source };
    let hva = slots.hva(gpa, PAGE_SIZE as u64).ok_or_else(|| read(io::Error::other("not in the guest's RAM")))?;
    if !memory.is_present(hva).map_err(read)? {
        return Err(PairError::Absent { gpa });
    }
    // The link before the rest: when the same link can be swapped later, nothing was rewritten in between.
    let mut link = [0; 8];
    memory.copy(hva + std::mem::offset_of!(Page, link) as u64, &mut link).map_err(read)?;
    let mut bytes = Box::new([0; PAGE_SIZE]);
    memory.copy(hva, &mut bytes[..]).map_err(read)?;
    Ok(check(slots, gpa, u64::from_le_bytes(link), &bytes)?)
}

/// Checks what was read of the page at `gpa`; `link` was read before the rest.
pub(crate) fn check(slots: &Slots, gpa: u64, link: u64, bytes: &[u8; PAGE_SIZE]) -> Result<Verified, Refusal> {
    let page = Page::copied(bytes);
    let snapshot = Snapshot { link, ..Snapshot::read(&*page) };
    let in_ram = |gpa, length| slots.find(gpa, length).is_some();
    let valid = validate(&snapshot, gpa, &in_ram)?;
    let directory = std::array::from_fn(|i| page.directory[i].load(std::sync::atomic::Ordering::Relaxed));
    Ok(Verified { page: valid, header: snapshot.header, directory })
}

/// The memory that a page and what it registers are, mapped here.
#[derive(Debug)]
pub(crate) struct Maps {
    own: Mapped,
    /// With its size.
    preempt: Option<(Mapped, u32)>,
    /// Utilisation and count of runnable tasks.
    load: Option<(Mapped, Mapped)>,
}

impl Maps {
    /// Of a verified page.
    pub(crate) fn of(slots: &Slots, memory: &ProcessMemory, page: &ValidatedHeader) -> Result<Self, PairError> {
        let map = |gpa: u64, length: u64| -> Result<Mapped, PairError> {
            let error = |source| PairError::Map { gpa, source };
            let hva = slots.hva(gpa, length).ok_or_else(|| error(io::Error::other("not in the guest's RAM")))?;
            if !memory.is_present(hva).map_err(error)? {
                return Err(PairError::Absent { gpa });
            }
            memory.map(hva, length).map_err(error)
        };
        let own = map(page.gpa, PAGE_SIZE as u64)?;
        let preempt = match page.preempt {
            Some(Preempt::PerCpu { gpa, size }) => Some((map(gpa, u64::from(size))?, size)),
            _ => None,
        };
        let load = match page.load {
            Some(load) => Some((map(load.util, 8)?, map(load.nr_running, 4)?)),
            None => None,
        };
        Ok(Self { own, preempt, load })
    }
}

/// A paired vCPU.
#[derive(Debug)]
pub(crate) struct Paired {
    side: hosting::Paired<Place>,
    gpa: u64,
}

impl Paired {
    /// Pins the page of a verified offer and what it registers, and accepts it for the vCPU in entry `index`, whose
    /// thread is `tid`. `maps` are kept until the kernel has its own pins. The page's times count from `epoch`, ns.
    pub(crate) fn new(
        programs: &Programs,
        maps: &Maps,
        verified: &Verified,
        index: u32,
        tid: i32,
        epoch: u64,
    ) -> Result<Self, PairError> {
        let page = &verified.page;
        let Maps { own, preempt, load } = maps;
        let address = |wanted: u32| preempt.as_ref().filter(|(_, size)| *size == wanted).map(|(m, _)| m.address());
        let entry = programs.vcpus.get(index as usize);
        let value = Pairing {
            page: pointer(Some(own.address())),
            preempt32: pointer(address(4)),
            preempt64: pointer(address(8)),
            util: pointer(load.as_ref().map(|(util, _)| util.address())),
            nr_running: pointer(load.as_ref().map(|(_, nr)| nr.address())),
            side: Side {
                seed: page.seed.raw(),
                cookie: page.cookie,
                boot_id: page.boot_id,
                gpa: page.gpa,
                epoch,
                generation: page.generation,
                // Opened by the step that accepts the offer.
                closed: 1,
                slow: [page.seed.raw(); 8],
                fast: [page.seed.raw(); 8],
                ..Side::default()
            },
            features: page.features,
            // Before anybody finds the pairing: whoever does counts from these.
            ready0: entry.ready_ns,
            preemptions0: entry.preemptions,
            preemptions_cs0: entry.preemptions_cs,
            boosts0: entry.boosts,
        };
        let place = Place { index, tid, pidfd: pidfd::of_thread(tid).map_err(no_descriptor)? };
        programs.detach(&place);
        programs.attach_pairing(&place, &value).map_err(|source| PairError::Pin { gpa: page.gpa, source })?;
        match hosting::Paired::accept(programs, place, page.generation) {
            Ok(side) => Ok(Self { side, gpa: page.gpa }),
            Err(hosting::Refused::Stale) => Err(PairError::Swapped { gpa: page.gpa }),
            Err(hosting::Refused::TakenBack) => Err(PairError::TakenBack),
            Err(hosting::Refused::Error(error)) => Err(error.into()),
        }
    }

    /// Where its page is in the guest's memory.
    pub(crate) fn gpa(&self) -> u64 {
        self.gpa
    }

    /// The link word while the guest asks for the page.
    pub(crate) fn releasing(&self) -> u64 {
        self.side.releasing()
    }

    /// Why it has ended by itself, if the tick has told so (`Vcpu::gone`).
    pub(crate) fn gone(&self, told: u64) -> Option<Gone> {
        self.side.gone(told)
    }

    /// Drops the pins without another write: the page is no longer ours.
    pub(crate) fn drop_pins(self, programs: &Programs) {
        self.side.drop_pins(programs);
    }
}

/// An address in this process for the kernel to pin; nothing here follows it.
fn pointer<T>(address: Option<u64>) -> *mut T {
    address.map_or(std::ptr::null_mut(), |address| std::ptr::without_provenance_mut(address as usize))
}

/// Lets go of pages that still are ours, because their guests ask or because the host leaves. Returns how many guests'
/// pages were told.
pub(crate) fn release(programs: &Programs, pages: Vec<Paired>) -> Result<usize, entrain_bpf::Error> {
    hosting::let_go(programs, pages.into_iter().map(|paired| paired.side).collect())
}

/// The number that BPF knows a layout by.
pub(crate) fn layout_number(page: &ValidatedHeader) -> u32 {
    let layout = match page.preempt {
        None => PreemptLayout::None,
        Some(Preempt::PerCpu { size: 4, .. }) => PreemptLayout::PerCpu32,
        Some(Preempt::PerCpu { .. }) => PreemptLayout::PerCpu64,
        Some(Preempt::Task { new_bits: false, .. }) => PreemptLayout::Task32,
        Some(Preempt::Task { new_bits: true, .. }) => PreemptLayout::Task64,
    };
    layout as u32
}
