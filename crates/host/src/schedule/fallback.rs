//! What becomes of mode `schedule` when its scheduler cannot run: the daemon observes, in the same process and with its
//! pairings, and comes back by itself. Here is only the decision, as a step from state to state.

use std::time::{Duration, Instant};

use super::error::ScheduleError;

/// `SCX_EXIT_SYSRQ` of the kernel's `enum scx_exit_kind`.
const EXIT_SYSRQ: i32 = 67;
/// `SCX_EXIT_ERROR`, the least kind that is an error.
const EXIT_ERROR: i32 = 1024;

/// First pause and longest pause before the next try where something is in the way: to look costs little, and nothing
/// happens to the host's tasks.
const OBSTACLE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));
/// The same after an error: each may have cost a task up to ten seconds (`timeout_ms` of the scheduler).
const FAULT: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(3600));
/// A scheduler that has run for so long begins with the first pause again.
const PROVEN: Duration = Duration::from_secs(600);

/// What brings the scheduler back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cure {
    /// Somebody else's scheduler goes, there are fewer limits, a CPU has come or gone.
    WayFree,
    /// Nothing that is known; it is tried again, ever more rarely.
    Time,
    /// An administrator: by SIGHUP, or by a new start. The kernel cannot run it, or an administrator has thrown it out.
    Administrator,
}

/// What brings back a scheduler that ended, or did not start, for this reason.
pub(super) fn cure(error: &ScheduleError) -> Cure {
    match error {
        ScheduleError::Loaded { .. } => Cure::WayFree,
        ScheduleError::Ended(ended) if ended.kind == EXIT_SYSRQ => Cure::Administrator,
        ScheduleError::Ended(ended) if ended.kind < EXIT_ERROR => Cure::WayFree,
        ScheduleError::Ended(_)
        | ScheduleError::Kernel { .. }
        | ScheduleError::LoaderDied
        | ScheduleError::Topology(_) => Cure::Time,
        ScheduleError::NoSchedExt | ScheduleError::OldSchedExt | ScheduleError::Tunable { .. } => Cure::Administrator,
    }
}

/// What the mode does now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Now {
    /// The scheduler is being loaded; meanwhile the daemon observes, for the same reason as before.
    Loading { why: String },
    /// The scheduler has the host's tasks, since then.
    Scheduling { since: Instant },
    /// The kernel's own scheduler has them. The next try is at `retry_at`; `None` = when an administrator asks.
    Observing { why: String, retry_at: Option<Instant> },
}

/// What can happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Happened {
    /// Time has passed.
    Nothing,
    /// The scheduler has started.
    Started,
    /// It has ended, or has not started.
    Failed { why: String, cure: Cure },
    /// An administrator asks for another try.
    Asked,
}

/// The mode's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct State {
    pub(super) now: Now,
    /// The last pause; zero before the first.
    pause: Duration,
    /// Times that a scheduler which ran has ended.
    pub(super) losses: u64,
}

impl State {
    /// Before the first try, which begins at once.
    pub(super) fn new() -> Self {
        Self { now: Now::Loading { why: "the scheduler is being loaded".into() }, pause: Duration::ZERO, losses: 0 }
    }

