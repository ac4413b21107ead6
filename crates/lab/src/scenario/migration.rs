//! Live migration of a paired guest into a second QEMU beside the first one, under a load that writes to its memory all
//! the time and looks whether anybody else did (`entrain-load memcheck`).
//!
//! The host's BPF writes to a guest's page behind KVM's back: its log of dirty pages does not show it. So the pairing must
//! have been given up when the first QEMU stops the guest, and must be made anew with the second. Times are those of the
//! host machine's clock, which the daemon's log carries as well.
//!
//! `params`: `mode`, `precopy`, `postcopy` or `cancelled` (the guest stays where it is); `mib`, the load's memory;
//! `downtime_ms`, how long the guest may stand still.

use std::time::Duration;

use entrain_lab_machine::machine::Target;
use entrain_lab_machine::{LabError, Result};
use serde::Deserialize;
use serde_json::{Value, json};
use signal_hook::consts::SIGTERM;

use super::interface::{Context, Scenario};
use super::lifecycle::Left;
use super::log::{PAIRED, last, seconds, since};
use super::memcheck::{Witness, memory_is_sound};
use super::product::{SETTLE, Service, await_served, shell, unmet, wait_for};
use super::status;
use crate::metric::Better::{Higher, Lower};
use crate::reading::Readings;
use crate::rig::Rig;

/// See the module.
pub(super) struct Migration;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Mode {
    /// The memory is copied while the guest runs, and the rest while it stands still.
    Precopy,
    /// The guest goes on in the second QEMU before its memory is there.
    Postcopy,
    /// The migration is called off when the pairing has been given up.
    Cancelled,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    mode: Mode,
    mib: u64,
    downtime_ms: u64,
}

/// Where the two QEMUs meet.
const SOCKET: &str = "/run/entrain-lab-migration.sock";
/// The load fills its memory before anything else happens.
const FILL: Duration = Duration::from_secs(4);
/// How long a migration may take on an emulated machine.
const PATIENCE: Duration = Duration::from_secs(90);
/// How long the load goes on where the guest has arrived.
const AFTERWARDS: Duration = Duration::from_secs(4);
/// What the daemon logs when it lets go.
const LET_GO: &str = "(live migration); let go of its pages";

impl Scenario for Migration {
    fn name(&self) -> &'static str {
        "migration"
    }

    fn run(&self, rig: &dyn Rig, context: &Context, readings: &mut Readings) -> Result<()> {
        let wrong = |what: String| LabError::Invalid(format!("migration: {what}"));
        let params: Params = context.params("migration")?;
        let [guest] = context.guests[..] else { return Err(wrong("needs one guest".into())) };
        let before = Left::look(rig)?;
        let daemon = Service::daemon(rig, false)?;
        let agent = Service::agent(rig, guest)?;
        await_served(rig, guest)?;
        let boot = boot_id(rig, guest)?;
        let load = Witness::start(rig, guest, &["--mib", &params.mib.to_string()])?;
        rig.sleep(FILL)?;

        let course = migrate(rig, guest, &params, readings)?;
        await_served(rig, guest)?;
        rig.sleep(AFTERWARDS)?;
        if boot_id(rig, guest)? != boot {
            return Err(unmet("the guest has booted anew"));
        }
        let corruptions = load.end()?;
        agent.end(SIGTERM)?;
        // The pages that were shared are the guest's again, and are used again.
        memory_is_sound(rig, guest)?;
        let log = daemon.end(SIGTERM)?;
        let (given_up, paired) = (last(&log, LET_GO)?, last(&log, PAIRED)?);
        readings.push("given_up", "ms", Lower, 1e3 * since(course.begun, given_up));
        if let Some(stopped) = course.stopped {
            readings.push("spare", "ms", Higher, 1e3 * since(given_up, stopped));
        }
        readings.push("paired_again", "ms", Lower, 1e3 * since(course.settled, paired));
        readings.push("corruptions", "1", Lower, corruptions);
        readings.push("left_behind", "1", Lower, before.left(rig, &[])?);
        Ok(())
    }
}

/// When things happened, s of the host machine's day.
struct Course {
    begun: f64,
    /// The first QEMU stopped the guest for good; known of pre-copy alone.
    stopped: Option<f64>,
    /// The guest ran where it stays.
    settled: f64,
}

/// Migrates the guest, or tries to; at the end one QEMU is left.
fn migrate(rig: &dyn Rig, guest: usize, params: &Params, readings: &mut Readings) -> Result<Course> {
    let postcopy = json!({"capability": "postcopy-ram", "state": params.mode == Mode::Postcopy});
    let capabilities = command("migrate-set-capabilities", json!({"capabilities": [postcopy]}));
    let address = json!({"uri": format!("unix:{SOCKET}")});
    shell(rig, Target::Host, &format!("rm -f {SOCKET}"))?;
    rig.begin_migration(guest, &[&capabilities, &command("migrate-incoming", address.clone())])?;
    let limits = json!({"downtime-limit": params.downtime_ms, "max-bandwidth": 1u64 << 30});
    let begun = clock(rig)?;
    let course = rig
        .qmp(guest, &[&capabilities, &command("migrate-set-parameters", limits), &command("migrate", address)])
        .and_then(|_| follow(rig, guest, params.mode, begun, readings));
    match course {
        Ok(course) => rig.end_migration(guest, params.mode != Mode::Cancelled).map(|()| course),
        Err(error) => {
            let moved = query(rig, guest).is_ok_and(|now| now["status"] == "completed");
            rig.end_migration(guest, moved)?;
            Err(error)
        }
    }
}

