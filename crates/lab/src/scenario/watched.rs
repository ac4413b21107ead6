//! Loads in the guests, seen by the daemon on the host: who ran, who waited, and in the middle of what the host took a
//! vCPU off its pCPU.
//!
//! `params`: `loads`, one command (an array of words; none for no load) for each guest of the configuration. All others are
//! optional: `host`, commands that run on the host machine meanwhile
//! (in all, `{seconds}` and `{configuration}` are replaced); `figures`, what is taken from the loads' output;
//! `weights`, the guests' CPU weights, in units of 100 (each VM's cgroup has that `cpu.weight` for as long, and the fairness
//! index divides by them); `settle`, seconds until the first look; `count_bpf`, whether the BPF
//! programs' time is counted, and the daemon's; `witness`, the guest (counted from 0 in the order of the configuration)
//! that is asked meanwhile whether its host is silent. What the daemon says is left out where the arm has none, and how
//! much it logs where the arm keeps no [`LOG`].

use std::time::Duration;

use entrain_lab_machine::machine::Target;
use entrain_lab_machine::{LabError, Result};
use serde::Deserialize;
use serde_json::Value;

use super::beside::{self, Wanted};
use super::interface::{Context, Scenario};
use super::product::{guest_status, served, shell, unmet};
use super::status::{self, BpfStats, sum};
use super::weights::Weights;
use crate::metric::Better::{Higher, Lower};
use crate::reading::Readings;
use crate::rig::Rig;

/// See the module.
pub(super) struct Watched;

/// The loads go on for a while after the last look, so that none ends before it.
const MARGIN: f64 = 3.0;
/// Where an arm's daemon logs to, if what it logs is to be counted.
const LOG: &str = "/run/entrain-host.log";
/// Between two looks of the witness, each of which takes 0.7 s itself.
const PAUSE: Duration = Duration::from_millis(200);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    loads: Vec<Vec<String>>,
    #[serde(default)]
    host: Vec<Vec<String>>,
    #[serde(default)]
    figures: Vec<Wanted>,
    weights: Option<Vec<u32>>,
    #[serde(default = "half_a_second")]
    settle: f64,
    #[serde(default)]
    count_bpf: bool,
    witness: Option<usize>,
}

fn half_a_second() -> f64 {
    0.5
}

impl Params {
    fn read(context: &Context) -> Result<Self> {
        let wrong = |what: String| LabError::Invalid(format!("watched: params: {what}"));
        let mut params: Self = context.params("watched")?;
        for word in params.loads.iter_mut().chain(&mut params.host).flatten() {
            *word = word.replace("{configuration}", &context.configuration);
        }
        let guests = context.guests.len();
        if params.loads.len() != guests {
            return Err(wrong(format!("loads must be one a guest: {} for {guests}", params.loads.len())));
        }
        if params.weights.as_ref().is_some_and(|list| list.len() != guests || list.contains(&0)) {
            return Err(wrong("weights must be one positive integer a guest".into()));
        }
        if params.witness.is_some_and(|number| number >= guests) {
            return Err(wrong(format!("witness must be one of {guests} guests, counted from 0")));
        }
        Ok(params)
    }
}

