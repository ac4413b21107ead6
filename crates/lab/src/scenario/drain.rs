//! Operations that drain the per-CPU caches of all CPUs, while a real-time task holds an isolated one.
//!
//! `drain`: how long one takes. `params`: `operation`, as `entrain-load isolated drain` names it; `of`, its device, slab cache
//! or module; `module`, loaded before from among the machine's extra ones; `cpu`, the isolated CPU; `hot`, true loads the
//! livepatch module while the task spins. `seconds` is the task's life.
//!
//! `drained`: whether the caches of the held CPU really are empty afterwards, by page flags and slab counters.

use std::time::Duration;

use entrain_lab_machine::Result;
use entrain_lab_machine::machine::Target;
use serde::Deserialize;

use super::interface::{Context, Scenario};
use super::isolated::{Hold, REPORT, Unthrottled, tool};
use super::product::{shell, unmet};
use crate::metric::Better::{Higher, Lower};
use crate::reading::Readings;
use crate::rig::Rig;

/// See the module.
pub(super) struct Drain;
/// See the module.
pub(super) struct Drained;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DrainParams {
    operation: String,
    of: Option<String>,
    module: Option<String>,
    #[serde(default = "isolated")]
    cpu: u32,
    #[serde(default)]
    hot: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DrainedParams {
    #[serde(default = "isolated")]
    cpu: u32,
}

/// The first CPU that the experiments isolate.
fn isolated() -> u32 {
    2
}

/// The task spins for so long before the operation begins.
const BEFORE: Duration = Duration::from_millis(400);
/// An operation may take this much longer than the task's life, s.
const PATIENCE: f64 = 60.0;
/// A cache that the task fills and nobody else here uses.
const CACHE: &str = "file_lock_cache";

impl Scenario for Drain {
    fn name(&self) -> &'static str {
        "drain"
    }

    fn run(&self, rig: &dyn Rig, context: &Context, readings: &mut Readings) -> Result<()> {
        let params: DrainParams = context.params(self.name())?;
        if let Some(module) = &params.module {
            let line = format!("[ -e /sys/module/{module} ] || insmod /usr/lib/entrain/extra/{module}.ko");
            shell(rig, Target::Host, &line)?;
        }
        let unthrottled = Unthrottled::begin(rig)?;
        let measured = timed(rig, &params, context.seconds, readings);
        unthrottled.end()?;
        measured
    }
}

fn timed(rig: &dyn Rig, params: &DrainParams, seconds: f64, readings: &mut Readings) -> Result<()> {
    let mut arguments = vec!["drain", params.operation.as_str()];
    arguments.extend(params.of.iter().flat_map(|of| ["--of", of]));
    let hold = Hold::fifo(rig, params.cpu, seconds)?;
    rig.sleep(BEFORE)?;
    if params.hot {
        load_hot(rig, readings)?;
    }
    let printed = tool(rig, &arguments, Duration::from_secs_f64(seconds + PATIENCE));
    let outlived = hold.lives(rig)?;
    hold.stop()?;
    let took = printed?.figure("took", "ms").map_err(|error| unmet(error.to_string()))?;
    let share = took / seconds / 10.0;
    if share < 50.0 && !outlived {
        return Err(unmet("the task that holds the CPU ended before the operation: nothing is shown"));
    }
    readings.push("took", "ms", Lower, took);
    readings.push("share", "%", Lower, share);
    Ok(())
}

/// Loads the module at once, if it is not there yet: it stays until the machine ends.
fn load_hot(rig: &dyn Rig, readings: &mut Readings) -> Result<()> {
    let begun = rig.now();
    shell(rig, Target::Host, "[ -e /sys/module/entrain_qpw ] || entrain isolate qpw load --hot")?;
    readings.push("load", "ms", Lower, (rig.now() - begun).as_secs_f64() * 1e3);
    Ok(())
}

impl Scenario for Drained {
    fn name(&self) -> &'static str {
        "drained"
    }

    fn run(&self, rig: &dyn Rig, context: &Context, readings: &mut Readings) -> Result<()> {
        let DrainedParams { cpu } = context.params(self.name())?;
        let unthrottled = Unthrottled::begin(rig)?;
        let looked = looked(rig, cpu, context.seconds, readings);
        unthrottled.end()?;
        looked
    }
}

/// Page flags and slab counters before and after a drain from another CPU, and whether the task spun all the while.
fn looked(rig: &dyn Rig, cpu: u32, seconds: f64, readings: &mut Readings) -> Result<()> {
    let limit = Duration::from_secs_f64(seconds + PATIENCE);
    let hold = Hold::fifo(rig, cpu, seconds)?;
    rig.sleep(BEFORE)?;
    let pages = || -> Result<(f64, f64)> {
        let printed = tool(rig, &["pages", REPORT], limit)?;
        let figure = |name| printed.figure(name, "pages").map_err(|error| unmet(error.to_string()));
        Ok((figure("plain_on_lru")?, figure("locked_on_lru")?))
    };
    let objects = || -> Result<f64> {
        let text = shell(rig, Target::Host, &format!("cat /sys/kernel/slab/{CACHE}/objects"))?;
        let word = text.split(' ').next().unwrap_or_default();
        word.parse().map_err(|_| unmet(format!("/sys/kernel/slab/{CACHE}/objects says '{text}'")))
    };
    let before = (pages()?, objects()?);
    // Not by compaction: that would move the pages elsewhere.
    tool(rig, &["drain", "drop-caches"], limit)?;
    tool(rig, &["drain", "slab-shrink", "--of", CACHE], limit)?;
    let after = (pages()?, objects()?);
    let spins = hold.lives(rig)?;
    hold.stop()?;
    readings.push("plain_before", "pages", Lower, before.0.0);
    readings.push("plain_after", "pages", Higher, after.0.0);
    readings.push("locked_before", "pages", Lower, before.0.1);
    readings.push("locked_after", "pages", Higher, after.0.1);
    readings.push("objects_before", "1", Higher, before.1);
    readings.push("objects_after", "1", Lower, after.1);
    readings.push("still_held", "1", Higher, f64::from(u8::from(spins)));
    Ok(())
}
