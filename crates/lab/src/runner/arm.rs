//! Setting an arm up and taking it down.

use std::time::{Duration, Instant};

use entrain_lab_machine::machine::{Command, Outcome, Target};

use super::failure::{Stop, tail};
use crate::experiment::{Place, Step};
use crate::placeholder::Values;
use crate::rig::{Job, Rig};

/// A background command lives as long as its arm; this only bounds what a lost runner could leave behind.
const BACKGROUND_LIMIT: Duration = Duration::from_secs(3600);
/// How often readiness is looked at.
const POLL: Duration = Duration::from_millis(100);
const SIGTERM: i32 = 15;
const SIGKILL: i32 = 9;

/// Where a command runs, and what its placeholders stand for there.
#[derive(Debug, Clone)]
pub(super) struct Spot {
    pub(super) target: Target,
    pub(super) values: Values,
}

/// The spots of one visit: the host, and the guests of the configuration.
#[derive(Debug, Clone)]
pub(super) struct Spots {
    pub(super) host: Spot,
    pub(super) guests: Vec<Spot>,
}

impl Spots {
    pub(super) fn at(&self, place: Place) -> &[Spot] {
        match place {
            Place::Guests => &self.guests,
            Place::Host => std::slice::from_ref(&self.host),
        }
    }
}

/// An arm that is set up, or has begun to be. [`Standing::down`] undoes it; the runner always calls it while the machine
/// lives. Dropped without that, it ends what runs in the background.
pub(super) struct Standing<'a> {
    rig: &'a dyn Rig,
    done: Vec<Done<'a>>,
}

