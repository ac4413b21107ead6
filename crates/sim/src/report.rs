//! What a run has shown.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use comfy_table::{CellAlignment, Table, presets};

use crate::costs::Costs;
use crate::kernel::counts::{Count, Kind};
use crate::scenario::{Arm, Measured, Setup};
use crate::world::{Violation, World};

/// One kind of task.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Row {
    /// Which tasks.
    pub name: String,
    /// How many.
    pub tasks: usize,
    /// Operations a second, all of them together.
    pub ops: f64,
    /// CPU time on their machine, in CPUs.
    pub cpus: f64,
    /// Longest wait for a CPU of their machine, ms.
    pub max_wait_ms: f64,
    /// From wake-up to running: median, 99th percentile, worst, µs.
    pub wake_us: Option<[f64; 3]>,
}

/// One run.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Outcome {
    /// Of the scenario.
    pub scenario: String,
    /// Who scheduled what.
    pub arm: Arm,
    /// What it was drawn from.
    pub seed: u64,
    /// Simulated time, s.
    pub seconds: f64,
    /// Events.
    pub events: u64,
    /// Digest of all that happened: the same for the same seed, whatever ran beside it.
    pub trace: String,
    /// What things cost in it.
    pub costs: Costs,
    /// Context switches on the host, 1/s.
    pub switches: f64,
    /// The same in all guests.
    pub guest_switches: f64,
    /// Directed yields that were followed, 1/s.
    pub yields: f64,
    /// The longest that a task of the host waited while a CPU that it may use idled, µs.
    pub longest_idle_us: f64,
    /// How often each rule was broken.
    pub broken: BTreeMap<String, u64>,
    /// The first of them.
    pub violations: Vec<Violation>,
    /// What the schedulers' code did: of the host, of all guests.
    pub counts: [Vec<(Kind, Count)>; 2],
    /// What of the world was not as it was asked for.
    pub notes: Vec<String>,
    /// What was measured.
    pub rows: Vec<Row>,
}

impl Outcome {
    /// Runs a scenario to its end.
    pub fn of(name: &str, arm: Arm, seed: u64, setup: Setup) -> Self {
        let Setup { mut world, end, measured } = setup;
        world.run(end);
        Self::read(name, arm, seed, &world, &measured)
    }

    /// Reads a world that has run.
    pub fn read(name: &str, arm: Arm, seed: u64, world: &World, measured: &[Measured]) -> Self {
        let seconds = world.now as f64 / 1e9;
        let mut switches = world.machines.iter().map(|machine| machine.kernel.switches() as f64 / seconds);
        let yields: u64 = world.vms.iter().map(|vm| vm.yields).sum();
        Self {
            scenario: name.to_owned(),
            arm,
            seed,
            seconds,
            events: world.events,
            trace: format!("{:016x}", world.trace),
            costs: world.costs(),
            switches: switches.next().unwrap_or(0.0),
            guest_switches: switches.sum(),
            yields: yields as f64 / seconds,
            longest_idle_us: world.checks.longest_idle as f64 / 1e3,
            broken: world.checks.counts.iter().map(|(rule, count)| ((*rule).to_owned(), *count)).collect(),
            violations: world.checks.found.clone(),
            counts: counts(world),
            notes: world.notes.clone(),
            rows: measured.iter().map(|measured| row(world, measured, seconds)).collect(),
        }
    }

    /// What the schedulers' code did for each event, for the terminal.
    pub fn counts_table(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_header(["for each", "", "a second", "operations", "helpers", "look-ups", "atomics", "ns"]);
        for (side, counts) in ["host", "guests"].into_iter().zip(&self.counts) {
            for (kind, count) in counts
                .iter()
                .filter(|(kind, count)| count.events > 0 && (count.operations > 0 || *kind == Kind::Deferred))
            {
                let Costs { operation, helper, .. } = self.costs;
                let ns = count.operations * operation + (count.helpers + count.lookups) * helper;
                let of = |sum: u64| format!("{:.1}", count.per_event(sum));
                table.add_row([
                    side.to_owned(),
                    format!("{kind:?}").to_lowercase(),
                    format!("{:.0}", count.events as f64 / self.seconds),
                    of(count.operations),
                    of(count.helpers),
                    of(count.lookups),
                    of(count.atomics),
                    format!("{:.0}", count.per_event(ns)),
                ]);
            }
        }
        for column in table.column_iter_mut().skip(2) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table.to_string()
    }

    /// A table for the terminal.
    pub fn table(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_header(["tasks", "", "ops/s", "CPUs", "wait max, ms", "wake p50, µs", "p99", "max"]);
        for row in &self.rows {
            let wake = |at: usize| row.wake_us.map_or(String::new(), |wake| format!("{:.0}", wake[at]));
            table.add_row([
                row.name.clone(),
                format!("{}", row.tasks),
                format!("{:.0}", row.ops),
                format!("{:.3}", row.cpus),
                format!("{:.1}", row.max_wait_ms),
                wake(0),
                wake(1),
                wake(2),
            ]);
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        let mut text = table.to_string();
        let _ = write!(
            text,
            "\n{} events in {:.1} s, trace {}; host: {:.0} switches/s, {:.0} yields/s; guests: {:.0} switches/s",
            self.events, self.seconds, self.trace, self.switches, self.yields, self.guest_switches
        );
        for note in &self.notes {
            let _ = write!(text, "\nnote: {note}");
        }
        for (rule, count) in &self.broken {
            let _ = write!(text, "\nbroken: {rule}, {count} times");
        }
        for violation in self.violations.iter().take(5) {
            let _ = write!(
                text,
                "\n  at {:.6} s on {}: {}",
                violation.at as f64 / 1e9,
                if violation.machine == 0 { "the host".to_owned() } else { format!("guest {}", violation.machine - 1) },
                violation.what
            );
        }
        text
    }
}

fn counts(world: &World) -> [Vec<(Kind, Count)>; 2] {
    let (host, guests) = world.machines.split_at(1);
    [host, guests].map(|machines| {
        Kind::ALL
            .into_iter()
            .map(|kind| (kind, machines.iter().map(|machine| machine.kernel.counts.of(kind)).sum()))
            .collect()
    })
}

fn row(world: &World, measured: &Measured, seconds: f64) -> Row {
    let machine = &world.machines[measured.machine.0 as usize];
    let states = || measured.tasks.iter().map(|task| &machine.tasks[task.0 as usize]);
    let tasks = || measured.tasks.iter().map(|task| machine.kernel.task(*task));
    let wakes = measured.latencies(world);
    let at = |part: f64| f64::from(wakes[((wakes.len() - 1) as f64 * part) as usize]) / 1e3;
    Row {
        name: measured.name.clone(),
        tasks: measured.tasks.len(),
        ops: states().map(|state| state.ops).sum::<u64>() as f64 / seconds,
        cpus: tasks().map(|task| task.sum_exec).sum::<u64>() as f64 / 1e9 / seconds,
        max_wait_ms: tasks().map(|task| task.max_wait).max().unwrap_or(0) as f64 / 1e6,
        wake_us: (wakes.len() > measured.tasks.len()).then(|| [at(0.5), at(0.99), at(1.0)]),
    }
}
