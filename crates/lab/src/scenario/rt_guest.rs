//! A real-time guest: its second vCPU is alone on an isolated CPU. Who interrupts that CPU on the host, and how late are the
//! guest's timers?
//!
//! In the guest cyclictest and then oslat run on that vCPU, half of `seconds` each; on the host caches are drained and
//! cgroups come and go meanwhile. `params`: `cpus`, the host's CPUs for the guest's vCPUs in their order, the last one isolated.

use std::time::Duration;

use entrain_lab_machine::machine::{Command, Target};
use entrain_lab_machine::{LabError, Result};

use super::interface::{Context, Scenario};
use super::isolated::{Cpus, OnCpus, Row, Watch, count};
use super::patience::{CHURN, CHURNED};
use super::product::{Service, shell, unmet};
use super::trace;
use crate::metric::Better::Lower;
use crate::reading::Readings;
use crate::rig::Rig;

/// See the module.
pub(super) struct RtGuest;

/// Drains for as long as it is let.
const DRAIN: [&str; 8] = ["entrain-load", "isolated", "drain", "drop-caches", "--times", "100000", "--pause", "200"];
/// A tool in a guest that is emulated twice may take this much longer, s.
const PATIENCE: f64 = 90.0;
/// Until everything runs.
const BEFORE: Duration = Duration::from_secs(1);
/// Kinds as `entrain isolate watch` calls them, and the metrics.
const KINDS: [(&str, &str); 9] = [
    ("work", "work"),
    ("call", "ipi_call"),
    ("resched", "ipi_resched"),
    ("irq-work", "irq_work"),
    ("timer", "timer"),
    ("irq", "irq"),
    ("softirq", "softirq"),
    ("kthread", "kthread"),
    ("task", "task"),
];

impl Scenario for RtGuest {
    fn name(&self) -> &'static str {
        "rt-guest"
    }

    fn run(&self, rig: &dyn Rig, context: &Context, readings: &mut Readings) -> Result<()> {
        let guest = *context.guests.first().ok_or_else(|| LabError::Invalid("rt-guest: no guest".into()))?;
        let OnCpus { cpus: Cpus(cpus) } = context.params(self.name())?;
        let threads = trace::threads(rig)?.into_iter().nth(guest).map(|guest| guest.tids).unwrap_or_default();
        if threads.len() != cpus.len() {
            return Err(unmet(format!("{} vCPU threads for {} CPUs", threads.len(), cpus.len())));
        }
        for (thread, cpu) in threads.iter().zip(&cpus) {
            shell(rig, Target::Host, &format!("taskset -pc {cpu} {thread}"))?;
        }
        let watched = threads[threads.len() - 1];
        let load = [Service::start(rig, Target::Host, DRAIN)?, Service::start(rig, Target::Host, ["sh", "-c", CHURN])?];
        rig.sleep(BEFORE)?;
        let watch = Watch::of_thread(rig, watched)?;
        let begun = rig.now();
        let told = inside(rig, guest, cpus.len() - 1, context.seconds / 2.0, readings);
        let minutes = (rig.now() - begun).as_secs_f64() / 60.0;
        let rows = watch.end(rig)?;
        load.into_iter().try_for_each(Service::stop)?;
        shell(rig, Target::Host, CHURNED)?;
        told?;
        tell(&rows, minutes, readings);
        Ok(())
    }
}

/// cyclictest and oslat on a vCPU, for so many seconds each.
fn inside(rig: &dyn Rig, guest: usize, vcpu: usize, seconds: f64, readings: &mut Readings) -> Result<()> {
    let seconds = seconds.ceil();
    let limit = Duration::from_secs_f64(seconds + PATIENCE);
    let run = |line: &str| -> Result<String> {
        let outcome = rig.run(Target::Guest(guest), Command::shell(line).within(limit))?;
        let said = String::from_utf8_lossy(&outcome.stderr).trim().to_owned();
        if outcome.ok() {
            Ok(outcome.text())
        } else {
            Err(unmet(format!("'{line}' ended with {}: {said}", outcome.status)))
        }
    };
    let text = run(&format!("cyclictest -q -m -t1 -a{vcpu} -p80 -i2000 -D{seconds}"))?;
    let figure = |name: &str| {
        let rest = text.rsplit_once(name).ok_or_else(|| unmet(format!("cyclictest told no {name} {text}")))?.1;
        let word = rest.split_whitespace().next().unwrap_or_default();
        word.parse::<f64>().map_err(|_| unmet(format!("cyclictest told no number behind {name} {text}")))
    };
    readings.push("cyclictest_avg", "us", Lower, figure("Avg:")?);
    readings.push("cyclictest_max", "us", Lower, figure("Max:")?);
    let text = run(&format!("oslat --cpu-list {vcpu} --cpu-main-thread 0 --rtprio 80 --duration {seconds}s"))?;
    let line = text.lines().find(|line| line.trim_start().starts_with("Maximum:"));
    let word = line.and_then(|line| line.split_whitespace().nth(1));
    let max = word
        .and_then(|word| word.parse::<f64>().ok())
        .ok_or_else(|| unmet(format!("oslat told no maximum: {text}")))?;
    readings.push("oslat_max", "us", Lower, max);
    Ok(())
}

/// Interruptions by kind, and of those how many have a remedy.
fn tell(rows: &[Row], minutes: f64, readings: &mut Readings) {
    for (kind, metric) in KINDS {
        readings.push(metric, "1/min", Lower, count(rows, |row| row.kind == kind) / minutes);
    }
    for row in rows.iter().filter(|row| row.remedy.is_some()) {
        tracing::info!("has a remedy: {row:?}");
    }
    readings.push("with_remedy", "1/min", Lower, count(rows, |row| row.remedy.is_some()) / minutes);
    readings.push("all", "1/min", Lower, count(rows, |_| true) / minutes);
}