    /// The next state.
    pub(super) fn after(self, happened: Happened, at: Instant) -> Self {
        match (self.now.clone(), happened) {
            (Now::Loading { .. }, Happened::Started) => Self { now: Now::Scheduling { since: at }, ..self },
            (now @ (Now::Loading { .. } | Now::Scheduling { .. }), Happened::Failed { why, cure }) => {
                let proven = matches!(now, Now::Scheduling { since } if at.duration_since(since) >= PROVEN);
                let last = if proven { Duration::ZERO } else { self.pause };
                let pause = match cure {
                    Cure::WayFree => (last * 2).clamp(OBSTACLE.0, OBSTACLE.1),
                    Cure::Time => (last * 2).clamp(FAULT.0, FAULT.1),
                    Cure::Administrator => Duration::ZERO,
                };
                let retry_at = (cure != Cure::Administrator).then(|| at + pause);
                let losses = self.losses + u64::from(matches!(now, Now::Scheduling { .. }));
                Self { now: Now::Observing { why, retry_at }, pause, losses }
            }
            (Now::Observing { why, retry_at: Some(due) }, Happened::Nothing) if at >= due => {
                Self { now: Now::Loading { why }, ..self }
            }
            (Now::Observing { why, .. }, Happened::Asked) => Self { now: Now::Loading { why }, ..self },
            _ => self,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Ended;

    fn failed(cure: Cure) -> Happened {
        Happened::Failed { why: "why".into(), cure }
    }

    /// Seconds until the next try of a state reached at `at`.
    fn pause(state: &State, at: Instant) -> Option<u64> {
        match &state.now {
            Now::Observing { retry_at, .. } => retry_at.map(|retry| retry.duration_since(at).as_secs()),
            other => panic!("{other:?}"),
        }
    }

    /// Fails, waits for as long as it says, and is loaded again, so many times.
    fn failures(mut state: State, at: &mut Instant, cure: Cure, times: usize) -> (State, Vec<u64>) {
        let mut pauses = Vec::new();
        for _ in 0..times {
            state = state.after(failed(cure), *at);
            let wait = pause(&state, *at).expect("comes back by itself");
            assert_eq!(state.clone().after(Happened::Nothing, *at), state, "not before its time");
            pauses.push(wait);
            *at += Duration::from_secs(wait);
            state = state.after(Happened::Nothing, *at);
            assert_eq!(state.now, Now::Loading { why: "why".into() });
        }
        (state, pauses)
    }

    #[test]
    fn an_obstacle_is_looked_at_often_and_an_error_ever_more_rarely() {
        let mut at = Instant::now();
        let (state, pauses) = failures(State::new(), &mut at, Cure::WayFree, 6);
        assert_eq!(pauses, [1, 2, 4, 8, 10, 10]);
        // What was waited for an obstacle counts as a pause when an error follows.
        let (state, pauses) = failures(state, &mut at, Cure::Time, 9);
        assert_eq!(pauses, [20, 40, 80, 160, 320, 640, 1280, 2560, 3600]);
        assert_eq!(failures(state, &mut at, Cure::WayFree, 1).1, [10]);
        assert_eq!(failures(State::new(), &mut at, Cure::Time, 2).1, [5, 10]);
    }

    #[test]
    fn it_comes_back_and_begins_anew_once_it_has_proven_itself() {
        let mut at = Instant::now();
        let (state, _) = failures(State::new(), &mut at, Cure::Time, 3);
        let started = at;
        let state = state.after(Happened::Started, started);
        assert_eq!(state.now, Now::Scheduling { since: started });
        assert_eq!(state.clone().after(Happened::Nothing, at + PROVEN), state, "it stays");
        assert_eq!(state.losses, 0, "a try that fails is no loss");
        let soon = state.clone().after(failed(Cure::Time), at + PROVEN / 2);
        assert_eq!((pause(&soon, at + PROVEN / 2), soon.losses), (Some(40), 1));
        let late = state.after(failed(Cure::Time), at + PROVEN);
        assert_eq!((pause(&late, at + PROVEN), late.losses), (Some(5), 1));
    }

    #[test]
    fn what_an_administrator_did_stays_until_one_asks() {
        let at = Instant::now();
        let state = State::new().after(Happened::Started, at).after(failed(Cure::Administrator), at);
        assert_eq!(pause(&state, at), None);
        assert_eq!(state.clone().after(Happened::Nothing, at + PROVEN), state);
        let state = state.after(Happened::Asked, at);
        assert_eq!(state.now, Now::Loading { why: "why".into() });
        // To ask for what runs or is under way changes nothing.
        assert_eq!(state.clone().after(Happened::Asked, at), state);
        let state = state.after(Happened::Started, at);
        assert_eq!(state.clone().after(Happened::Asked, at), state);
    }

    #[test]
    fn reasons_have_their_cures() {
        let ended = |kind| ScheduleError::Ended(Ended { kind, why: String::new() });
        let other = ScheduleError::Loaded { name: "lavd".into(), state: "enabled".into() };
        assert_eq!(cure(&other), Cure::WayFree);
        // It gave way to too many limits (65), or a CPU came or went (66); SysRq-S (67); a stall (1026).
        assert_eq!(
            [65, 66, 67, 1026].map(|kind| cure(&ended(kind))),
            [Cure::WayFree, Cure::WayFree, Cure::Administrator, Cure::Time]
        );
        assert_eq!(cure(&ScheduleError::OldSchedExt), Cure::Administrator);
    }
}
