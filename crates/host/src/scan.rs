//! The search for pages of the channel in a VM's memory, where no doorbell tells: the magic at the start of a page.
//!
//! What it costs is decided here and not by the guest or its VMM:
//!
//! - It looks only where a VM's memory can be: memory of the VMM's own, tmpfs, hugetlbfs. Device BARs and files on a disk
//!   or a server are passed over whole.
//! - The kernel tells which pages are there (`PAGEMAP_SCAN`). Those that are not, or are swapped out, or are the page of
//!   zeros are not touched: nothing is populated and nothing swapped in. Pages that are looked at count as accessed
//!   afterwards: the kernel has no way to read a page that leaves its age alone. That is why the search ends (below).
//! - Of each page the first 32 bytes are read, many pages in one call.
//! - A turn ends at its deadline or with [`HITS`] finds; a pass over the VM with [`PASS_HITS`] of them. An honest guest has
//!   one page that counts (that of vCPU 0), and a few old ones. A turn that begins late looks at one piece: on a host that is
//!   slow or full, opening the VMM's memory takes a turn's time, and the search would never come to an end.
//! - Passes that find nothing become rarer, and rarer than one part in [`SHARE`] of what they take. Where a doorbell is sure
//!   to be heard, the search stops after [`EMPTY`] of them.

use std::io;
use std::time::{Duration, Instant};

use entrain_channel::page::{MAGIC0, MAGIC1};

use crate::memory::{Head, ProcessMemory};
use crate::slots::Slots;

const PAGE: u64 = 4096;
/// Pages looked at between two looks at the clock.
const PIECE: u64 = 1024;
/// Finds that one turn hands on: each costs the daemon the reading of a page and its checks.
pub(crate) const HITS: usize = 8;
/// Finds after which a pass is over. A guest that fills its memory with the magic gets no more than that looked at.
const PASS_HITS: u32 = 64;
/// Passes without a pairing after which a doorbell is waited for, where it is heard.
const EMPTY: u32 = 4;
/// Pause between two passes over one VM: at first, and at most where a pass takes no time.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));
/// A pause is so many times as long as the pass before it took: 2 % of a CPU for a VM of any size.
const SHARE: u32 = 50;

/// Where the search in one VM stands.
#[derive(Debug)]
pub(crate) struct Scan {
    /// Index of the slot and bytes into it.
    at: (usize, u64),
    /// Guest-physical address at which the page may be again.
    likely: Option<u64>,
    /// Finds of this pass so far.
    hits: u32,
    /// Time that this pass has taken so far.
    took: Duration,
    pause: Duration,
    next: Option<Instant>,
    /// Complete passes since it began anew.
    empty: u32,
    /// Complete passes so far.
    pub(crate) passes: u64,
    /// Pages looked at so far.
    pub(crate) pages: u64,
    /// Parts of memory that were asked for so far.
    pub(crate) pieces: u64,
}

impl Scan {
    /// A search that has yet to begin.
    pub(crate) fn new() -> Self {
        Self {
            at: (0, 0),
            likely: None,
            hits: 0,
            took: Duration::ZERO,
            pause: PAUSE.0,
            next: None,
            empty: 0,
            passes: 0,
            pages: 0,
            pieces: 0,
        }
    }

    /// Begins anew, at once, and at `likely`, or where it was to begin: the VM has changed, or its guest has.
    pub(crate) fn restart(&mut self, likely: Option<u64>) {
        *self = Self { likely: likely.or(self.likely), passes: self.passes, pages: self.pages, ..Self::new() };
    }

    /// Whether it has not yet looked at all of the VM since it began.
    pub(crate) fn first(&self) -> bool {
        self.empty == 0
    }

    /// Whether there is something to do now. `bell`: a doorbell is sure to be heard, so that the search may end.
    pub(crate) fn due(&self, bell: bool) -> bool {
        !(bell && self.empty >= EMPTY) && self.next.is_none_or(|next| Instant::now() >= next)
    }

    /// Nothing can be looked at now: not before a pause.
    pub(crate) fn postpone(&mut self) {
        self.next = Some(Instant::now() + self.pause);
    }

