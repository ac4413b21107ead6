//! Who interrupts isolated CPUs, by `entrain isolate watch`.
//!
//! `quiet`: what drains from another CPU cost busy isolated CPUs. `params`: `operation` and `of` as for `drain`; `times` and
//! `pause_ms`, how many drains and the time between them; `cpus`, the isolated ones.
//!
//! `attribution`: interruptions of several kinds are made on purpose, a known number of each by a task with a known name:
//! the share of them that is found with the right cause and sender. `params`: `cpus`, two of them; `times`.

use std::time::Duration;

use entrain_lab_machine::{LabError, Result};
use serde::Deserialize;

use super::interface::{Context, Scenario};
use super::isolated::{Cpus, Hold, Row, Watch, count, tool};
use super::product::unmet;
use crate::metric::Better::{Higher, Lower};
use crate::reading::Readings;
use crate::rig::Rig;

/// See the module.
pub(super) struct Quiet;
/// See the module.
pub(super) struct Attribution;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct QuietParams {
    operation: String,
    of: Option<String>,
    times: u32,
    #[serde(default = "tenth_of_a_second")]
    pause_ms: u32,
    #[serde(default)]
    cpus: Cpus,
}

fn tenth_of_a_second() -> u32 {
    100
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AttributionParams {
    cpus: Cpus,
    times: u32,
}

/// How `entrain-load isolated drain` calls itself.
const DRAINER: &str = "entrain-drain";
/// The busy tasks need a moment until their CPUs have nothing else to do.
const BEFORE: Duration = Duration::from_secs(2);
/// A drain may take so long on a busy computer, s.
const PATIENCE: f64 = 120.0;

impl Scenario for Quiet {
    fn name(&self) -> &'static str {
        "quiet"
    }

    fn run(&self, rig: &dyn Rig, context: &Context, readings: &mut Readings) -> Result<()> {
        let params: QuietParams = context.params(self.name())?;
        let (times, pause) = (params.times.to_string(), params.pause_ms.to_string());
        let mut arguments = vec!["drain", &params.operation, "--times", &times, "--pause", &pause];
        arguments.extend(params.of.iter().flat_map(|of| ["--of", of]));
        let life = context.seconds + PATIENCE;
        // Before the CPUs are busy: on an emulated machine that is, it took over 20 s to start.
        let watch = Watch::start(rig, &params.cpus.to_string())?;
        let hold = |cpu: &u32| Hold::start(rig, *cpu, life, &["--touch", "20"]);
        let holds = params.cpus.0.iter().map(hold).collect::<Result<Vec<_>>>()?;
        rig.sleep(BEFORE)?;
        let drained = tool(rig, &arguments, Duration::from_secs_f64(life));
        let rows = watch.end(rig)?;
        holds.into_iter().try_for_each(Hold::stop)?;
        drained?;
        tell(&rows, readings);
        Ok(())
    }
}

/// What the drains caused. Compaction moves pages, those of the busy tasks too: that takes IPIs that flush TLBs, and one that
/// wakes a task that wanted such a page meanwhile. So does a lock that both want. No drain can do without: they are told apart.
fn tell(rows: &[Row], readings: &mut Readings) {
    let ipi = |row: &Row| matches!(row.kind.as_str(), "call" | "resched");
    let stack = |row: &Row, parts: &[&str]| row.stack.iter().any(|frame| parts.iter().any(|part| frame.contains(part)));
    let flush = |row: &Row| row.cause.contains("flush_tlb");
    // Not of work items: what wakes their thread is no lock.
    let waited =
        |row: &Row| stack(row, &["folio_wake_bit", "rt_spin_unlock", "rt_mutex"]) && !stack(row, &["queue_work"]);
    // Who waits for a work item queues a second one behind it; that has no sender of its own.
    let barrier = |row: &Row| row.cause.starts_with("wq_barrier_func");
    let mine = |row: &Row| row.sender == DRAINER;
    readings.push("work", "1", Lower, count(rows, |row| row.kind == "work" && (mine(row) || barrier(row))));
    let kworker = |row: &Row| row.kind == "kthread" && row.cause.starts_with("kworker");
    readings.push("preemptions", "1", Lower, count(rows, kworker));
    readings.push("ipis", "1", Lower, count(rows, |row| ipi(row) && mine(row) && !flush(row) && !waited(row)));
    readings.push("wake_ipis", "1", Lower, count(rows, |row| ipi(row) && mine(row) && waited(row)));
    readings.push("tlb_ipis", "1", Lower, count(rows, |row| ipi(row) && flush(row)));
    readings.push("other_ipis", "1", Lower, count(rows, |row| ipi(row) && !mine(row) && !flush(row)));
    readings.push("ticks", "1", Lower, count(rows, |row| row.kind == "timer"));
    readings.push("all", "1", Lower, count(rows, |_| true));
}