/// One step that was done in one place, and what undoes it.
enum Done<'a> {
    Once { step: &'a Step, spot: Spot },
    Background { step: &'a Step, spot: Spot, job: Box<dyn Job>, files: Files },
}

/// Where a background command's process id and output are kept inside its machine.
#[derive(Debug, Clone)]
struct Files {
    pid: String,
    output: String,
}

impl<'a> Standing<'a> {
    pub(super) fn new(rig: &'a dyn Rig) -> Self {
        Self { rig, done: Vec::new() }
    }

    /// Does the steps in order, up to the first that fails.
    pub(super) fn up(&mut self, steps: &'a [Step], spots: &Spots) -> Result<(), Stop> {
        for (number, step) in steps.iter().enumerate() {
            for spot in spots.at(step.on) {
                if step.background {
                    self.background(number, step, spot)?;
                } else {
                    self.once(step, spot)?;
                }
            }
        }
        Ok(())
    }

    fn once(&mut self, step: &'a Step, spot: &Spot) -> Result<(), Stop> {
        // Counted as done before it ran: a step that fails half-way is undone too.
        self.done.push(Done::Once { step, spot: spot.clone() });
        succeed(self.rig, spot, step.run.as_ref(), within(step)).map(|_| ())
    }

    fn background(&mut self, number: usize, step: &'a Step, spot: &Spot) -> Result<(), Stop> {
        let name = format!("/run/entrain-arm.{number}");
        let files = Files { pid: format!("{name}.pid"), output: format!("{name}.out") };
        // Its output goes to a file in its machine, so that it can be read while it runs, and nobody has to drain it.
        let script = "echo $$ >\"$1\"; out=$2; shift 2; exec \"$@\" >\"$out\" 2>&1";
        let mut argv: Vec<String> = ["sh", "-c", script, "sh"].map(String::from).to_vec();
        argv.extend([files.pid.clone(), files.output.clone()]);
        argv.extend(spot.values.expand(step.run.as_ref()));
        // A file of the visit before would look like this one's.
        self.rig.run(spot.target, Command::new(["rm", "-f", &files.pid, &files.output]))?;
        let job = self.rig.start(spot.target, Command::new(argv).within(BACKGROUND_LIMIT))?;
        self.done.push(Done::Background { step, spot: spot.clone(), job, files: files.clone() });
        self.ready(step, spot, &files)
    }

    fn ready(&self, step: &Step, spot: &Spot, files: &Files) -> Result<(), Stop> {
        let end = Instant::now() + self.rig.wall(within(step));
        loop {
            let line = match &step.ready_line {
                Some(text) => run(self.rig, spot, &["grep", "-qF", "--", text.as_ref(), &files.output])?.ok(),
                None => true,
            };
            let probe = match &step.ready_run {
                Some(argv) if line => {
                    let argv = spot.values.expand(argv.as_ref());
                    self.rig.run(spot.target, Command::new(argv).within(within(step)))?.ok()
                }
                Some(_) => false,
                None => true,
            };
            let started = step.ready_line.is_some() || self.alive(spot, files)?;
            if line && probe && started {
                return Ok(());
            }
            entrain_lab_machine::cancel::check()?;
            let late = Instant::now() >= end;
            if late || self.ended(spot, files)? {
                let why = if late {
                    format!("was not ready within {} s", step.within)
                } else {
                    "ended before it was ready".to_owned()
                };
                return Err(Stop::Failed(format!("{} {why}: {}", words(step), self.said(spot, files)?)));
            }
            std::thread::sleep(POLL);
        }
    }

    /// An error if a background command has ended, or does not do what it is for: what is then measured is no longer this arm.
    pub(super) fn check(&self) -> Result<(), Stop> {
        for done in &self.done {
            if let Done::Background { step, spot, files, .. } = done
                && !self.alive(spot, files)?
            {
                let said = self.said(spot, files)?;
                return Err(Stop::Failed(format!("{} ended by itself in {}: {said}", words(step), spot.target)));
            }
            if let Done::Background { step, spot, .. } = done
                && let Some(argv) = &step.holds_run
                && !self
                    .rig
                    .run(spot.target, Command::new(spot.values.expand(argv.as_ref())).within(within(step)))?
                    .ok()
            {
                let (words, place) = (words(step), spot.target);
                let argv = argv.as_ref().join(" ");
                return Err(Stop::Failed(format!("{words} no longer does in {place} what it is for: '{argv}' failed")));
            }
        }
        Ok(())
    }

    /// Undoes the steps in the opposite order. An error means that the machine is not as it was.
    pub(super) fn down(mut self) -> Result<(), Stop> {
        while let Some(done) = self.done.pop() {
            let undone = match done {
                Done::Once { step, spot } => match &step.undo {
                    Some(undo) => succeed(self.rig, &spot, undo.as_ref(), within(step)).map(|_| ()),
                    None => Ok(()),
                },
                Done::Background { step, spot, job, files } => self.end(step, &spot, job, &files),
            };
            undone.map_err(|stop| match stop {
                Stop::Failed(what) => {
                    Stop::Lost(entrain_lab_machine::LabError::Invalid(format!("taking the arm down: {what}")))
                }
                other => other,
            })?;
        }
        Ok(())
    }

    fn end(&self, step: &Step, spot: &Spot, job: Box<dyn Job>, files: &Files) -> Result<(), Stop> {
        if self.alive(spot, files)? {
            job.kill(SIGTERM)?;
            let end = Instant::now() + self.rig.wall(within(step));
            while self.alive(spot, files)? {
                if Instant::now() >= end {
                    job.kill(SIGKILL)?;
                    job.wait()?;
                    return Err(Stop::Failed(format!(
                        "{} did not end within {} s of SIGTERM",
                        words(step),
                        step.within
                    )));
                }
                std::thread::sleep(POLL);
            }
        }
        job.wait()?;
        Ok(())
    }

    fn alive(&self, spot: &Spot, files: &Files) -> Result<bool, Stop> {
        let line = format!("kill -0 \"$(cat {})\" 2>/dev/null", files.pid);
        Ok(self.rig.run(spot.target, Command::shell(&line))?.ok())
    }

    /// Whether it ran and does no more. One that has not come to run yet is not alive either.
    fn ended(&self, spot: &Spot, files: &Files) -> Result<bool, Stop> {
        let line = format!("test -s {0} && ! kill -0 \"$(cat {0})\" 2>/dev/null", files.pid);
        Ok(self.rig.run(spot.target, Command::shell(&line))?.ok())
    }

    fn said(&self, spot: &Spot, files: &Files) -> Result<String, Stop> {
        let outcome = run(self.rig, spot, &["tail", "-n", "5", &files.output])?;
        Ok(tail(&outcome.stdout, 5))
    }
}

/// Runs a command of the experiment and expects status 0.
pub(super) fn succeed(rig: &dyn Rig, spot: &Spot, argv: &[String], limit: Duration) -> Result<Outcome, Stop> {
    let argv = spot.values.expand(argv);
    let name = argv.join(" ");
    let outcome = rig.run(spot.target, Command::new(argv).within(limit))?;
    if outcome.ok() { Ok(outcome) } else { Err(failed(&name, spot.target, &outcome)) }
}

/// The message of a command that ended badly.
pub(super) fn failed(name: &str, target: Target, outcome: &Outcome) -> Stop {
    let said = if outcome.stderr.is_empty() { &outcome.stdout } else { &outcome.stderr };
    Stop::Failed(format!("'{name}' ended with status {} in {target}: {}", outcome.status, tail(said, 3)))
}

fn run(rig: &dyn Rig, spot: &Spot, argv: &[&str]) -> Result<Outcome, Stop> {
    Ok(rig.run(spot.target, Command::new(argv.iter().copied()))?)
}

fn within(step: &Step) -> Duration {
    Duration::from_secs_f64(step.within)
}

fn words(step: &Step) -> String {
    format!("'{}'", step.run.as_ref().join(" "))
}
