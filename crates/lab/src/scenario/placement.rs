//! A heavy and a light vCPU on a big and a small pCPU, whose roles swap: how soon the heavy one comes to the big pCPU, and
//! how much of its time it is there. Both are read from the host's switches of the vCPU threads.
//!
//! `params`: `turn_ms`, optional: time until the roles swap. The pCPUs are emulated (docs/frequency-lab.md).

use std::time::Duration;

use entrain_lab_machine::machine::{Command, Target};
use entrain_lab_machine::{LabError, Result};

use super::frequency::Emulation;
use super::interface::{Context, Scenario};
use super::product::unmet;
use super::trace;
use crate::load::Printed;
use crate::metric::Better::{Higher, Lower};
use crate::reading::Readings;
use crate::rig::Rig;

/// See the module.
pub(super) struct Placement;

/// A load may take this much longer than its time, s: small pCPUs are slow.
const PATIENCE: f64 = 90.0;

impl Scenario for Placement {
    fn name(&self) -> &'static str {
        "placement"
    }

    fn run(&self, rig: &dyn Rig, context: &Context, readings: &mut Readings) -> Result<()> {
        let guest = *context.guests.first().ok_or_else(|| LabError::Invalid("placement: no guest".into()))?;
        let emulation = Emulation::start(rig)?;
        let measured = measure(rig, context, guest, readings);
        emulation.end()?;
        measured
    }
}

fn measure(rig: &dyn Rig, context: &Context, guest: usize, readings: &mut Readings) -> Result<()> {
    let turn = context.params.get("turn_ms").and_then(toml::Value::as_integer).unwrap_or(1000).to_string();
    let seconds = format!("{}", context.seconds);
    let limit = Duration::from_secs_f64(context.seconds + PATIENCE);
    let load = ["entrain-load", "roles", "--json", "--warmup", "1", "--turn", &turn, "--seconds", &seconds];
    let load = rig.start(Target::Guest(guest), Command::new(load).within(limit))?;
    let mut follow = vec!["entrain-cpufreq-emulation".to_owned(), "record".into(), "--seconds".into(), seconds.clone()];
    let vm = trace::threads(rig)?.into_iter().nth(guest).ok_or_else(|| unmet("the guest's VM is not among KVM's"))?;
    for thread in vm.tids {
        follow.extend(["--thread".into(), thread.to_string()]);
    }
    let record = rig.run(Target::Host, Command::new(follow).within(limit))?;
    let loaded = load.wait()?;
    for outcome in [&record, &loaded] {
        if !outcome.ok() {
            return Err(unmet(format!("placement: {}", String::from_utf8_lossy(&outcome.stderr).trim())));
        }
    }
    let read = |text: String| Printed::parse(&text).map_err(|error| unmet(error.to_string()));
    let (record, load) = (read(record.text())?, read(loaded.text())?);
    for (metric, unit, better) in [
        ("heavy_on_big", "%", Higher),
        ("until_big_p50", "ms", Lower),
        ("until_big_max", "ms", Lower),
        ("stretches", "1", Higher),
    ] {
        readings.push(metric, unit, better, record.figure(metric, unit).map_err(|error| unmet(error.to_string()))?);
    }
    let rate = load.figure("iterations_per_s", "1/s").map_err(|error| unmet(error.to_string()))?;
    readings.push("iterations_per_s", "1/s", Higher, rate);
    Ok(())
}