impl Scenario for Attribution {
    fn name(&self) -> &'static str {
        "attribution"
    }

    fn run(&self, rig: &dyn Rig, context: &Context, readings: &mut Readings) -> Result<()> {
        let AttributionParams { cpus, times } = context.params(self.name())?;
        let [cpu, other] = cpus.0[..] else {
            return Err(LabError::Invalid(format!("attribution: params: cpus must be two, not {cpus}")));
        };
        for kind in KINDS {
            let (cpu, other, times) = (cpu.to_string(), other.to_string(), times.to_string());
            let watch = Watch::start(rig, &cpus.to_string())?;
            let arguments = ["inject", kind.name, "--cpu", &cpu, "--other", &other, "--times", &times];
            let printed = tool(rig, &arguments, Duration::from_secs(60));
            let rows = watch.end(rig)?;
            let made = printed?.figure("injected", "1").map_err(|error| unmet(error.to_string()))?;
            let found = kind.found(&rows);
            tracing::info!("{}: {made} made, {found} found", kind.name);
            readings.push(kind.metric, "%", Higher, 100.0 * found / made);
        }
        Ok(())
    }
}

/// One kind of interruption, and how it is recognised.
struct Kind {
    /// As `entrain-load isolated inject` and, behind `inject-`, its task are called.
    name: &'static str,
    metric: &'static str,
    /// As `entrain isolate watch` calls it.
    row: &'static str,
    /// Begin of its cause there.
    cause: &'static str,
}

const KINDS: [Kind; 5] = [
    Kind { name: "work", metric: "work_attributed", row: "work", cause: "refresh_vm_stats" },
    Kind { name: "call", metric: "ipi_call_attributed", row: "call", cause: "ipi_mb" },
    Kind { name: "resched", metric: "ipi_resched_attributed", row: "resched", cause: "reschedule" },
    Kind { name: "task", metric: "task_attributed", row: "task", cause: "inject-woken" },
    Kind { name: "kthread", metric: "kthread_attributed", row: "kthread", cause: "migration/" },
];

impl Kind {
    fn found(&self, rows: &[Row]) -> f64 {
        let sender = format!("inject-{}", self.name);
        count(rows, |row| row.kind == self.row && row.cause.starts_with(self.cause) && row.sender == sender)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(kind: &str, cause: &str, sender: &str, count: u64) -> Row {
        Row { kind: kind.into(), cause: cause.into(), sender: sender.into(), remedy: None, count, stack: Vec::new() }
    }

    #[test]
    fn what_drains_cause_is_told_apart() {
        let rows = [
            row("work", "lru_add_drain_per_cpu (mm_percpu_wq)", DRAINER, 50),
            row("work", "wq_barrier_func (mm_percpu_wq)", "", 31),
            row("work", "vmstat_update (mm_percpu_wq)", "kworker/0:1", 7),
            row("kthread", "kworker/2:1", DRAINER, 50),
            row("kthread", "rcuc/2", "", 3),
            row("resched", "reschedule", DRAINER, 52),
            row("call", "flush_tlb_func", DRAINER, 9),
            row("call", "ipi_mb", "x", 2),
            Row { stack: vec!["folio_wake_bit".into()], ..row("resched", "reschedule", DRAINER, 4) },
            row("timer", "tick", "", 100),
        ];
        let mut readings = Readings::default();
        tell(&rows, &mut readings);
        let value = |name: &str| readings.iter().find(|one| one.metric == name).unwrap().value;
        assert_eq!((value("work"), value("preemptions"), value("ipis")), (81.0, 50.0, 52.0));
        assert_eq!((value("wake_ipis"), value("tlb_ipis"), value("other_ipis")), (4.0, 9.0, 2.0));
        assert_eq!((value("ticks"), value("all")), (100.0, 308.0));
    }

    #[test]
    fn only_the_right_cause_and_sender_count() {
        let rows = [
            row("task", "inject-woken", "inject-task", 20),
            row("task", "inject-woken", "", 4),
            row("task", "sh", "inject-task", 4),
            row("resched", "reschedule", "inject-task", 20),
        ];
        assert_eq!(KINDS[3].found(&rows), 20.0);
        assert_eq!(KINDS[2].found(&rows), 0.0);
    }
}
