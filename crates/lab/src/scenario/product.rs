//! What the scenarios of the product share: the daemon on the host machine, the agents in its guests, and what they tell.

use std::thread::sleep;
use std::time::Duration;

use entrain_lab_machine::machine::{Command, Target};
use entrain_lab_machine::{LabError, Result, cancel};
use serde_json::Value;
use signal_hook::consts::SIGTERM;

use crate::rig::{Job, Rig};

/// How long anything of the product may take to settle: discovery once a second, heartbeats, an emulated machine.
pub(super) const SETTLE: Duration = Duration::from_secs(20);
/// A daemon or agent runs for no longer than a scenario.
const LIFE: Duration = Duration::from_secs(3600);

/// Something that was expected did not come about.
pub(super) fn unmet(what: impl Into<String>) -> LabError {
    LabError::Invalid(what.into())
}

/// Runs a shell line and returns what it prints; a status other than 0 is an error.
pub(super) fn shell(rig: &dyn Rig, target: Target, line: &str) -> Result<String> {
    let outcome = rig.run(target, Command::shell(line))?;
    if outcome.ok() {
        return Ok(outcome.text().trim().to_owned());
    }
    let said = String::from_utf8_lossy(&outcome.stderr).into_owned();
    Err(unmet(format!("{target}: '{line}' ended with {}: {}", outcome.status, said.trim())))
}

/// Looks again and again until `look` finds something, for at most `limit`; how long it took, both by the machine's clock.
pub(super) fn wait_for(
    rig: &dyn Rig,
    what: &str,
    limit: Duration,
    mut look: impl FnMut() -> Result<bool>,
) -> Result<Duration> {
    let start = rig.now();
    while !look()? {
        cancel::check()?;
        if rig.now() - start > limit {
            return Err(unmet(format!("{what}: not within {} s", limit.as_secs())));
        }
        sleep(Duration::from_millis(200));
    }
    Ok(rig.now() - start)
}

/// A daemon or an agent that runs in a machine.
pub(super) struct Service {
    job: Box<dyn Job>,
    name: String,
}

impl Service {
    /// Starts the daemon on the host machine and waits until it serves.
    pub(super) fn daemon(rig: &dyn Rig, selftest: bool) -> Result<Self> {
        let argv = ["entrain", "host"].into_iter().chain(selftest.then_some("--selftest"));
        let service = Self::start(rig, Target::Host, argv)?;
        wait_for(rig, "the daemon serves", SETTLE, || {
            Ok(rig.run(Target::Host, Command::shell("test -S /run/entrain/host.sock"))?.ok())
        })?;
        Ok(service)
    }

    /// Starts an agent in a guest.
    pub(super) fn agent(rig: &dyn Rig, guest: usize) -> Result<Self> {
        Self::start(rig, Target::Guest(guest), ["entrain", "guest"])
    }

    /// Starts a command that is ended by a signal.
    pub(super) fn start<'a>(rig: &dyn Rig, target: Target, argv: impl IntoIterator<Item = &'a str>) -> Result<Self> {
        let argv: Vec<&str> = argv.into_iter().collect();
        let name = format!("{} in {target}", argv.join(" "));
        Ok(Self { job: rig.start(target, Command::new(argv).within(LIFE))?, name })
    }

    /// Ends a load whose figures nobody wants.
    pub(super) fn stop(self) -> Result<()> {
        self.job.kill(SIGTERM)?;
        self.job.wait().map(drop)
    }

    /// Sends a signal, and waits for the end; what it logged.
    pub(super) fn end(self, signal: i32) -> Result<String> {
        self.job.kill(signal)?;
        let outcome = self.job.wait()?;
        let log = String::from_utf8_lossy(&outcome.stderr).into_owned();
        let expected = if signal == SIGTERM { 0 } else { 128 + signal };
        if outcome.status != expected {
            return Err(unmet(format!("{} ended with {}: {}", self.name, outcome.status, log.trim())));
        }
        Ok(log)
    }
}

/// What `entrain guest --status` says in a guest.
pub(super) fn guest_status(rig: &dyn Rig, guest: usize) -> Result<Value> {
    let text = shell(rig, Target::Guest(guest), "entrain guest --status --json")?;
    serde_json::from_str(&text).map_err(|error| unmet(format!("guest {guest}: no JSON ({error}): {text}")))
}

/// vCPUs of a guest for which a host that lives publishes.
pub(super) fn served(status: &Value) -> usize {
    let vcpus = status["vcpus"].as_array().map(Vec::as_slice).unwrap_or_default();
    vcpus.iter().filter(|vcpu| vcpu["link"] == "paired" && vcpu["host_beats"] == true).count()
}

/// Waits until all vCPUs of a guest are served; how long it took.
pub(super) fn await_served(rig: &dyn Rig, guest: usize) -> Result<Duration> {
    await_served_within(rig, guest, SETTLE)
}

/// The same where it may take longer.
pub(super) fn await_served_within(rig: &dyn Rig, guest: usize, limit: Duration) -> Result<Duration> {
    wait_for(rig, &format!("guest {guest} is paired"), limit, || {
        // The agent may not have pinned its pages yet.
        let Ok(status) = guest_status(rig, guest) else { return Ok(false) };
        Ok(status["vcpus"].as_array().is_some_and(|vcpus| !vcpus.is_empty() && served(&status) == vcpus.len()))
    })
}