impl Scenario for Watched {
    fn name(&self) -> &'static str {
        "watched"
    }

    fn run(&self, rig: &dyn Rig, context: &Context, readings: &mut Readings) -> Result<()> {
        let params = Params::read(context)?;
        let given = params.weights.as_ref().map(|list| list.iter().map(|&weight| f64::from(weight)).collect());
        let weights: Vec<f64> = given.unwrap_or_else(|| vec![1.0; context.guests.len()]);
        let _weights = params.weights.is_some().then(|| Weights::set(rig, &weights)).transpose()?;
        let _stats = params.count_bpf.then(|| BpfStats::on(rig)).transpose()?;
        let life = params.settle + context.seconds + MARGIN;
        let mut running = Vec::new();
        for argv in &params.host {
            running.extend(beside::start(rig, Target::Host, argv, life)?);
        }
        for (&guest, argv) in context.guests.iter().zip(&params.loads) {
            running.extend(beside::start(rig, Target::Guest(guest), argv, life)?);
        }
        rig.sleep(Duration::from_secs_f64(params.settle))?;
        let before = status::look(rig)?;
        let cpu = before.as_ref().map(|status| status::daemon(rig, status)).transpose()?;
        let logged = before.is_some().then(|| lines_logged(rig)).transpose()?.flatten();
        match params.witness.filter(|_| before.is_some()) {
            Some(number) => ask(rig, context.guests[number], context.seconds, readings)?,
            None => rig.sleep(Duration::from_secs_f64(context.seconds))?,
        }
        let after = status::look(rig)?;
        let printed = beside::finish(running)?;
        beside::figures(&params.figures, &context.guests, &printed, readings)?;
        let (Some(before), Some(after), Some((cpu, _))) = (before, after, cpu) else { return Ok(()) };
        if let (Some(then), Some(now)) = (logged, lines_logged(rig)?) {
            readings.push("daemon_log", "lines/s", Lower, (now - then) / status::seconds(&before, &after));
        }
        // A daemon that ends by itself fails the sample; this is one that has been replaced.
        readings.push("restarts", "1", Lower, f64::from(u8::from(before["pid"] != after["pid"])));
        let fallbacks = |status: &Value| status["fallbacks"].as_f64().unwrap_or(0.0);
        readings.push("fallbacks", "1", Lower, fallbacks(&after) - fallbacks(&before));
        if params.count_bpf {
            status::bpf(&before, &after, readings);
            let (now, memory) = status::daemon(rig, &after)?;
            readings.push("daemon_cpu", "%", Lower, 100.0 * (now - cpu) / status::seconds(&before, &after));
            readings.push("daemon_memory", "MiB", Lower, memory);
            let late = |status: &Value| status["work"]["late_ticks"].as_f64();
            if let (Some(then), Some(now)) = (late(&before), late(&after)) {
                readings.push("late_beats", "1", Lower, now - then);
            }
            let part = |key: &str| {
                let took = |status: &Value| status["work"][key].as_f64().unwrap_or(0.0);
                (took(&after) - took(&before)) / 1e7 / status::seconds(&before, &after)
            };
            readings.push("looking", "%", Lower, part("discovery_ns"));
            readings.push("searching", "%", Lower, part("pairing_ns"));
            let rung = |status: &Value| status::sum_of(&status["pcpus"], "doorbells");
            readings.push(
                "doorbells",
                "1/s",
                Higher,
                (rung(&after) - rung(&before)) / status::seconds(&before, &after),
            );
        }
        status::yields(&before, &after, readings);
        // Guests without a load hardly run: there is nothing to share.
        let idle = params.loads.iter().all(Vec::is_empty);
        if idle { Ok(()) } else { figures(&before, &after, &weights, readings) }
    }
}

/// Lines that the daemon has logged so far.
fn lines_logged(rig: &dyn Rig) -> Result<Option<f64>> {
    let text = shell(rig, Target::Host, &format!("[ ! -e {LOG} ] || wc -l < {LOG}"))?;
    Ok(text.trim().parse().ok())
}

/// Asks a guest for so long, again and again, whether its host publishes; how often it did not.
fn ask(rig: &dyn Rig, guest: usize, seconds: f64, readings: &mut Readings) -> Result<()> {
    let end = rig.now() + Duration::from_secs_f64(seconds);
    let (mut looks, mut silent) = (0_u32, 0_u32);
    while rig.now() < end {
        let status = guest_status(rig, guest)?;
        looks += 1;
        silent += u32::from(!is_served(&status));
        rig.sleep(PAUSE)?;
    }
    readings.push("host_looks", "1", Higher, f64::from(looks));
    readings.push("host_silent", "1", Lower, f64::from(silent));
    Ok(())
}

/// Whether a host that lives publishes for each vCPU.
fn is_served(status: &Value) -> bool {
    status["vcpus"].as_array().is_some_and(|vcpus| !vcpus.is_empty() && served(status) == vcpus.len())
}

