//! A whole guest's memory: the search for the magic, the first page, its directory, the siblings, by slots that the VMM
//! chose.

use std::alloc::{Layout, alloc_zeroed};
use std::sync::{LazyLock, Mutex};

use arbitrary::{Result, Unstructured};
use entrain_channel::page::PAGE_SIZE;
use entrain_host::untrusted::{RawSlot, memory};

use crate::page::{edit, good};

/// Pages of the guest.
const PAGES: usize = 8;
const BASE: u64 = 0x4000_0000;

/// The guest's RAM, one for all runs: page-aligned, never freed.
static RAM: LazyLock<Mutex<&'static mut [[u8; PAGE_SIZE]; PAGES]>> = LazyLock::new(|| {
    let layout = Layout::from_size_align(PAGES * PAGE_SIZE, PAGE_SIZE).expect("a multiple of a power of two");
    // SAFETY: the layout is not empty; zeros are bytes; nobody else has this memory, and it is never freed.
    Mutex::new(unsafe { &mut *alloc_zeroed(layout).cast::<[[u8; PAGE_SIZE]; PAGES]>() })
});

pub(crate) fn run(data: &[u8]) {
    let _ = one(&mut Unstructured::new(data));
}

fn one(data: &mut Unstructured<'_>) -> Result<()> {
    // A panic of an earlier run is the fuzzer's find and ends the process; a test may go on.
    let mut ram = RAM.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let mut slots = honest(&mut ram);
    for page in ram.iter_mut() {
        edit(data, page)?;
    }
    for _ in 0..data.int_in_range(0..=3)? {
        let (_, _, hva, _) = slots[0];
        let odd: (u64, u64, u64, u32) = data.arbitrary()?;
        // Near the RAM more often than chance would have it; a slot of the whole address space takes too long to search.
        let near: u16 = data.arbitrary()?;
        slots.push(match near % 4 {
            0 => (odd.0, odd.1 % (1 << 24), odd.2, odd.3 & 3),
            1 => (BASE + u64::from(near), odd.1 % 0x1_0000, hva + u64::from(near & 0xfff), 0),
            // As KVM has them: whole pages.
            2 => (BASE + u64::from(near & 0xff) * 4096, (odd.1 % 16 + 1) * 4096, hva + u64::from(near >> 14) * 4096, 0),
            _ => (odd.0, u64::from(near), hva, odd.3 & 1),
        });
    }
    memory(&slots);
    Ok(())
}

/// Four vCPUs that offer their pages.
fn honest(ram: &mut [[u8; PAGE_SIZE]; PAGES]) -> Vec<RawSlot> {
    let gpa = |page: usize| BASE + (page * PAGE_SIZE) as u64;
    let directory: Vec<u64> = (0..4).map(gpa).collect();
    for (number, page) in ram.iter_mut().enumerate() {
        *page = match number {
            0 => good(gpa(0), 0, 4, &directory),
            1..4 => good(gpa(number), number as u32, 4, &[]),
            _ => [0; PAGE_SIZE],
        };
    }
    vec![(BASE, (PAGES * PAGE_SIZE) as u64, ram.as_ptr() as u64, 0)]
}

/// How many of an honest guest's pages could be paired with: otherwise the target would only test refusals.
pub fn seed() -> usize {
    let mut ram = RAM.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let slots = honest(&mut ram);
    memory(&slots)
}
