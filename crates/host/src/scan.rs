//! The search for pages of the channel in a VM's memory, where no doorbell tells: the magic at the start of a page.
//!
//! Only pages that are present in the VMM's page table are looked at, so a scan populates nothing, and of each only the
//! first 16 bytes. A pass is done in pieces of a bounded time, and passes that find nothing become rarer. Where a page was
//! before, it is looked for first.

use std::io;
use std::time::{Duration, Instant};

use entrain_channel::page::{MAGIC0, MAGIC1};

use crate::memory::ProcessMemory;
use crate::slots::Slots;

const PAGE: u64 = 4096;
/// Pages looked at between two looks at the clock.
const PIECE: usize = 4096;
/// Pause between two passes over one VM: at first, and at most.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));

/// How far the search in one VM has come.
#[derive(Debug)]
pub(crate) struct Scan {
    /// Index of the slot and bytes into it.
    at: (usize, u64),
    /// Guest-physical address at which the page may be again.
    likely: Option<u64>,
    hits: Vec<u64>,
    pause: Duration,
    next: Option<Instant>,
    /// The first pass since it began anew.
    first: bool,
    /// Complete passes so far.
    pub(crate) passes: u64,
    /// Pages looked at so far.
    pub(crate) pages: u64,
}

impl Scan {
    /// A search that has yet to begin.
    pub(crate) fn new() -> Self {
        Self {
            at: (0, 0),
            likely: None,
            hits: Vec::new(),
            pause: PAUSE.0,
            next: None,
            first: true,
            passes: 0,
            pages: 0,
        }
    }

    /// Begins anew, at once, and at `likely`, or where it was to begin: the VM has changed, or its guest has.
    pub(crate) fn restart(&mut self, likely: Option<u64>) {
        *self = Self { likely: likely.or(self.likely), passes: self.passes, pages: self.pages, ..Self::new() };
    }

    /// Whether it has not yet looked at all of the VM since it began.
    pub(crate) fn first(&self) -> bool {
        self.first
    }

    /// Whether there is something to do now.
    pub(crate) fn due(&self) -> bool {
        self.next.is_none_or(|next| Instant::now() >= next)
    }

    /// Goes on until `deadline`. The guest-physical addresses of all pages with the magic when a pass is complete; before
    /// that of the likely one alone, if it has it.
    pub(crate) fn advance(
        &mut self,
        slots: &Slots,
        memory: &ProcessMemory,
        deadline: Instant,
    ) -> io::Result<Option<Vec<u64>>> {
        if !self.due() {
            return Ok(None);
        }
        if let Some(gpa) = self.likely.take()
            && let Some(hva) = slots.hva(gpa, PAGE)
            && memory.present(hva, 1)? == [true]
            && memory.heads(&[hva])? == [[MAGIC0, MAGIC1]]
        {
            return Ok(Some(vec![gpa]));
        }
        for (index, slot) in slots.iter().enumerate().skip(self.at.0) {
            if index > self.at.0 {
                self.at = (index, 0);
            }
            while self.at.1 < slot.size {
                if Instant::now() >= deadline {
                    return Ok(None);
                }
                let count = PIECE.min(((slot.size - self.at.1) / PAGE) as usize);
                if count == 0 {
                    break;
                }
                let start = slot.hva + self.at.1;
                let present = memory.present(start, count)?;
                let pages: Vec<u64> =
                    present.iter().zip(0..).filter(|(here, _)| **here).map(|(_, i)| start + i * PAGE).collect();
                let heads = memory.heads(&pages)?;
                self.pages += pages.len() as u64;
                let hit = |(_, head): &(&u64, &[u64; 2])| **head == [MAGIC0, MAGIC1];
                self.hits.extend(pages.iter().zip(&heads).filter(hit).map(|(hva, _)| hva - slot.hva + slot.gpa));
                self.at.1 += count as u64 * PAGE;
            }
        }
        self.at = (0, 0);
        self.passes += 1;
        self.first = false;
        self.next = Some(Instant::now() + self.pause);
        self.pause = (self.pause * 2).min(PAUSE.1);
        Ok(Some(std::mem::take(&mut self.hits)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slots::MemorySlot;
    use entrain_system::Root;

    #[test]
    fn finds_the_magic_in_memory_that_is_there() {
        const PAGES: usize = 10_000;
        let mut ram = vec![0u8; (PAGES + 1) * 4096];
        let base = (ram.as_ptr() as usize).next_multiple_of(4096) - ram.as_ptr() as usize;
        for page in [3, 9_998] {
            ram[base + page * 4096..][..8].copy_from_slice(&MAGIC0.to_le_bytes());
            ram[base + page * 4096 + 8..][..8].copy_from_slice(&MAGIC1.to_le_bytes());
        }
        // Half a magic is none.
        ram[base + 20 * 4096..][..8].copy_from_slice(&MAGIC0.to_le_bytes());
        let hva = ram[base..].as_ptr() as u64;
        let slots = Slots::new(vec![MemorySlot { gpa: 0x4000_0000, size: (PAGES * 4096) as u64, hva, flags: 0 }]);
        let memory = ProcessMemory::read(&Root::live(), std::process::id() as i32).unwrap();
        let mut scan = Scan::new();
        // No time at all: nothing happens, and nothing is lost.
        assert_eq!(scan.advance(&slots, &memory, Instant::now()).unwrap(), None);
        let later = Instant::now() + Duration::from_secs(60);
        let hits = scan.advance(&slots, &memory, later).unwrap().expect("a complete pass");
        assert_eq!(hits, vec![0x4000_0000 + 3 * 4096, 0x4000_0000 + 9_998 * 4096]);
        assert!(scan.pages < PAGES as u64, "pages that were never touched are not looked at");
        assert_eq!(scan.advance(&slots, &memory, later).unwrap(), None, "the next pass waits");
        // Where a page was is looked at first, if it still is one; two restarts do not forget it.
        scan.restart(Some(hits[1]));
        scan.restart(None);
        assert_eq!(scan.advance(&slots, &memory, later).unwrap(), Some(vec![hits[1]]));
        assert_eq!(scan.advance(&slots, &memory, later).unwrap().as_ref(), Some(&hits), "then everywhere");
        for gone in [0x4000_0000 + 4 * 4096, 0x1000] {
            scan.restart(Some(gone));
            assert_eq!(scan.advance(&slots, &memory, later).unwrap().as_ref(), Some(&hits));
        }
    }
}