fn figures(before: &Value, after: &Value, weights: &[f64], readings: &mut Readings) -> Result<()> {
    let seconds = status::seconds(before, after);
    let pairs = status::vms(before, after);
    if pairs.len() != weights.len() || seconds <= 0.0 {
        let (ran, all) = (pairs.len(), weights.len());
        return Err(unmet(format!(
            "the daemon saw {ran} of {all} guests run in {seconds:.1} s; it said: {}; then: {}",
            status::brief(before),
            status::brief(after)
        )));
    }
    let grown = |key: &str| -> f64 { pairs.iter().map(|(old, new)| sum(new, key) - sum(old, key)).sum() };
    let (preemptions, read) = (grown("preemptions"), grown("samples"));
    readings.push("preemptions", "1/s", Lower, preemptions / seconds);
    readings.push("switches", "1/s", Lower, grown("switches") / seconds);
    if read > 0.0 {
        readings.push("preempted_in_cs", "%", Lower, 100.0 * grown("preemptions_cs") / read);
        readings.push("preempted_in_cs_rate", "1/s", Lower, grown("preemptions_cs") / seconds);
    }
    let ran: Vec<f64> = pairs.iter().map(|(old, new)| sum(new, "run_ns") - sum(old, "run_ns")).collect();
    let all: f64 = ran.iter().sum();
    readings.push("share_first", "%", Lower, 100.0 * ran[0] / all);
    readings.push("fairness", "1", Higher, jain(&ran, weights));
    readings.push("ready", "%", Lower, 100.0 * grown("ready_ns") / (grown("ready_ns") + all));
    Ok(())
}

/// Jain's index of the time that each got by its weight: 1 when all got their share, 1/n when one got all.
fn jain(ran: &[f64], weights: &[f64]) -> f64 {
    let parts: Vec<f64> = ran.iter().zip(weights).map(|(ran, weight)| ran / weight).collect();
    let sum: f64 = parts.iter().sum();
    let squares: f64 = parts.iter().map(|part| part * part).sum();
    sum * sum / (parts.len() as f64 * squares)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(now: u64, vms: &[(&str, u64, u64)]) -> Value {
        let vms: Vec<Value> = vms
            .iter()
            .enumerate()
            .map(|(pid, (name, run, cs))| {
                serde_json::json!({"name": name, "pid": pid, "vcpus": [
                    {"run_ns": run, "ready_ns": run, "preemptions": 2 * cs, "samples": 2 * cs, "preemptions_cs": cs, "switches": cs},
                ]})
            })
            .collect();
        serde_json::json!({"now_ns": now, "vms": vms})
    }

    #[test]
    fn figures_are_differences() {
        let before = status(0, &[("b", 100, 10), ("a", 100, 10)]);
        let after = status(2_000_000_000, &[("b", 400, 20), ("a", 200, 10)]);
        let mut readings = Readings::default();
        figures(&before, &after, &[1.0, 3.0], &mut readings).unwrap();
        let value = |name: &str| readings.iter().find(|s| s.metric == name).unwrap().value;
        assert_eq!(value("preempted_in_cs"), 50.0);
        assert_eq!(value("preemptions"), 10.0);
        assert_eq!(value("share_first"), 25.0, "a comes first by its name");
        assert_eq!(value("fairness"), 1.0, "b has three times a's weight and time");
        assert!(figures(&before, &after, &[1.0], &mut Readings::default()).is_err());
    }

    #[test]
    fn a_silent_host_is_noticed_on_any_vcpu() {
        let look = |second: bool, link: &str| serde_json::json!({"vcpus": [{"link": "paired", "host_beats": true}, {"link": link, "host_beats": second}]});
        assert!(is_served(&look(true, "paired")));
        assert!(!is_served(&look(false, "paired")), "it has stopped");
        assert!(!is_served(&look(true, "offered")), "it has let go");
        assert!(!is_served(&serde_json::json!({"vcpus": []})), "no agent");
    }

    #[test]
    fn jain_s_index_spans_its_range() {
        assert_eq!(jain(&[1.0, 1.0], &[1.0, 1.0]), 1.0);
        assert_eq!(jain(&[1.0, 0.0], &[1.0, 1.0]), 0.5);
    }
}
