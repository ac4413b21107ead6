//! Whether the scheduler is worth having now. While the host has a pCPU for every vCPU, nothing that it knows helps a
//! guest, and BPF at every wake-up costs something: then the kernel's own scheduler works and this one stands by,
//! loaded and detached. It comes when the host begins to withhold time.

use std::sync::atomic::Ordering::Relaxed;

use entrain_channel::page::{CAPACITY_SCALE, feature};

use crate::pages::{Pages, paired_seed};

/// Steal time since the last look that is not noise: two units of /proc/stat.
const STOLEN_MIN_NS: u64 = 20_000_000;
/// ... and as a part of the time that the guest wanted, one in so many: below that a scheduler has little to gain.
const STOLEN_PART: u64 = 8;
/// So many looks in a row must find that: a hiccup of the host is over before a scheduler could help.
const LOOKS_IN_A_ROW: u32 = 5;
/// Calm after which it stands by: long beside what attaching takes on a busy host (up to a second), and beside the pauses
/// of most neighbours.
const CALM_NS: u64 = 30_000_000_000;
/// The same for a guest that had to attach again soon, doubled each time up to here.
const CALM_MAX_NS: u64 = 480_000_000_000;
/// Soon: within so many times the calm before.
const SOON: u64 = 8;

/// What one look finds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Look {
    /// Tasks run on the scheduler.
    pub(super) attached: bool,
    /// The guest's monotonic clock, ns.
    pub(super) now: u64,
    /// Work of all CPUs since the last look, ns.
    pub(super) ran: u64,
    /// Withheld by the host since then, ns.
    pub(super) stolen: u64,
    /// The host's pCPUs differ or change their speed: load that is counted by speed is worth having.
    pub(super) paced: bool,
    /// While attached: more tasks want a vCPU than are kept in use. (A guest that has parked some finds no steal time.)
    pub(super) crowded: bool,
}

/// What it remembers from look to look. The scheduler begins attached, so that a kernel that refuses it is found out at
/// the start.
#[derive(Debug)]
pub(super) struct Standby {
    /// The last contended look, or the last attachment.
    busy_at: u64,
    /// When it began to stand by.
    left_at: u64,
    calm: u64,
    /// Looks in a row that found time withheld.
    in_a_row: u32,
    /// The kernel has refused the scheduler: not again before.
    not_before: u64,
}

impl Standby {
    pub(super) fn new(now: u64) -> Standby {
        Standby { busy_at: now, left_at: 0, calm: CALM_NS, in_a_row: 0, not_before: 0 }
    }

    /// Whether the scheduler is to be attached from now on.
    pub(super) fn decide(&mut self, look: &Look) -> bool {
        let withheld = look.stolen >= STOLEN_MIN_NS && look.stolen * STOLEN_PART >= look.ran + look.stolen;
        self.in_a_row = if withheld { self.in_a_row + 1 } else { 0 };
        let contended = self.in_a_row >= LOOKS_IN_A_ROW || look.paced || look.crowded;
        if contended && look.now >= self.not_before {
            if !look.attached {
                let soon = look.now.saturating_sub(self.left_at) < self.calm * SOON;
                self.calm = if soon { (self.calm * 2).min(CALM_MAX_NS) } else { CALM_NS };
            }
            self.busy_at = look.now;
            return true;
        }
        let stays = look.attached && look.now.saturating_sub(self.busy_at) < self.calm;
        if look.attached && !stays {
            self.left_at = look.now;
        }
        stays
    }

    /// The kernel did not take the scheduler: somebody has loaded another one, say. It stands by for a while.
    pub(super) fn refused(&mut self, now: u64) {
        self.left_at = now;
        self.not_before = now + CALM_NS;
    }
}

/// Whether a host that publishes levels of speed says of any vCPU that its pCPU is not the fastest at its fastest.
pub(super) fn is_paced(pages: &Pages) -> bool {
    pages.iter().any(|page| {
        let Some(seed) = paired_seed(page) else { return false };
        let slow = &page.host_slow;
        let below = |word| (1..CAPACITY_SCALE).contains(&seed.unpack(word));
        seed.unpack(slow.features.load(Relaxed)) & feature::CAPACITY != 0
            && (below(slow.capacity.load(Relaxed)) || below(slow.perf.load(Relaxed)))
    })
}

/// Takes back what the scheduler told the host: nobody keeps it current now.
pub(super) fn fall_silent(pages: &Pages) {
    for page in pages.iter() {
        let words = &page.guest;
        for word in [&words.util, &words.runnable, &words.prio, &words.wants, &words.latency] {
            word.store(0, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Looks every 100 ms; `stolen` of 400 ms wanted. Returns in how many of `looks` it was attached.
    fn run(standby: &mut Standby, attached: &mut bool, now: &mut u64, looks: u64, stolen: u64) -> u64 {
        (0..looks)
            .map(|_| {
                *now += 100 * MS;
                let ran = 400 * MS - stolen;
                *attached = standby.decide(&Look { attached: *attached, now: *now, ran, stolen, ..Look::default() });
                u64::from(*attached)
            })
            .sum()
    }

    #[test]
    fn it_stands_by_while_the_host_has_room_and_comes_soon() {
        let mut now = MS;
        let mut standby = Standby::new(now);
        let mut attached = true;
        assert_eq!(run(&mut standby, &mut attached, &mut now, 400, 10 * MS), 299, "half a minute of calm");
        assert_eq!(run(&mut standby, &mut attached, &mut now, 4, 300 * MS), 0, "a hiccup");
        assert_eq!(run(&mut standby, &mut attached, &mut now, 10, 0), 0);
        assert_eq!(run(&mut standby, &mut attached, &mut now, 7, 100 * MS), 3);
        standby.refused(now);
        attached = false;
        assert_eq!(run(&mut standby, &mut attached, &mut now, 310, 100 * MS), 11, "tried again half a minute later");
    }

    #[test]
    fn whoever_comes_and_goes_stays_longer_each_time() {
        let mut now = MS;
        let mut standby = Standby::new(now);
        let mut attached = true;
        let mut changes = 0;
        let mut before = 1;
        // A burst of contention every 40 s for three hours.
        for _ in 0..270 {
            for (looks, stolen) in [(5, 200 * MS), (395, 0)] {
                for _ in 0..looks {
                    let works = run(&mut standby, &mut attached, &mut now, 1, stolen);
                    changes += u64::from(works != before);
                    before = works;
                }
            }
        }
        assert!(changes <= 4, "{changes} changes");
    }

    #[test]
    fn parked_vcpus_and_slow_pcpus_keep_it() {
        let mut standby = Standby::new(0);
        assert!(standby.decide(&Look { attached: true, now: 60_000 * MS, crowded: true, ..Look::default() }));
        assert!(standby.decide(&Look { attached: true, now: 89_900 * MS, ..Look::default() }));
        assert!(!standby.decide(&Look { attached: true, now: 90_000 * MS, ..Look::default() }));
        assert!(standby.decide(&Look { now: 90_100 * MS, paced: true, ..Look::default() }));
    }
}
