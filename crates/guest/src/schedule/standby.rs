//! Whether the scheduler is worth having now. While the host has a pCPU for every vCPU, nothing that it knows helps a
//! guest; calm, it costs next to nothing, and after a long calm not even that is spent: then the kernel's own scheduler
//! works and this one stands by, loaded and detached. It comes when the host begins to withhold time. It stands by as well
//! when the kernel has taken it down or does not take it, and tries again.

use std::sync::atomic::Ordering::Relaxed;

use entrain_channel::page::{CAPACITY_SCALE, feature};

use crate::pages::{Pages, paired_seed};

/// Steal time since the last look that is not noise: two units of /proc/stat.
const STOLEN_MIN_NS: u64 = 20_000_000;
/// ... and as a part of the time that the guest wanted, one in so many: below that a scheduler has little to gain.
const STOLEN_PART: u64 = 8;
/// So many looks in a row must find that: a hiccup of the host is over before a scheduler could help.
const LOOKS_IN_A_ROW: u32 = 5;
/// Calm after which it stands by, s, unless somebody says otherwise: an insurance, since calm it gets as much done as the
/// kernel's own (docs/results/alone.md), and long beside what attaching takes on a busy host (up to a second).
pub(crate) const CALM_S: u32 = 600;
/// The same for a guest that had to attach again soon, doubled each time up to so many times.
const CALM_MOST: u64 = 16;
/// Pause after the kernel took it down or refused it, s.
pub(super) const RETRY_S: u64 = 30;
/// A level of speed that has moved by so much, of 1024, is one that somebody moves.
const PACE_MIN: u64 = 128;
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
    /// The host goes by what this guest's tasks need ([`Pace`]).
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
    /// What it begins with, and comes back to; `None`: it stands by only where it was refused.
    calm_ns: Option<u64>,
    /// Looks in a row that found time withheld.
    in_a_row: u32,
    /// The same of looks that found it crowded: one may be the moment in which it grows.
    crowded_in_a_row: u32,
    /// The kernel has refused the scheduler: not again before.
    not_before: u64,
}

impl Standby {
    /// `calm`: after how long a calm it stands by, s; `None`: only where it was refused.
    pub(super) fn new(now: u64, calm: Option<u32>) -> Standby {
        let calm_ns = calm.map(|seconds| u64::from(seconds) * 1_000_000_000);
        Standby {
            busy_at: now,
            left_at: 0,
            calm: calm_ns.unwrap_or(0),
            calm_ns,
            in_a_row: 0,
            crowded_in_a_row: 0,
            not_before: 0,
        }
    }

    /// Whether the scheduler is to be attached from now on.
    pub(super) fn decide(&mut self, look: &Look) -> bool {
        let withheld = look.stolen >= STOLEN_MIN_NS && look.stolen * STOLEN_PART >= look.ran + look.stolen;
        self.in_a_row = if withheld { self.in_a_row + 1 } else { 0 };
        self.crowded_in_a_row = if look.crowded { self.crowded_in_a_row + 1 } else { 0 };
        let in_a_row = self.in_a_row.max(self.crowded_in_a_row);
        let contended = in_a_row >= LOOKS_IN_A_ROW || look.paced || self.calm_ns.is_none();
        if contended && look.now >= self.not_before {
            if !look.attached {
                let soon = look.now.saturating_sub(self.left_at) < self.calm * SOON;
                let first = self.calm_ns.unwrap_or(0);
                self.calm = if soon { (self.calm * 2).min(first * CALM_MOST) } else { first };
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

    /// The kernel took the scheduler down, or did not take it: somebody has loaded another one, say. It stands by for a
    /// while.
    pub(super) fn refused(&mut self, now: u64) {
        self.left_at = now;
        self.not_before = now + RETRY_S * 1_000_000_000;
    }
}

/// What the host says of the speed of its pCPUs. A host whose scheduler goes by what tasks need is worth telling where
/// pCPUs differ in size, or where somebody moves their levels. A level that stands below the highest one says nothing by
/// itself: that of every pCPU does that is not at its turbo.
///
/// Yet a guest that stands by tells the host nothing, and a level that its work would raise stands still for that very
/// reason. So one that works on slow pCPUs tells once: if no level moves, the host does not listen, and is not told again
/// as long as its pCPUs are about as fast as they were then.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Lowest and highest level so far, of each vCPU.
    levels: Vec<(u64, u64)>,
    /// The lowest level of all at which it was told since the guest works, and whether none has moved since.
    told: Option<u64>,
}

/// What a guest does at a look.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Doing {
    /// Its tasks run on the scheduler: the host is told what they need.
    pub(super) tells: bool,
    /// It has used half of a vCPU's time since the last look, or more.
    pub(super) works: bool,
}

impl Pace {
    /// Looks at all pages; whether load that is counted by speed is worth having.
    pub(super) fn look(&mut self, pages: &Pages, doing: Doing) -> bool {
        let words = |page: &entrain_channel::page::Page| {
            let seed = paired_seed(page)?;
            let slow = &page.host_slow;
            let features = seed.unpack(slow.features.load(Relaxed));
            let both = feature::CAPACITY | feature::HOST_SCHED;
            (features & both == both)
                .then(|| (seed.unpack(slow.capacity.load(Relaxed)), seed.unpack(slow.perf.load(Relaxed))))
        };
        self.judge(pages.iter().map(words), doing)
    }

