//! A guest that lies, for the lab's experiments `lifecycle` and `rogue`: writes what no agent writes into the pages of the agent that
//! runs. The host must refuse the pages or end the pairing, and nobody else may notice.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use entrain_channel::page::{PAGE_SIZE, Page};

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
}

/// Time between two strokes of the forger.
const STROKE: Duration = Duration::from_millis(2);

/// Writes the lie for so long. The agent repairs what it can; its own memory alone is at stake.
pub fn forge(pages: &Pages, lie: Lie, time: Duration) -> Result<()> {
    let end = Instant::now() + time;
    let mut state = 0x9e37_79b9_7f4a_7c15;
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

fn tell(page: &Page, lie: Lie, state: &mut u64) {
    let header = &page.header;
    match lie {
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
    use entrain_channel::page::VERSION;

    use super::*;

    #[test]
    fn every_lie_changes_the_page() {
        for lie in Lie::value_variants() {
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
