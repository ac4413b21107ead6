//! A guest that lies, for the lab's experiments `lifecycle` and `rogue`: writes what no agent writes into the pages of the agent that
//! runs. The host must refuse the pages or end the pairing, and nobody else may notice.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use entrain_channel::page::{HeaderValues, MAGIC0, MAGIC1, MAX_VCPUS, PAGE_SIZE, Page, VERSION};
use entrain_channel::protocol::Guest;
use entrain_channel::word::Seed;

use crate::doorbell::{self, Ringing};
use crate::error::Result;
use crate::pages::Pages;

/// The lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Lie {
    /// Every word of every page is random, again and again.
    Random,
    /// Addresses outside the guest's memory, unaligned or of another page.
    Header,
    /// A version from the future.
    Version,
    /// Four thousand million vCPUs.
    Vcpus,
    /// Every word that a guest writes while it is paired holds all ones.
    Ones,
    /// Every word that a guest writes while it is paired holds the value that would gain it most, were it believed.
    Greedy,
    /// Two values in turn in every word that a guest writes while it is paired, without a pause.
    Racing,
    /// Memory full of pages that look like offers; the agent's own stay as they are.
    Magic,
    /// The doorbell rings on all vCPUs for such pages, each time with another cookie.
    Doorbells,
}

/// Time between two strokes of the forger.
const STROKE: Duration = Duration::from_millis(2);

/// Writes the lie for so long. The agent repairs what it can; its own memory alone is at stake.
pub fn forge(pages: &Pages, lie: Lie, time: Duration) -> Result<()> {
    let end = Instant::now() + time;
    let mut state = 0x9e37_79b9_7f4a_7c15;
    match lie {
        Lie::Magic => return besiege(FLOOD, pages.iter().count(), end, |_| std::thread::sleep(STROKE)),
        Lie::Doorbells => {
            return besiege(1, pages.iter().count(), end, |forged| {
                let vcpus = 0..pages.iter().count() as u32;
                doorbell::ring(&vcpus.map(|vcpu| (vcpu, &*forged[0])).collect::<Vec<_>>()).map(Ringing::wait);
            });
        }
        _ => {}
    }
    while Instant::now() < end {
        for page in pages.iter() {
            tell(page, lie, &mut state);
        }
        if lie != Lie::Racing {
            std::thread::sleep(STROKE);
        }
    }
    Ok(())
}

/// Pages of a flood: 64 MiB.
const FLOOD: usize = 16_384;

/// Makes so many pages that are offers in all they say, and gives them new cookies after each `stroke`.
fn besiege(count: usize, vcpus: usize, end: Instant, stroke: impl Fn(&[Box<Page>])) -> Result<()> {
    let pagemap = File::open("/proc/self/pagemap").ok();
    let pages: Vec<Box<Page>> = (0..count).map(|_| Page::zeroed()).collect();
    let mut cookie = 1;
    while Instant::now() < end {
        for page in &pages {
            cookie += 1;
            let header = HeaderValues {
                magic: [MAGIC0, MAGIC1],
                version: VERSION,
                nr_vcpus: vcpus.min(MAX_VCPUS) as u32,
                vcpu_hwid: u32::MAX,
                cookie,
                gpa: pagemap.as_ref().and_then(|map| address(map, page)).unwrap_or(0),
                boot_id: 1,
                ..HeaderValues::default()
            };
            for (number, place) in page.directory.iter().enumerate() {
                // Itself first, then whatever stands there in any guest's memory.
                place.store(if number == 0 { header.gpa } else { (number as u64 + 16) * PAGE_SIZE as u64 }, Relaxed);
            }
            let mut guest = Guest::new(cookie as u32);
            guest.force(&**page);
            guest.scrub(&**page);
            guest.offer(&**page, Seed::from_random(cookie << 20 | 1), header);
        }
        stroke(&pages);
    }
    Ok(())
}

/// Where a page of this process is in the guest's memory; only root is told.
fn address(pagemap: &File, page: &Page) -> Option<u64> {
    let mut entry = [0; 8];
    let virt = std::ptr::from_ref(page) as u64;
    pagemap.read_exact_at(&mut entry, virt / PAGE_SIZE as u64 * 8).ok()?;
    let frame = u64::from_le_bytes(entry) & ((1 << 55) - 1);
    (frame != 0).then_some(frame * PAGE_SIZE as u64)
}

fn tell(page: &Page, lie: Lie, state: &mut u64) {
    let header = &page.header;
    match lie {
        Lie::Magic | Lie::Doorbells => unreachable!("these leave the agent's pages alone"),
        Lie::Random => {
            // SAFETY: a page is 512 aligned words, and atomic words may be written in either shape.
            let words = unsafe { &*std::ptr::from_ref(page).cast::<[AtomicU64; PAGE_SIZE / 8]>() };
            for word in words {
                word.store(xorshift(state), Relaxed);
            }
        }
        Lie::Header => {
            let address = xorshift(state);
            header.preempt_gpa.store(address, Relaxed);
            header.util_gpa.store(address | 1, Relaxed);
            header.linear_size.store(u64::MAX, Relaxed);
            header.preempt_offset.store(u32::MAX, Relaxed);
        }
        Lie::Version => header.version.store(4_000, Relaxed),
        Lie::Vcpus => header.nr_vcpus.store(u32::MAX, Relaxed),
        Lie::Ones => words(page, [u64::MAX; 6]),
        Lie::Greedy => words(page, GREEDY),
        Lie::Racing => words(page, if xorshift(state) & 1 == 0 { GREEDY } else { [0; 6] }),
    }
}

/// Full load, real-time priority, all the vCPUs that there may be, and as urgent as a task can be.
const GREEDY: [u64; 6] = [1024, 1 << 20, 0, 256, 1, 10_000];

/// Writes the words that a host may believe, but for the heartbeat, without which it would end the pairing.
fn words(page: &Page, values: [u64; 6]) {
    let to = &page.guest;
    let all = [&to.util, &to.runnable, &to.prio, &to.wants, &to.spins_for, &to.latency];
    for (word, value) in all.into_iter().zip(values) {
        word.store(value, Relaxed);
    }
}

/// Marsaglia's xorshift64: enough disorder for a liar.
fn xorshift(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_lie_changes_the_page() {
        for lie in Lie::value_variants().iter().filter(|lie| !matches!(lie, Lie::Magic | Lie::Doorbells)) {
            let page = Page::zeroed();
            page.header.version.store(VERSION, Relaxed);
            page.header.nr_vcpus.store(2, Relaxed);
            page.guest.wants.store(2, Relaxed);
            tell(&page, *lie, &mut 7);
            let untouched = page.header.version.load(Relaxed) == VERSION
                && page.header.nr_vcpus.load(Relaxed) == 2
                && page.guest.wants.load(Relaxed) == 2
                && page.header.preempt_gpa.load(Relaxed) == 0;
            assert!(!untouched, "{lie:?}");
        }
    }
}
