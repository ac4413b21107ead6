//! How long a paired VM's agent has been silent, counted while the VM ran: one that is paused beats as little as it runs.

use std::time::{Duration, Instant};

/// Between two looks that find a VM's vCPUs switched no more counts: an idle guest runs once a second at least, and one that
/// was paused is not silent for as long as that took.
const MOST: Duration = Duration::from_secs(1);

/// What was seen of one VM.
#[derive(Debug)]
pub(crate) struct Silence {
    /// The agent's heartbeat, and switches of its VM's vCPUs.
    beat: u64,
    ran: u64,
    /// When one of the two last changed.
    seen: Instant,
    silent: Duration,
}

impl Silence {
    pub(crate) fn new(now: Instant) -> Self {
        Self { beat: 0, ran: 0, seen: now, silent: Duration::ZERO }
    }

    /// It has just been heard of by other means.
    pub(crate) fn ends(&mut self, now: Instant) {
        (self.seen, self.silent) = (now, Duration::ZERO);
    }

    /// What a look finds; how long the agent has been silent by then.
    pub(crate) fn look(&mut self, beat: u64, ran: u64, now: Instant) -> Duration {
        if beat != self.beat {
            self.ends(now);
        } else if ran != self.ran {
            self.silent += now.saturating_duration_since(self.seen).min(MOST);
            self.seen = now;
        }
        (self.beat, self.ran) = (beat, ran);
        self.silent
    }

    /// When it was heard last, were it silent without a pause.
    pub(crate) fn since(&self, now: Instant) -> Instant {
        now.checked_sub(self.silent).unwrap_or(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOK: Duration = Duration::from_millis(100);

    /// Looks for so long; what runs and beats at each. Returns the silence in the end.
    fn watch(
        silence: &mut Silence,
        now: &mut Instant,
        time: Duration,
        beat: &mut u64,
        beats: u64,
        runs: bool,
    ) -> Duration {
        let mut silent = Duration::ZERO;
        for look in 1..=(time.as_millis() / LOOK.as_millis()) as u64 {
            *now += LOOK;
            *beat += if beats > 0 && look % beats == 0 { 1 } else { 0 };
            let ran = if runs { silence.ran + 3 } else { silence.ran };
            silent = silence.look(*beat, ran, *now);
        }
        silent
    }

    #[test]
    fn an_agent_that_ended_is_silent_and_a_vm_that_is_paused_is_not() {
        let (mut now, mut beat) = (Instant::now(), 1);
        let mut silence = Silence::new(now);
        let seconds = Duration::from_secs;
        assert_eq!(watch(&mut silence, &mut now, seconds(20), &mut beat, 5, true), Duration::ZERO);
        // Its vCPUs switch after the last beat, as always, and then it is paused.
        now += LOOK;
        silence.look(beat, silence.ran + 1, now);
        assert!(watch(&mut silence, &mut now, seconds(60), &mut beat, 0, false) < seconds(1), "paused");
        now += LOOK;
        assert!(silence.look(beat, silence.ran + 1, now) <= seconds(2), "it goes on");
        assert_eq!(watch(&mut silence, &mut now, seconds(5), &mut beat, 5, true), Duration::ZERO);
        let silent = watch(&mut silence, &mut now, seconds(11), &mut beat, 0, true);
        assert!(silent > seconds(10), "the agent has ended: {silent:?}");
    }
}
