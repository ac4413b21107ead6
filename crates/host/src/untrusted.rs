//! Where bytes of guests, VMMs and users enter the daemon and its tools, as the fuzz targets of crates/fuzz reach them:
//! the product's own parsers behind plain arguments, and what must hold of their results as assertions.

#[cfg(feature = "fake")]
pub mod fleet;

use std::path::Path;
use std::time::{Duration, Instant};

use entrain_channel::page::{MAX_VCPUS, PAGE_SIZE};
use entrain_channel::validate::{Load, Preempt, ValidatedHeader};

use entrain_system::{Root, maps};

use crate::classes::{Classes, Identity};
use crate::identity::{Identity as VmIdentity, NAME};
use crate::memory::ProcessMemory;
use crate::pair::{Verified, check};
use crate::scan::{self, Scan};
use crate::slots::{MemorySlot, Slots};
use crate::status::{Answer, Request, Status};
use crate::{cgroup, metrics, register, top};

/// A memory slot as KVM tells it: first guest-physical address, bytes, the VMM's address, KVM's flags.
pub type RawSlot = (u64, u64, u64, u32);

fn slots(raw: &[RawSlot]) -> Slots {
    Slots::new(raw.iter().map(|&(gpa, size, hva, flags)| MemorySlot { gpa, size, hva, flags }).collect())
}

/// Everything that is taken from a page must lie in the guest's RAM.
fn inside(slots: &Slots, page: &ValidatedHeader) {
    let ram = |gpa, length| assert!(slots.hva(gpa, length).is_some(), "{length} bytes at {gpa:#x} are not RAM");
    ram(page.gpa, PAGE_SIZE as u64);
    assert!(page.vcpu < page.nr_vcpus && page.nr_vcpus as usize <= MAX_VCPUS && page.cookie != 0);
    match page.preempt {
        Some(Preempt::PerCpu { gpa, size }) => ram(gpa, u64::from(size)),
        Some(Preempt::Task { offset, linear, .. }) => {
            for base in [0, page.cookie, page.boot_id, u64::MAX - 3] {
                if let Some(gpa) = linear.translate(base.wrapping_add(u64::from(offset)), 4) {
                    assert!(gpa < 1 << 52 && gpa % PAGE_SIZE as u64 <= PAGE_SIZE as u64 - 4);
                }
            }
        }
        None => {}
    }
    if let Some(Load { util, nr_running }) = page.load {
        ram(util, 8);
        ram(nr_running, 4);
    }
}

/// One page's bytes, as found at `gpa`, with a link word that was read before. Whether it may be paired with.
pub fn page(raw: &[RawSlot], gpa: u64, link: u64, bytes: &[u8; PAGE_SIZE]) -> bool {
    let slots = slots(raw);
    match check(&slots, gpa, link, bytes) {
        Ok(Verified { page, .. }) => {
            inside(&slots, &page);
            true
        }
        Err(refusal) => {
            assert_eq!(refusal.to_string().lines().count(), 1, "a log line");
            false
        }
    }
}

/// What the daemon may ask the kernel for one piece of a search: mapping, pages, and reads up to the last fault.
const MOST_CALLS_A_PIECE: u64 = 2 + 1 + 8;
/// And for a page that is offered: mapping, presence, link word, page.
const MOST_CALLS_AN_OFFER: u64 = 4;

/// A guest's memory, in this process: searched, and every offer in it verified with all its pages. The slots' addresses
/// may be anything. Returns how many pages could be paired with.
pub fn memory(raw: &[RawSlot]) -> usize {
    thread_local! {
        static SELF: ProcessMemory =
            ProcessMemory::of(&Root::live(), std::process::id() as i32).expect("a process reads its own maps");
    }
    SELF.with(|own| memory_of(raw, own))
}

