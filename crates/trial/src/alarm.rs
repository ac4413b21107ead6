//! What ends a trial before its time.

use std::time::{Duration, Instant};

use entrain_host::status::Status;

use crate::command::Running;
use crate::figures::ready_shares;

/// How long a VM has to wait too much, and how often the operator's command is asked.
const PERIOD: Duration = Duration::from_secs(5);
/// Without a limit of the operator's: so many times the worst of side A, and at least this part of a VM's time. Twice is
/// far beyond what two windows of the same load differ by, and a tenth is what administrators begin to look at.
const TIMES: f64 = 2.0;
const LEAST: f64 = 0.1;

/// What the operator has set.
#[derive(Clone, Debug, Default)]
pub(crate) struct Limits {
    /// Part of a VM's time, 0 to 1.
    pub(crate) ready: Option<f64>,
    /// A command that fails when something is wrong.
    pub(crate) command: Option<String>,
}

/// Watches over one window.
pub(crate) struct Alarm<'a> {
    limits: &'a Limits,
    ready: Option<f64>,
    last: Status,
    asked: Instant,
    command: Option<Running>,
}

impl<'a> Alarm<'a> {
    /// From now on. `worst` is what a VM waited at most during 5 s of side A so far, if that was measured.
    pub(crate) fn new(limits: &'a Limits, worst: Option<f64>, now: Status) -> Self {
        let ready = limits.ready.or_else(|| worst.map(|worst| (TIMES * worst).clamp(LEAST, 1.0)));
        Self { limits, ready, last: now, asked: Instant::now(), command: None }
    }

    /// Looks, at most every 5 s. An error tells why the trial is to end; else what the VM that waits most waited since the
    /// last look.
    pub(crate) fn look(&mut self, ask: impl Fn() -> std::io::Result<Status>) -> Result<Option<f64>, String> {
        self.look_at_command()?;
        if self.asked.elapsed() < PERIOD {
            return Ok(None);
        }
        self.asked = Instant::now();
        if let (None, Some(command)) = (&self.command, &self.limits.command) {
            self.command = Some(Running::start(command, false).map_err(|error| format!("{error:#}"))?);
        }
        let now = ask().map_err(|error| format!("the daemon does not answer: {error}"))?;
        if let Some(fallback) = &now.fallback {
            return Err(format!("the scheduler has ended: {}", fallback.why));
        }
        let worst = ready_shares(&self.last, &now).into_iter().fold(0.0, f64::max);
        self.last = now;
        match self.ready {
            Some(most) if worst > most => Err(format!(
                "alarm: a VM waited {:.0} % of its vCPUs' time for a pCPU (limit {:.0} %)",
                100.0 * worst,
                100.0 * most
            )),
            _ => Ok(Some(worst)),
        }
    }

    fn look_at_command(&mut self) -> Result<(), String> {
        let Some(running) = &mut self.command else { return Ok(()) };
        match running.ended().map_err(|error| format!("{error:#}"))? {
            Some(true) => self.command = None,
            Some(false) => return Err("alarm: the alarm command failed".into()),
            None if running.age() > PERIOD => return Err("alarm: the alarm command took longer than 5 s".into()),
            None => {}
        }
        Ok(())
    }
}
