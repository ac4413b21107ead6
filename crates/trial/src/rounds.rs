//! The rounds of a trial.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use entrain_system::Root;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::alarm::{Alarm, Limits};
use crate::command::{Figure, Running};
use crate::daemon::{Daemon, Side};
use crate::figures::{Kernel, between};

/// A command that has its window's time may take this much longer before it is given up.
const PATIENCE: Duration = Duration::from_secs(600);
/// How often signals and alarms are looked for.
const STEP: Duration = Duration::from_millis(100);

/// What is to be done.
#[derive(Debug)]
pub(crate) struct Plan {
    /// A and B.
    pub(crate) sides: [Side; 2],
    pub(crate) rounds: u32,
    pub(crate) window: Duration,
    pub(crate) settle: Duration,
    pub(crate) figure: Option<Figure>,
    pub(crate) limits: Limits,
}

/// What one window told, by the figures' ids; the command's is [`COMMAND`].
pub(crate) type Window = Vec<(&'static str, f64)>;

/// The id of the command's figure.
pub(crate) const COMMAND: &str = "command";

/// What was measured.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    /// Windows of A and B, of each round that was run to its end.
    pub(crate) pairs: Vec<[Window; 2]>,
    /// VMs and vCPUs that ran at the first window's end.
    pub(crate) vms: usize,
    pub(crate) vcpus: usize,
}

/// Set by a signal.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stop(Arc<AtomicBool>);

impl Stop {
    /// By Ctrl-C, the end of the terminal, or whoever ends services.
    pub(crate) fn on_signals() -> anyhow::Result<Self> {
        let stop = Self::default();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, stop.0.clone())?;
        }
        Ok(stop)
    }

    fn stopped(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn check(&self) -> anyhow::Result<()> {
        if self.stopped() {
            bail!("interrupted");
        }
        Ok(())
    }
}

impl Plan {
    /// Whether Entrain's scheduler runs in either side.
    pub(crate) fn schedules(&self) -> bool {
        self.sides.iter().any(Side::schedules)
    }

    /// Which side comes first in a round: they take turns, so that what drifts favours neither.
    fn order(round: u32) -> [usize; 2] {
        if round.is_multiple_of(2) { [0, 1] } else { [1, 0] }
    }

    /// In words.
    pub(crate) fn describe(&self) -> String {
        let [a, b] = &self.sides;
        let all = (self.window + self.settle) * 2 * self.rounds;
        let mut text = format!(
            "A: {a}; B: {b}; {} rounds of two windows of {} s, {} s of settling before each: {} min at least",
            self.rounds,
            self.window.as_secs(),
            self.settle.as_secs(),
            all.as_secs().div_ceil(60)
        );
        if let Some(figure) = &self.figure {
            let _ = write!(text, "; {} by: {}", figure.name, figure.command);
        }
        text
    }
}

/// Runs all rounds. What was measured until an error is told as well.
pub(crate) fn run(plan: &Plan, stop: &Stop) -> (Rounds, anyhow::Result<()>) {
    let mut rounds = Rounds::default();
    // What a VM of side A waited at most during 5 s.
    let mut worst = None;
    for round in 0..plan.rounds {
        let mut pair = [Window::new(), Window::new()];
        for side in Plan::order(round) {
            eprintln!("round {} of {}, side {}", round + 1, plan.rounds, ["A", "B"][side]);
            match window(plan, side, stop, &mut worst, &mut rounds) {
                Ok(figures) => pair[side] = figures,
                Err(error) => return (rounds, Err(error)),
            }
        }
        rounds.pairs.push(pair);
    }
    (rounds, Ok(()))
}

fn window(
    plan: &Plan,
    side: usize,
    stop: &Stop,
    worst: &mut Option<f64>,
    rounds: &mut Rounds,
) -> anyhow::Result<Window> {
    let daemon = Daemon::start(&plan.sides[side], || stop.stopped())?;
    let root = Root::live();
    let ask = || daemon.ask();
    let status = || ask().context("the daemon does not answer");
    let known = if side == 0 { None } else { *worst };
    let mut alarm = Alarm::new(&plan.limits, known, status()?);
    let mut watch = |until: &mut dyn FnMut() -> anyhow::Result<bool>| -> anyhow::Result<()> {
        while !until()? {
            stop.check()?;
            if let Some(share) = alarm.look(ask).map_err(anyhow::Error::msg)?
                && side == 0
            {
                *worst = Some(worst.unwrap_or(0.0).max(share));
            }
            std::thread::sleep(STEP);
        }
        Ok(())
    };
    let settled = Instant::now() + plan.settle;
    watch(&mut || Ok(Instant::now() >= settled))?;
    let mut command = plan.figure.as_ref().map(|figure| Running::start(&figure.command, true)).transpose()?;
    let before = (status()?, Kernel::read(&root));
    let (end, limit) = (Instant::now() + plan.window, Instant::now() + plan.window + PATIENCE);
    watch(&mut || {
        let done = command.as_mut().map_or(Ok(true), |command| Ok::<_, anyhow::Error>(command.ended()?.is_some()))?;
        if !done && Instant::now() > limit {
            bail!("the command has not ended {} s after its window", PATIENCE.as_secs());
        }
        Ok(done && Instant::now() >= end)
    })?;
    let after = (status()?, Kernel::read(&root));
    rounds.vms = after.0.vms.len();
    rounds.vcpus = after.0.vms.iter().map(|vm| vm.vcpus.len()).sum();
    let mut figures = between((&before.0, before.1), (&after.0, after.1));
    if let Some(command) = &mut command {
        figures.push((COMMAND, command.figure()?));
    }
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sides_take_turns_in_coming_first() {
        assert_eq!([0, 1, 2, 3].map(|round| Plan::order(round)[0]), [0, 1, 0, 1]);
    }
}
