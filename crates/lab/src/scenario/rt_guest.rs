//! A real-time guest: its second vCPU is alone on an isolated CPU. Who interrupts that CPU on the host, and how late are the
//! guest's timers?
//!
//! In the guest cyclictest and then oslat run on that vCPU, half of `seconds` each, and a loop that counts, a quarter of it; on
//! the host caches are drained and cgroups come and go meanwhile. `params`: `cpus`, the host's CPUs for the guest's vCPUs in
//! their order, the last one isolated.
//!
//! `rt-host`: the same tools and the same disturbances on the host itself, on the last of `cpus`, and no guest.

use std::time::Duration;

use entrain_lab_machine::machine::{Command, Target};
use entrain_lab_machine::{LabError, Result};

use super::interface::{Context, Scenario};
use super::isolated::{Cpus, OnCpus, Row, Watch, count};
use super::patience::{CHURN, CHURNED};
use super::product::{Service, shell, unmet};
use super::trace;
use crate::load::Printed;
use crate::metric::Better::{Higher, Lower};
use crate::reading::Readings;
use crate::rig::Rig;

/// See the module.
pub(super) struct RtGuest;
/// See the module.
pub(super) struct RtHost;

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
        let vcpu = cpus.len() - 1;
        disturbed(rig, |rig| {
            let watch = Watch::of_thread(rig, watched)?;
            let begun = rig.now();
            let told = tools(rig, Target::Guest(guest), vcpu, context.seconds, readings);
            let minutes = (rig.now() - begun).as_secs_f64() / 60.0;
            let rows = watch.end(rig)?;
            told?;
            tell(&rows, minutes, readings);
            Ok(())
        })
    }
}

impl Scenario for RtHost {
    fn name(&self) -> &'static str {
        "rt-host"
    }

    fn run(&self, rig: &dyn Rig, context: &Context, readings: &mut Readings) -> Result<()> {
        let OnCpus { cpus: Cpus(cpus) } = context.params(self.name())?;
        let cpu = *cpus.last().ok_or_else(|| LabError::Invalid("rt-host: no CPU".into()))?;
        disturbed(rig, |rig| tools(rig, Target::Host, cpu as usize, context.seconds, readings))
    }
}

/// Measures while the host drains caches and makes and removes cgroups.
fn disturbed(rig: &dyn Rig, measure: impl FnOnce(&dyn Rig) -> Result<()>) -> Result<()> {
    let load = [Service::start(rig, Target::Host, DRAIN)?, Service::start(rig, Target::Host, ["sh", "-c", CHURN])?];
    rig.sleep(BEFORE)?;
    let told = measure(rig);
    load.into_iter().try_for_each(Service::stop)?;
    shell(rig, Target::Host, CHURNED)?;
    told
}

/// cyclictest and oslat on a CPU, for half of the time each, and then a loop that counts, for a quarter.
fn tools(rig: &dyn Rig, target: Target, cpu: usize, seconds: f64, readings: &mut Readings) -> Result<()> {
    let half = (seconds / 2.0).ceil();
    let run = |line: &str| -> Result<String> {
        let limit = Duration::from_secs_f64(half + PATIENCE);
        let outcome = rig.run(target, Command::shell(line).within(limit))?;
        let said = String::from_utf8_lossy(&outcome.stderr).trim().to_owned();
        if outcome.ok() {
            Ok(outcome.text())
        } else {
            Err(unmet(format!("'{line}' ended with {}: {said}", outcome.status)))
        }
    };
    let line = format!("cyclictest -q -m -t1 -a{cpu} -p80 -i2000 -D{half} -h{HISTOGRAM} >/tmp/cyclictest || exit");
    // Most lines of the histogram are zeros.
    let text = run(&format!("{line}; awk '/^#/ || $2 > 0' /tmp/cyclictest; rm /tmp/cyclictest"))?;
    let latency = Latency::read(&text).ok_or_else(|| unmet(format!("cyclictest told no latencies: {text}")))?;
    readings.push("cyclictest_p50", "us", Lower, latency.quantile(0.5));
    readings.push("cyclictest_p99", "us", Lower, latency.quantile(0.99));
    readings.push("cyclictest_avg", "us", Lower, latency.average);
    readings.push("cyclictest_max", "us", Lower, latency.max);
    let text = run(&format!("oslat --cpu-list {cpu} --cpu-main-thread 0 --rtprio 80 --duration {half}s"))?;
    let line = text.lines().find(|line| line.trim_start().starts_with("Maximum:"));
    let word = line.and_then(|line| line.split_whitespace().nth(1));
    let max = word
        .and_then(|word| word.parse::<f64>().ok())
        .ok_or_else(|| unmet(format!("oslat told no maximum: {text}")))?;
    readings.push("oslat_max", "us", Lower, max);
    let mask = 1_u64 << cpu;
    let quarter = (half / 2.0).ceil();
    let text = run(&format!("taskset {mask:x} entrain-load spin --json --threads 1 --seconds {quarter}"))?;
    let printed = Printed::parse(&text).map_err(|error| unmet(error.to_string()))?;
    let rate = printed.figure("iterations_per_s", "1/s").map_err(|error| unmet(error.to_string()))?;
    readings.push("iterations_per_s", "1/s", Higher, rate);
    Ok(())
}

/// Bins of 1 us; what is later counts as the last one's.
const HISTOGRAM: u32 = 50_000;

/// What cyclictest told of one thread.
#[derive(Debug)]
struct Latency {
    /// Microseconds, and how many were as late, in order.
    bins: Vec<(f64, u64)>,
    average: f64,
    max: f64,
}

impl Latency {
    fn read(text: &str) -> Option<Self> {
        let figure = |name: &str| {
            let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
            rest.split_whitespace().next()?.parse::<f64>().ok()
        };
        let bin = |line: &str| {
            let (us, count) = line.trim().split_once(char::is_whitespace)?;
            Some((us.parse().ok()?, count.trim().parse().ok()?))
        };
        let mut bins: Vec<(f64, u64)> = text.lines().filter(|line| !line.starts_with('#')).filter_map(bin).collect();
        let max = figure("# Max Latencies:")?;
        let beyond = figure("# Histogram Overflows:").unwrap_or(0.0) as u64;
        if beyond > 0 {
            bins.push((max, beyond));
        }
        (!bins.is_empty()).then_some(Self { bins, average: figure("# Avg Latencies:")?, max })
    }

    /// The latency that this share of the wake-ups did not exceed.
    fn quantile(&self, share: f64) -> f64 {
        let all: u64 = self.bins.iter().map(|bin| bin.1).sum();
        let wanted = (all as f64 * share).ceil().max(1.0) as u64;
        let mut seen = 0;
        let found = self.bins.iter().find(|bin| {
            seen += bin.1;
            seen >= wanted
        });
        found.map_or(self.max, |bin| bin.0)
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cyclictests_histogram_is_read() {
        let text = "# /dev/cpu_dma_latency set to 0us\n# Histogram\n000040 000002\n000058 000097\n001200 000000\n\
                    # Total: 000000100\n# Min Latencies: 00040\n# Avg Latencies: 00061\n# Max Latencies: 61234\n\
                    # Histogram Overflows: 00001\n# Histogram Overflow at cycle number:\n# Thread 0: 00033\n";
        let latency = Latency::read(text).unwrap();
        assert_eq!((latency.quantile(0.5), latency.quantile(0.99), latency.quantile(1.0)), (58.0, 58.0, 61_234.0));
        assert_eq!((latency.average, latency.max), (61.0, 61_234.0));
        assert!(Latency::read("cyclictest: no such option\n").is_none());
    }
}
