//! Two registrations of one guest.
//!
//! Any process in a guest can ring and forge pages (the doorbell is an instruction of user mode), and nothing that the host
//! can read of a page tells the agent's from a forged one. One registration after the other is the ordinary case: an agent
//! was killed and begins anew. Two that live at once are not: then both are refused, for a minute at first, so that a forger
//! neither takes the agent's place nor is taken for it, and the log says so in one line.

use std::time::{Duration, Instant};

/// An agent beats twice a second (`ENTRAIN_GUEST_BEAT_NS`); one that has not in this time is taken for dead.
const DEAD: Duration = Duration::from_millis(1200);
/// A beat of before may be seen so late: beats are read ten times a second.
const LATE: Duration = Duration::from_millis(300);
/// A rival that has not rung again by then gives way to another.
const FORGOTTEN: Duration = Duration::from_secs(5);
/// How long both are refused: the first time, and at most.
const REFUSED: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(3600));

/// A registration that wants the place of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rival {
    /// Where its first page is.
    pub(crate) gpa: u64,
    cookie: u64,
    /// When it was first seen.
    since: Instant,
}

/// Both were refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    until: Instant,
    time: Duration,
}

/// What becomes of a rival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Not clear yet; it rings again.
    Wait,
    /// The agent that is registered is dead.
    Replaces,
    /// Both live.
    Conflict,
}

/// Judges a registration `cookie` at `gpa` beside a paired one whose agent was last seen to beat at `beat`.
pub(crate) fn judge(rival: &mut Option<Rival>, cookie: u64, gpa: u64, beat: Instant, now: Instant) -> Verdict {
    let since = |known: &Rival| now.saturating_duration_since(known.since);
    match rival {
        Some(known) if known.cookie == cookie && beat > known.since + LATE => Verdict::Conflict,
        Some(known) if known.cookie == cookie && since(known) >= DEAD => Verdict::Replaces,
        // A third one does not make the second wait longer.
        Some(known) if since(known) < FORGOTTEN => Verdict::Wait,
        _ => {
            *rival = Some(Rival { gpa, cookie, since: now });
            Verdict::Wait
        }
    }
}

impl Refused {
    /// Refused from now on, for longer than the last time.
    pub(crate) fn again(last: Option<Self>, now: Instant) -> Self {
        let time = last.map_or(REFUSED.0, |last| (last.time * 2).min(REFUSED.1));
        Self { until: now + time, time }
    }

    pub(crate) fn lasts(&self, now: Instant) -> bool {
        now < self.until
    }

    pub(crate) fn seconds(&self) -> u64 {
        self.time.as_secs()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_that_live_are_both_refused_and_a_dead_one_gives_way() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut rival = None;
        assert_eq!(judge(&mut rival, 7, 0x1000, start, start), Verdict::Wait);
        // The last beat of one that was killed just now is seen a little later.
        assert_eq!(judge(&mut rival, 7, 0x1000, at(100), at(1000)), Verdict::Wait);
        assert_eq!(judge(&mut rival, 7, 0x1000, at(100), at(1200)), Verdict::Replaces);
        assert_eq!(judge(&mut rival, 7, 0x1000, at(900), at(1200)), Verdict::Conflict, "the registered agent beats");
        // Ever new cookies while the agent is silent: the first of them is still judged in time.
        let mut rival = None;
        judge(&mut rival, 7, 0x1000, start, start);
        (0..1000).for_each(|new| assert_eq!(judge(&mut rival, 100 + new, 0x2000, start, at(500)), Verdict::Wait));
        assert_eq!(judge(&mut rival, 7, 0x1000, start, at(1200)), Verdict::Replaces);
        // One that does not ring again is forgotten.
        assert_eq!(judge(&mut rival, 8, 0x3000, at(5500), at(6000)), Verdict::Wait);
        assert_eq!(judge(&mut rival, 8, 0x3000, at(7000), at(7000)), Verdict::Conflict);
    }

    #[test]
    fn each_time_is_longer_up_to_an_hour() {
        let now = Instant::now();
        let mut refused = Refused::again(None, now);
        assert!(refused.lasts(now + Duration::from_secs(59)) && !refused.lasts(now + Duration::from_secs(60)));
        (0..10).for_each(|_| refused = Refused::again(Some(refused), now));
        assert_eq!(refused.seconds(), 3600);
    }
}
