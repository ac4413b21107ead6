//! KVM's directed yields: how many there are, and how soon their targets run.
//!
//! `params`: `loads`, one command for each guest; `window`, seconds for which the host's switches and calls of `yield_to`
//! are recorded while the loads run. What the host's scheduler made of them is told by the daemon, where the arm has one
//! that schedules. A yield counts as useful if its target runs within a millisecond.

use std::time::Duration;

use entrain_lab_machine::machine::Target;
use entrain_lab_machine::{LabError, Result};
use serde::Deserialize;

use super::interface::{Context, Scenario};
use super::product::unmet;
use super::trace::{self, Recording};
use super::{beside, status};
use crate::metric::Better::{Higher, Lower};
use crate::reading::Readings;
use crate::rig::Rig;

/// See the module.
pub(super) struct Yields;

/// A target that runs within this time of the yield was helped by it, s.
const SOON: f64 = 0.001;
/// The loads run for so long before and after what is looked at, s.
const MARGIN: f64 = 1.5;
/// The first argument's thread id, by the kernel's BTF.
const PROBE: &str = "f:entrain yield_to pid=p->pid:s32";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    loads: Vec<Vec<String>>,
    window: f64,
}

impl Scenario for Yields {
    fn name(&self) -> &'static str {
        "yields"
    }

    fn run(&self, rig: &dyn Rig, context: &Context, readings: &mut Readings) -> Result<()> {
        let wrong = |what: String| LabError::Invalid(format!("yields: params: {what}"));
        let params: Params = context.params("yields")?;
        if params.loads.len() != context.guests.len() {
            return Err(wrong("loads must be one a guest".into()));
        }
        let tids: Vec<u32> = trace::threads(rig)?.into_iter().flat_map(|guest| guest.tids).collect();
        let recording = Recording::prepare(rig, &tids, Some(PROBE))?;
        let life = context.seconds + params.window + 2.0 * MARGIN;
        let mut running = Vec::new();
        for (&guest, argv) in context.guests.iter().zip(&params.loads) {
            running.extend(beside::start(rig, Target::Guest(guest), argv, life)?);
        }
        rig.sleep(Duration::from_secs_f64(MARGIN))?;
        // Counted first, then recorded: recording each of tens of thousands a second takes time itself.
        let before = status::look(rig)?;
        rig.sleep(Duration::from_secs_f64(context.seconds))?;
        let after = status::look(rig)?;
        recording.record(params.window)?;
        beside::finish(running)?;
        if let (Some(before), Some(after)) = (before, after) {
            status::yields(&before, &after, readings);
        }
        told(&recording.end()?, &tids, readings)
    }
}

/// Yields to these threads and what became of them.
fn told(text: &str, tids: &[u32], readings: &mut Readings) -> Result<()> {
    let (mut asked, mut waits) = (Vec::new(), Vec::new());
    let (mut first, mut last, mut switches) = (None, 0.0, 0_u32);
    for line in text.lines() {
        if let Some((at, rest)) = trace::event(line, "entrain") {
            let target = trace::number(rest, "pid").filter(|target| tids.contains(target));
            asked.extend(target.map(|target| (at, target)));
            last = at;
            first.get_or_insert(at);
        } else if let Some(switch) = trace::switch(line) {
            switches += 1;
            last = switch.at;
            first.get_or_insert(switch.at);
            // Every yield to it since it last ran has led to this, the first of them at the latest.
            asked.retain(|(at, target)| {
                let runs = *target == switch.to;
                if runs {
                    waits.push(switch.at - at);
                }
                !runs
            });
        }
    }
    let seconds = last - first.unwrap_or(last);
    if seconds <= 0.0 || switches == 0 {
        return Err(unmet("nothing was recorded of the vCPUs"));
    }
    // What nobody ran for until the end of the record was in vain, as far as it was seen.
    let all = waits.len() + asked.len();
    readings.push("switches", "1/s", Lower, f64::from(switches) / seconds);
    readings.push("yields", "1/s", Higher, all as f64 / seconds);
    if all > 0 {
        let soon = waits.iter().filter(|wait| **wait <= SOON).count();
        readings.push("useful", "%", Higher, 100.0 * soon as f64 / all as f64);
    }
    waits.sort_by(f64::total_cmp);
    if let Some(median) = waits.get(waits.len() / 2) {
        readings.push("yield_to_run_p50", "us", Lower, 1e6 * median);
        readings.push("yield_to_run_p90", "us", Lower, 1e6 * waits[waits.len() * 9 / 10]);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_yield_is_useful_if_its_target_runs_soon() {
        let yields =
            |at: f64, to: u32| format!(" CPU 0/KVM-7 [000] ..... {at:.6}: entrain: (yield_to+0x0/0x3c0) pid={to}\n");
        let switch = |at: f64, from: u32, to: u32| {
            format!(
                " x-7 [000] d..2. {at:.6}: sched_switch: prev_comm=x prev_pid={from} prev_prio=120 prev_state=R ==> next_comm=y next_pid={to} next_prio=120\n"
            )
        };
        let text = [
            yields(1.0, 8),
            switch(1.0005, 7, 8),
            yields(1.1, 7),
            switch(1.2, 8, 7),
            // Not a vCPU of ours, and one that never comes to run.
            yields(1.3, 99),
            yields(1.5, 8),
            switch(2.0, 7, 0),
        ]
        .concat();
        let mut readings = Readings::default();
        told(&text, &[7, 8], &mut readings).unwrap();
        let value = |name: &str| readings.iter().find(|one| one.metric == name).unwrap().value;
        assert_eq!(value("yields"), 3.0);
        assert!((value("useful") - 100.0 / 3.0).abs() < 1e-9);
        assert!((value("yield_to_run_p50") - 100_000.0).abs() < 1.0);
        assert!(told("", &[7], &mut Readings::default()).is_err());
    }
}