/// Sees the migration through until the guest is paired where it stays. Both QEMUs are still there.
fn follow(rig: &dyn Rig, guest: usize, mode: Mode, begun: f64, readings: &mut Readings) -> Result<Course> {
    let source = vms(rig)?.first().map(|vm| vm["pid"].clone()).ok_or_else(|| unmet("the daemon sees no VM"))?;
    let lets_go = || {
        let all = vms(rig)?;
        let vm = all.iter().find(|vm| vm["pid"] == source).ok_or_else(|| unmet("the first QEMU is gone"))?;
        let paired = vm["vcpus"].as_array().into_iter().flatten().any(|vcpu| vcpu["paired"] == true);
        Ok(vm["channel"] == "migrating" && !paired)
    };
    wait_for(rig, "the pairing is given up", SETTLE, lets_go)?;
    let mut settled = clock(rig)?;
    match mode {
        Mode::Precopy => {}
        Mode::Postcopy => drop(rig.qmp(guest, &[&command("migrate-start-postcopy", json!({}))])?),
        Mode::Cancelled => {
            let status = query(rig, guest)?["status"].clone();
            if status != "active" {
                return Err(unmet(format!("the migration was over before it could be cancelled: {status}")));
            }
            rig.qmp(guest, &[&command("migrate_cancel", json!({}))])?;
            wait_for(rig, "the guest is paired where it is", SETTLE, || paired(rig, |pid| *pid == source))?;
            return Ok(Course { begun, stopped: None, settled });
        }
    }
    let mut end = Value::Null;
    wait_for(rig, "the migration ends", PATIENCE, || {
        end = query(rig, guest)?;
        match end["status"].as_str() {
            Some("failed" | "cancelled") => Err(unmet(format!("the migration failed: {end}"))),
            status => Ok(status == Some("completed")),
        }
    })?;
    let number = |at: &str| end.pointer(at).and_then(Value::as_f64).ok_or_else(|| unmet(format!("no {at} in {end}")));
    let (total, downtime) = (number("/total-time")?, number("/downtime")?);
    readings.push("total", "ms", Lower, total);
    readings.push("downtime", "ms", Lower, downtime);
    readings.push("sent", "MiB", Lower, number("/ram/transferred")? / f64::from(1 << 20));
    readings.push("passes", "1", Lower, number("/ram/dirty-sync-count")?);
    let mut stopped = None;
    if mode == Mode::Precopy {
        settled = begun + total / 1e3;
        stopped = Some(settled - downtime / 1e3);
    }
    // The first QEMU still has the guest's old memory and its pages with it: nobody may mix them up.
    wait_for(rig, "the guest is paired in its second QEMU", SETTLE, || paired(rig, |pid| *pid != source))?;
    Ok(Course { begun, stopped, settled })
}

fn command(name: &str, arguments: Value) -> String {
    json!({"execute": name, "arguments": arguments}).to_string()
}

/// What the first QEMU says of the migration.
fn query(rig: &dyn Rig, guest: usize) -> Result<Value> {
    let text = rig.qmp(guest, &[r#"{"execute":"query-migrate"}"#])?;
    let mut answer: Value = serde_json::from_str(&text).map_err(|error| unmet(format!("no JSON ({error}): {text}")))?;
    Ok(answer["return"].take())
}

/// The VMs that the daemon sees.
fn vms(rig: &dyn Rig) -> Result<Vec<Value>> {
    let seen = status::look(rig)?.ok_or_else(|| unmet("the daemon is gone"))?;
    Ok(seen["vms"].as_array().cloned().unwrap_or_default())
}

/// Whether a VM with such a pid is paired.
fn paired(rig: &dyn Rig, such: impl Fn(&Value) -> bool) -> Result<bool> {
    Ok(vms(rig)?.iter().any(|vm| such(&vm["pid"]) && vm["channel"] == "paired"))
}

fn boot_id(rig: &dyn Rig, guest: usize) -> Result<String> {
    shell(rig, Target::Guest(guest), "cat /proc/sys/kernel/random/boot_id")
}

/// The host machine's clock, by a file's time: busybox' date has no fractions.
fn clock(rig: &dyn Rig) -> Result<f64> {
    let text = shell(rig, Target::Host, "touch /run/entrain-lab-now && stat -c %y /run/entrain-lab-now")?;
    let time = text.split_whitespace().nth(1).and_then(seconds);
    time.ok_or_else(|| unmet(format!("no time of day: {text}")))
}