    /// Goes on until `deadline`, or until it has found something. The guest-physical addresses of pages that may be the
    /// first of a registration, [`HITS`] at most.
    pub(crate) fn advance(&mut self, slots: &Slots, memory: &ProcessMemory, deadline: Instant) -> io::Result<Vec<u64>> {
        let start = Instant::now();
        if let Some(gpa) = self.likely.take()
            && let Some(hva) = slots.hva(gpa, PAGE)
            && memory.is_present(hva)?
            && memory.heads(&[hva])?.iter().any(is_first)
        {
            return Ok(vec![gpa]);
        }
        self.next = None;
        let mut hits = Vec::new();
        let result = self.pass(slots, memory, deadline, &mut hits);
        self.took += start.elapsed();
        // What cannot be read ends a pass as well: no fault is met again and again without a pause.
        if result.as_ref().map_or(true, |over| *over) {
            self.at = (0, 0);
            self.hits = 0;
            self.passes += 1;
            self.empty += 1;
            self.next = Some(Instant::now() + self.pause.max(self.took * SHARE));
            self.took = Duration::ZERO;
            self.pause = (self.pause * 2).min(PAUSE.1);
        }
        result.map(|_| hits)
    }

    /// One turn of a pass: a piece at least, whatever the time. True: the pass is over.
    fn pass(
        &mut self,
        slots: &Slots,
        memory: &ProcessMemory,
        deadline: Instant,
        hits: &mut Vec<u64>,
    ) -> io::Result<bool> {
        let before = self.pieces;
        while let Some(slot) = slots.iter().nth(self.at.0) {
            while self.at.1 < slot.size {
                if self.pieces > before && Instant::now() >= deadline {
                    return Ok(false);
                }
                let piece = memory.present_in(slot.hva + self.at.1, slot.hva + slot.size, PIECE)?;
                self.pieces += 1;
                let heads = memory.heads(&piece.pages)?;
                self.pages += piece.pages.len() as u64;
                for (hva, _) in piece.pages.iter().zip(&heads).filter(|(_, head)| is_first(head)) {
                    hits.push(hva - slot.hva + slot.gpa);
                    self.hits += 1;
                    if self.hits >= PASS_HITS {
                        return Ok(true);
                    }
                    if hits.len() >= HITS {
                        self.at.1 = hva - slot.hva + PAGE;
                        return Ok(false);
                    }
                }
                self.at.1 = piece.end - slot.hva;
            }
            self.at = (self.at.0 + 1, 0);
        }
        Ok(true)
    }
}