fn memory_of(raw: &[RawSlot], own: &ProcessMemory) -> usize {
    let slots = slots(raw);
    let deadline = Instant::now() + Duration::from_millis(200);
    let mut scan = Scan::new();
    let before = own.calls();
    let found = scan.advance(&slots, own, deadline);
    // A turn goes by pieces: of each at most the question for its mapping, that for its pages, and the reading of these
    // with the pages that turn out unreadable.
    let pieces = own.calls() - before;
    assert!(pieces <= MOST_CALLS_A_PIECE * (scan.pieces + 1), "{pieces} system calls for {} pieces", scan.pieces);
    let Ok(hits) = found else { return 0 };
    assert!(hits.len() <= scan::HITS, "{} offers at a time", hits.len());
    let mut pages = 0;
    for gpa in hits {
        let before = own.calls();
        let offered = register::offer(&slots, own, gpa);
        assert!(own.calls() - before <= MOST_CALLS_AN_OFFER, "system calls for one offer");
        let Ok(Some((first, directory))) = offered else { continue };
        inside(&slots, &first.page);
        assert_eq!(directory.len(), first.page.nr_vcpus as usize);
        for (number, &gpa) in directory.iter().enumerate() {
            let before = own.calls();
            let sibling = register::sibling(&slots, own, &first.page, number as u32, gpa);
            assert!(own.calls() - before <= MOST_CALLS_AN_OFFER, "system calls for one page");
            let Ok(verified) = sibling else { continue };
            inside(&slots, &verified.page);
            assert_eq!((verified.page.cookie, verified.page.gpa), (first.page.cookie, gpa));
            pages += 1;
        }
    }
    pages
}

/// The file of `--config`, and which class a VM gets by it.
pub fn classes(text: &str, name: &str, cgroup: &str, pid: i32) {
    match Classes::parse(Path::new("host.toml"), text, 4) {
        Ok(classes) => {
            classes.of(&Identity { name, pid, cgroup });
            assert!(classes.summary().lines().count() >= 4);
        }
        Err(error) => assert_eq!(error.to_string().lines().count(), 1, "file, line and key in one line"),
    }
}

/// A line to the daemon's socket, and two answers of a daemon as `entrain top` and the metrics show them.
pub fn status(request: &str, before: &str, now: &str) {
    let _ = serde_json::from_str::<Request>(request);
    let read = |text| match serde_json::from_str(text) {
        Ok(Answer::Status(status)) => Some(status),
        _ => None,
    };
    let (Some(before), Some(now)): (Option<Box<Status>>, Option<Box<Status>>) = (read(before), read(now)) else {
        return;
    };
    for vms in [false, true] {
        top::plain(&before, &now, vms);
    }
    metrics::classic(&now);
}

/// A VMM's `comm`, `cmdline`, `cgroup` and `maps`: its user chooses names of files, of itself and of its VM.
pub fn process(comm: &str, line: &[u8], cgroup_file: &str, maps: &str) {
    let path = cgroup::path_in(cgroup_file);
    assert!(!path.is_some_and(|path| path.contains('\n') || path.contains("/../")));
    if let Some(told) = VmIdentity::chosen(comm, line, path.unwrap_or_default()) {
        for text in [&told.name, &told.managed_as] {
            assert!(text.chars().count() <= NAME && text.chars().all(entrain_system::is_plain), "{text:?}");
        }
        assert!(!told.name.is_empty() && told.uuid.is_none_or(|uuid| uuid.len() == 36));
    }
    for mapping in maps::parse(maps) {
        assert!(mapping.start <= mapping.end);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use entrain_channel::validate::ValidatedHeader;
    use entrain_channel::word::Seed;

    /// Of a page that passed.
    pub(crate) fn header() -> ValidatedHeader {
        ValidatedHeader {
            vcpu: 0,
            nr_vcpus: 4,
            hwid: None,
            cookie: 7,
            gpa: 0x1000,
            features: 0,
            boot_id: 5,
            seed: Seed::from_raw(0xabcd).expect("a good one"),
            generation: 1,
            preempt: None,
            load: None,
        }
    }
}