    /// Capacity and level of each vCPU's pCPU, where its host goes by what tasks need; 0 = not known.
    fn judge(&mut self, words: impl Iterator<Item = Option<(u64, u64)>>, doing: Doing) -> bool {
        let known = |word: u64| (1..=CAPACITY_SCALE).contains(&word);
        let (mut sizes, mut moved, mut slowest) = ((u64::MAX, 0), false, CAPACITY_SCALE);
        for (vcpu, words) in words.enumerate() {
            if self.levels.len() <= vcpu {
                self.levels.push((u64::MAX, 0));
            }
            let Some((capacity, level)) = words else {
                self.levels[vcpu] = (u64::MAX, 0);
                continue;
            };
            if known(capacity) {
                sizes = (sizes.0.min(capacity), sizes.1.max(capacity));
            }
            if known(level) {
                let (low, high) = &mut self.levels[vcpu];
                (*low, *high) = ((*low).min(level), (*high).max(level));
                moved |= *high - *low >= PACE_MIN;
                slowest = slowest.min(level);
            }
        }
        // What has stood still since then does not count for ever.
        if moved {
            self.levels.clear();
            self.told = None;
        }
        moved || sizes.0 < sizes.1 || self.is_worth_telling(slowest, doing)
    }

    /// Whether a guest that stands by and works on slow pCPUs is to tell the host: not if it did at such a level before.
    fn is_worth_telling(&mut self, slowest: u64, doing: Doing) -> bool {
        let known = self.told.is_some_and(|told| told.abs_diff(slowest) < PACE_MIN / 2);
        let worth = !doing.tells && doing.works && slowest + PACE_MIN <= CAPACITY_SCALE && !known;
        if worth {
            self.told = Some(slowest);
        }
        worth
    }
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

    const TEN_MINUTES: u32 = 600;

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
    fn it_stands_by_after_a_long_calm_and_comes_soon() {
        let mut now = MS;
        let mut standby = Standby::new(now, Some(TEN_MINUTES));
        let mut attached = true;
        assert_eq!(
            run(&mut standby, &mut attached, &mut now, 7_000, 10 * MS),
            u64::from(TEN_MINUTES) * 10 - 1,
            "a long calm"
        );
        assert_eq!(run(&mut standby, &mut attached, &mut now, 4, 300 * MS), 0, "a hiccup");
        assert_eq!(run(&mut standby, &mut attached, &mut now, 10, 0), 0);
        assert_eq!(run(&mut standby, &mut attached, &mut now, 7, 100 * MS), 3);
    }

    #[test]
    fn one_that_the_kernel_took_down_tries_again() {
        for calm in [Some(TEN_MINUTES), None] {
            let mut now = MS;
            let mut standby = Standby::new(now, calm);
            standby.refused(now);
            let mut attached = false;
            assert_eq!(run(&mut standby, &mut attached, &mut now, 310, 100 * MS), 11, "half a minute later");
        }
    }