/// The page of vCPU 0, through which the others are found.
fn is_first(head: &Head) -> bool {
    head[..2] == [MAGIC0, MAGIC1] && head[3] as u32 == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slots::MemorySlot;
    use entrain_system::Root;

    /// Pages of this process, aligned, zeroed and not touched yet.
    struct Ram(Vec<u8>);

    impl Ram {
        fn new(pages: usize) -> Self {
            Self(vec![0; (pages + 1) * PAGE as usize])
        }
        fn start(&self) -> usize {
            (self.0.as_ptr() as usize).next_multiple_of(PAGE as usize) - self.0.as_ptr() as usize
        }
        fn hva(&self) -> u64 {
            self.0[self.start()..].as_ptr() as u64
        }
        /// The magic in `page`, and which vCPU's it says it is.
        fn mark(&mut self, page: usize, vcpu: u32) {
            let at = self.start() + page * PAGE as usize;
            self.0[at..][..8].copy_from_slice(&MAGIC0.to_le_bytes());
            self.0[at + 8..][..8].copy_from_slice(&MAGIC1.to_le_bytes());
            self.0[at + 24..][..4].copy_from_slice(&vcpu.to_le_bytes());
        }
        fn slots(&self, pages: usize) -> Slots {
            Slots::new(vec![MemorySlot { gpa: GPA, size: pages as u64 * PAGE, hva: self.hva(), flags: 0 }])
        }
    }

    const GPA: u64 = 0x4000_0000;

    fn own() -> ProcessMemory {
        ProcessMemory::of(&Root::live(), std::process::id() as i32).unwrap()
    }

    fn later() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[test]
    fn finds_the_magic_in_memory_that_is_there() {
        const PAGES: usize = 10_000;
        let mut ram = Ram::new(PAGES);
        ram.mark(3, 0);
        ram.mark(9_998, 0);
        // Another vCPU's page is found through the first; half a magic is none.
        ram.mark(21, 1);
        ram.mark(20, 0);
        let half = ram.start() + 20 * PAGE as usize + 8;
        ram.0[half] ^= 1;
        let (slots, memory) = (ram.slots(PAGES), own());
        let mut scan = Scan::new();
        let hits = scan.advance(&slots, &memory, later()).unwrap();
        assert_eq!(hits, [GPA + 3 * PAGE, GPA + 9_998 * PAGE]);
        assert!(scan.pages < PAGES as u64 / 2, "pages that were never touched are not looked at: {}", scan.pages);
        assert!(scan.passes == 1 && !scan.due(true), "the next pass waits");
        // Where a page was is looked at first, if it still is one; two restarts do not forget it.
        scan.restart(Some(hits[1]));
        scan.restart(None);
        assert_eq!(scan.advance(&slots, &memory, later()).unwrap(), [hits[1]]);
        assert_eq!(scan.advance(&slots, &memory, later()).unwrap(), hits, "then everywhere");
        for gone in [GPA + 4 * PAGE, 0x1000] {
            scan.restart(Some(gone));
            assert_eq!(scan.advance(&slots, &memory, later()).unwrap(), hits);
        }
    }

    /// Seen on a loaded host: opening the memory took each turn's time, and two guests were not paired in five minutes.
    #[test]
    fn a_turn_that_begins_late_looks_at_a_piece() {
        const PAGES: usize = 5 * PIECE as usize;
        let mut ram = Ram::new(PAGES);
        ram.mark(PAGES - 1, 0);
        // All of it is there.
        ram.0.iter_mut().step_by(PAGE as usize).for_each(|byte| *byte |= 4);
        let (slots, memory) = (ram.slots(PAGES), own());
        let mut scan = Scan::new();
        for turn in 1..5 {
            assert!(scan.advance(&slots, &memory, Instant::now()).unwrap().is_empty());
            assert!(
                scan.due(true) && scan.first() && scan.pages <= turn * PIECE,
                "no more than a piece: {}",
                scan.pages
            );
        }
        // The kernel may end a piece early, at the end of a mapping.
        let found = (0..2).flat_map(|_| scan.advance(&slots, &memory, Instant::now()).unwrap()).next();
        assert_eq!(found, Some(GPA + (PAGES as u64 - 1) * PAGE));
    }

    /// Issue 23, finding 2: memory full of pages that all look like offers.
    #[test]
    fn a_guest_that_fills_its_memory_with_the_magic_gets_a_bounded_part_of_it_looked_at() {
        const PAGES: usize = 4_096;
        let mut ram = Ram::new(PAGES);
        (0..PAGES).for_each(|page| ram.mark(page, 0));
        let (slots, memory) = (ram.slots(PAGES), own());
        let mut scan = Scan::new();
        let (mut turns, mut hits) = (0, Vec::new());
        while scan.passes == 0 {
            let found = scan.advance(&slots, &memory, later()).unwrap();
            assert!(found.len() <= HITS);
            hits.extend(found);
            turns += 1;
        }
        assert!(hits.len() <= PASS_HITS as usize && turns <= PASS_HITS as usize / HITS + 1, "{turns} {hits:?}");
        hits.sort_unstable();
        hits.dedup();
        assert_eq!(hits.len(), PASS_HITS as usize, "each of another page");
        assert!(scan.pages <= 2 * PIECE * u64::from(PASS_HITS) / HITS as u64);
    }

    #[test]
    fn a_search_that_finds_nothing_ends_where_a_doorbell_is_heard() {
        let (ram, memory) = (Ram::new(1), own());
        let mut scan = Scan::new();
        for pass in 0..EMPTY {
            assert_eq!(scan.empty, pass);
            scan.next = None;
            assert!(scan.due(true));
            scan.advance(&ram.slots(1), &memory, later()).unwrap();
        }
        scan.next = None;
        assert!(!scan.due(true) && scan.due(false));
        scan.restart(None);
        assert!(scan.due(true), "until the VM changes");
    }

    #[test]
    fn the_longer_a_pass_takes_the_longer_is_the_pause() {
        let (ram, memory) = (Ram::new(1), own());
        let mut scan = Scan::new();
        scan.took = Duration::from_secs(2);
        scan.advance(&ram.slots(1), &memory, later()).unwrap();
        assert!(scan.next.unwrap() > Instant::now() + Duration::from_secs(99));
    }
}