    #[test]
    fn one_that_never_stands_by_is_attached_whatever_it_sees() {
        let mut now = MS;
        let mut attached = true;
        assert_eq!(run(&mut Standby::new(now, None), &mut attached, &mut now, 100_000, 0), 100_000);
    }

    #[test]
    fn whoever_comes_and_goes_stays_longer_each_time() {
        let mut now = MS;
        let mut standby = Standby::new(now, Some(TEN_MINUTES));
        let mut attached = true;
        let mut changes = 0;
        let mut before = 1;
        // A burst of contention every 700 s for two days.
        for _ in 0..247 {
            for (looks, stolen) in [(5, 200 * MS), (6_995, 0)] {
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
    fn parked_vcpus_keep_it_and_one_look_at_them_does_not() {
        let mut standby = Standby::new(0, Some(TEN_MINUTES));
        let crowded = |now| Look { attached: true, now, crowded: true, ..Look::default() };
        let ten_minutes = u64::from(TEN_MINUTES) * 1_000 * MS;
        let calm = ten_minutes - 500 * MS;
        for look in 0..5 {
            assert!(standby.decide(&crowded(calm + look * 100 * MS)));
        }
        assert!(standby.decide(&Look { attached: true, now: ten_minutes + 1_000 * MS, ..Look::default() }));
        // A guest that shrank while it booted: a look now and then finds more tasks than vCPUs.
        let mut standby = Standby::new(0, Some(TEN_MINUTES));
        let attached = (1..=700).map(|second| standby.decide(&crowded(second * 1_000 * MS)));
        assert_eq!(attached.filter(|attached| *attached).count(), 700, "crowded all the time");
        let mut standby = Standby::new(0, Some(TEN_MINUTES));
        let now_and_then = (1..=700).map(|second| {
            let crowded = second % 20 == 0;
            standby.decide(&Look { attached: true, now: second * 1_000 * MS, crowded, ..Look::default() })
        });
        assert_eq!(now_and_then.filter(|attached| *attached).count(), 599);
    }

    #[test]
    fn a_level_that_stands_still_is_no_reason_to_stay_and_one_that_moves_is() {
        let mut pace = Pace::default();
        let mut look = |words: &[Option<(u64, u64)>]| pace.judge(words.iter().copied(), Doing::default());
        let below_turbo = [Some((1024, 700)), Some((1024, 730)), None];
        assert!((0..100).all(|_| !look(&below_turbo)), "every real host below turbo");
        assert!(look(&[Some((1024, 1000)), Some((1024, 730)), None]), "somebody moves it");
        assert!(!look(&[Some((1024, 1000)), Some((1024, 730)), None]), "and then no more");
        assert!(look(&[Some((1024, 1000)), Some((512, 1000))]), "pCPUs of two sizes");
        assert!(!look(&[Some((0, 0)), Some((0, 9999))]), "nothing that is known");
    }

    /// Seen in `frames-capped`: a guest that stood by when its work began made 16 frames a second instead of 54, for good.
    #[test]
    fn a_guest_that_stands_by_and_works_on_slow_cpus_tells_once() {
        let mut pace = Pace::default();
        let mut look = |level, tells, works| pace.judge([Some((1024, level))].into_iter(), Doing { tells, works });
        assert!(!look(230, false, false), "it rests");
        assert!(look(230, false, true), "it works, and nobody hears of it");
        assert!((0..100).all(|_| !look(230, true, true)), "told, and the host does not listen");
        assert!((0..100).all(|n| !look(200 + n % 60, false, true)), "nor will it now");
        assert!(look(700, false, true), "somebody has moved it");
        assert!(!look(720, false, false), "at rest again");
        assert!(look(720, false, true), "another speed is another question");
        let mut fast = Pace::default();
        let mut look = |level| fast.judge([Some((1024, level))].into_iter(), Doing { tells: false, works: true });
        assert!((0..100).all(|_| !look(1000)), "there is nothing to be had");
    }
}
