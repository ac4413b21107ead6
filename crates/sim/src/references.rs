//! The machines of the published works that Entrain builds on, and their figures: published beside predicted.
//!
//! What the loads' steps take is calibrated on the baseline rows alone (`Kind::Baseline`): that a clock of such a machine
//! without contention gives what was published is no merit. All other rows are predicted.

use comfy_table::{CellAlignment, Table, presets};
use entrain_html::figure::number;

use crate::accuracy::{Totals, Verdict, same_direction};
use crate::costs::Costs;
use crate::kernel::topology::Shape;
use crate::program::Step::{Compute, Done, Hold, Lock, Post, Sleep, Unlock, Until, Wait};
use crate::program::Time::{Fixed, Mean};
use crate::program::{MS, US};
use crate::scenario::{Arm, Measured, host, tasks};
use crate::world::{Arch, MachineId, MachineSpec, VmSpec, World};

/// What things cost on these machines: they were servers. It is what a world has of itself.
pub const COSTS: Costs = Costs::HARDWARE;
/// What chance is drawn from.
pub const SEED: u64 = 1;

/// What a row is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// The loads are calibrated on it.
    Baseline,
    /// Predicted, and was published.
    Predicted,
    /// What Entrain does there: nothing is published of it, and the figure beside it is that of the work's own patch.
    Entrain,
}

impl Kind {
    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Baseline => "baseline",
            Self::Predicted => "predicted",
            Self::Entrain => "entrain",
        }
    }
}

/// One figure.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Row {
    /// The work, and the machine.
    pub what: String,
    /// What is measured.
    pub metric: String,
    /// See [`Kind`].
    pub kind: Kind,
    /// What was published.
    pub published: f64,
    /// What the simulator says.
    pub predicted: f64,
    /// How far it is from the case that the work compares it with, if it compares it with one.
    pub change: Option<Change>,
}

/// A figure by that of another case.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Change {
    /// The other case.
    pub from: String,
    /// The ratio that was published.
    pub published: f64,
    /// The simulator's.
    pub predicted: f64,
}

impl Row {
    fn new(what: &str, metric: &str, kind: Kind, published: f64, predicted: f64) -> Self {
        Self { what: what.to_owned(), metric: metric.to_owned(), kind, published, predicted, change: None }
    }

    /// The row as one that is compared with another case, which this other row is of.
    fn against(self, case: &str, other: &Self) -> Self {
        let (published, predicted) = (self.published / other.published, self.predicted / other.predicted);
        Self { change: Some(Change { from: case.to_owned(), published, predicted }), ..self }
    }

    /// How it came out.
    pub fn verdict(&self) -> Verdict {
        let sign = self.change.as_ref().map(|change| same_direction(change.published, change.predicted));
        Verdict { sign, error: self.predicted / self.published - 1.0 }
    }
}

/// How many rows of a kind came out how.
pub fn totals(rows: &[Row], kind: Kind) -> Totals {
    rows.iter().filter(|row| row.kind == kind).map(Row::verdict).collect()
}

fn vm(world: &mut World, vcpus: u32, arm: Arm, arch: Arch) -> MachineId {
    world.add_vm(&VmSpec {
        guest: MachineSpec { shape: Shape::flat(vcpus), policy: arm.guest, tunables: Vec::new() },
        group: crate::kernel::Kernel::ROOT,
        paired: arm.paired,
        arch,
        pins: None,
    })
}

fn ops(world: &World, measured: &[Measured]) -> f64 {
    let of = |these: &Measured| -> u64 {
        let machine = &world.machines[these.machine.0 as usize];
        these.tasks.iter().map(|task| machine.tasks[task.0 as usize].ops).sum()
    };
    measured.iter().map(of).sum::<u64>() as f64 / (world.now as f64 / 1e9)
}

fn quantile_us(waits: &[u32], part: f64) -> f64 {
    waits.get(((waits.len().max(1) - 1) as f64 * part) as usize).map_or(f64::NAN, |ns| f64::from(*ns) / 1e3)
}

/// Reference 1: schbench `-m 20 -t 2` in a guest of 40 vCPUs on two sockets of 22 cores with four threads, alone or beside
/// two guests with `-m 10 -t 2`. Each worker works 30 ms and sleeps 30 ms; its wake-ups by timer are counted, too, as
/// those by its message thread are.
fn schbench(arm: Arm, noisy: u32) -> Vec<u32> {
    let mut world = host(SEED, Shape { nodes: 2, llcs: 1, cores: 22, threads: 4 }, arm);
    let guest = |world: &mut World, arm: Arm, messages: u32| {
        // A POWER9's vCPU is halted without polling first; its hypervisor traps no spinning.
        let m = vm(world, 40, arm, Arch::Untrapped);
        let mut workers = Vec::new();
        for message in 0..messages {
            let (posted, woken) = (2 * message, 2 * message + 1);
            tasks(world, m, "message", 1, &[Wait(posted), Compute(Fixed(2 * US)), Post(woken)]);
            let steps = [Sleep(Fixed(30 * MS)), Post(posted), Wait(woken), Compute(Fixed(30 * MS)), Done];
            workers.extend(tasks(world, m, "worker", 2, &steps).tasks);
        }
        Measured { name: "worker".to_owned(), machine: m, tasks: workers }
    };
    let measured = guest(&mut world, arm, 20);
    // The noise runs the plain kernel whatever the first guest runs.
    let plain = Arm { guest: crate::world::Policy::Eevdf, paired: false, ..arm };
    for _ in 0..noisy {
        guest(&mut world, plain, 10);
    }
    world.run(6_000 * MS);
    measured.latencies(&world)
}

/// Reference 3: dbench in so many guests of so many vCPUs on 40 cores with two threads, with the pause filter or without.
/// Operations a second, and context switches of the host a second.
fn dbench(arm: Arm, guests: u32, vcpus: u32, arch: Arch) -> (f64, f64) {
    let mut world = host(SEED, Shape { nodes: 4, llcs: 1, cores: 10, threads: 2 }, arm);
    let client = [Compute(Mean(20 * US)), Lock(0), Hold(Mean(500)), Unlock(0), Done];
    let measured: Vec<_> = (0..guests)
        .map(|_| {
            let m = vm(&mut world, vcpus, arm, arch);
            tasks(&mut world, m, "client", vcpus, &client)
        })
        .collect();
    world.run(300 * MS);
    let switches = world.machines[0].kernel.switches();
    (ops(&world, &measured), switches as f64 / (world.now as f64 / 1e9))
}

/// Reference 4: a 2 ms clock in a guest of 8 vCPUs that fights for locks, on six cores with two threads that a second
/// such guest wants as well. The worst delay, ms.
fn clock(arm: Arm) -> f64 {
    let mut world = host(SEED, Shape { nodes: 1, llcs: 1, cores: 6, threads: 2 }, arm);
    let mut clocks = Vec::new();
    for _ in 0..3 {
        let m = vm(&mut world, 8, arm, Arch::Amd);
        tasks(&mut world, m, "lock", 8, &[Compute(Mean(10 * US)), Lock(0), Hold(Mean(2 * US)), Unlock(0), Done]);
        clocks.push(tasks(&mut world, m, "clock", 1, &[Until(2 * MS), Compute(Fixed(5 * US)), Done]));
    }
    world.run(4_000 * MS);
    f64::from(*clocks[0].latencies(&world).last().expect("a clock ticks")) / 1e6
}

/// All rows.
pub fn rows() -> Vec<Row> {
    use Arch::{Amd, Untrapped};
    use Kind::{Baseline, Entrain, Predicted};
    let mut rows = Vec::new();
    for (what, noisy, stock, patched) in [
        ("1: schbench in 40 vCPUs, alone", 0, [86.0, 2572.0], [386.0, 741.0]),
        ("1: the same beside two noisy guests", 2, [289.0, 17_760.0], [281.0, 15_824.0]),
    ] {
        let [plain, entrain] = [Arm::STOCK, Arm::BOTH].map(|arm| {
            let waits = schbench(arm, noisy);
            [0.5, 0.99].map(|part| quantile_us(&waits, part))
        });
        for (at, metric) in ["wake-up p50, µs", "wake-up p99, µs"].into_iter().enumerate() {
            let row = Row::new(what, metric, Predicted, stock[at], plain[at]);
            // The rows of the guest that is alone came first, in the same order.
            rows.push(if noisy > 0 { row.against("alone", &rows[2 * at]) } else { row });
            rows.push(Row::new(what, metric, Entrain, patched[at], entrain[at]));
        }
    }
    // Throughputs are parts of what eight guests of ten vCPUs reach, 22,945 MB/s, for their unit is dbench's.
    let (full, _) = dbench(Arm::STOCK, 8, 10, Arch::Amd);
    let throughput = |what: &str, kind, published: f64, guests, vcpus, arch, arm| {
        let (ops, switches) = dbench(arm, guests, vcpus, arch);
        (Row::new(what, "throughput, of 8×10", kind, published / 22_945.0, ops / full), switches)
    };
    let (uncontended, filtered) = (Row::new("8×10", "", Baseline, 1.0, 1.0), "with PLE");
    rows.push(throughput("3: 8×10 vCPUs, PLE off", Baseline, 23_184.0, 8, 10, Untrapped, Arm::STOCK).0);
    rows.push(throughput("3: 4×20 vCPUs, PLE on", Baseline, 22_736.0, 4, 20, Amd, Arm::STOCK).0);
    rows.push(throughput("3: 4×20 vCPUs, PLE off", Baseline, 23_377.0, 4, 20, Untrapped, Arm::STOCK).0);
    let (with, _) = throughput("3: 16×10 vCPUs, PLE on", Predicted, 6_287.0, 16, 10, Amd, Arm::STOCK);
    let (without, _) = throughput("3: 16×10 vCPUs, PLE off", Predicted, 1_849.0, 16, 10, Untrapped, Arm::STOCK);
    let without = without.against(filtered, &with);
    rows.extend([with.against("8×10 vCPUs", &uncontended), without]);
    let (with, on) = throughput("3: 8×20 vCPUs, PLE on", Predicted, 1_965.0, 8, 20, Amd, Arm::STOCK);
    let (without, _) = throughput("3: 8×20 vCPUs, PLE off", Predicted, 226.0, 8, 20, Untrapped, Arm::STOCK);
    let (fewer, less) = throughput("3: 8×20 vCPUs, 9 of each unplugged", Predicted, 22_534.0, 8, 11, Amd, Arm::STOCK);
    let (without, fewer) = (without.against(filtered, &with), fewer.against("with all", &with));
    rows.extend([with.against("8×10 vCPUs", &uncontended), without, fewer]);
    let (row, entrain) = throughput("3: 8×20 vCPUs, Entrain on both sides", Entrain, 22_534.0, 8, 20, Amd, Arm::BOTH);
    rows.push(row);
    let (row, host) = throughput("3: 8×20 vCPUs, Entrain on the host", Entrain, 22_534.0, 8, 20, Amd, Arm::HOST);
    rows.push(row);
    const SWITCHES: &str = "switches of the host, 1/s";
    let all = Row::new("3: 8×20 vCPUs, PLE on", SWITCHES, Predicted, 2_579_228.0, on);
    let fewer = Row::new("3: 8×20 vCPUs, 9 of each unplugged", SWITCHES, Predicted, 38_768.0, less);
    let fewer = fewer.against("with all", &all);
    rows.extend([all, fewer]);
    rows.push(Row::new("3: 8×20 vCPUs, Entrain on both sides", SWITCHES, Entrain, 38_768.0, entrain));
    rows.push(Row::new("3: 8×20 vCPUs, Entrain on the host", SWITCHES, Entrain, 38_768.0, host));
    const WORST: &str = "worst delay, ms";
    rows.push(Row::new("4: a 2 ms clock in 8 vCPUs", WORST, Predicted, 400.0, clock(Arm::STOCK)));
    rows.push(Row::new("4: a 2 ms clock in 8 vCPUs, Entrain on the host", WORST, Entrain, 6.0, clock(Arm::HOST)));
    rows.push(Row::new("4: a 2 ms clock in 8 vCPUs, Entrain on both sides", WORST, Entrain, 6.0, clock(Arm::BOTH)));
    rows
}

/// The rows as a table, and how many of those that predict something are right.
pub fn table(rows: &[Row]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["reference and machine", "figure", "row", "published", "predicted", "error", "sign"]);
    for row in rows {
        let verdict = row.verdict();
        table.add_row([
            row.what.clone(),
            row.metric.clone(),
            row.kind.name().to_owned(),
            number(row.published),
            number(row.predicted),
            if row.kind == Kind::Entrain { String::new() } else { format!("{:+.0} %", verdict.error * 100.0) },
            verdict.sign.map_or("", |right| if right { "right" } else { "WRONG" }).to_owned(),
        ]);
    }
    for column in table.column_iter_mut().skip(3) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    format!("{table}\npredicted, {}", totals(rows, Kind::Predicted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_worlds_have_the_costs_that_it_names() {
        assert_eq!(host(SEED, Shape::flat(1), Arm::STOCK).costs(), COSTS);
    }

    #[test]
    fn a_row_goes_by_how_it_differs_from_the_other_case() {
        let row = |predicted| Row::new("8×20", "throughput", Kind::Predicted, 20.0, predicted);
        assert_eq!(row(5.0).verdict().sign, None);
        // Twice as much was published.
        let other = |predicted| Row { published: 10.0, ..row(predicted) };
        assert_eq!(row(5.0).against("8×10", &other(2.0)).verdict().sign, Some(true));
        assert_eq!(row(5.0).against("8×10", &other(5.0)).verdict().sign, Some(false));
        let rows = [row(21.0), Row { kind: Kind::Entrain, ..row(90.0) }];
        assert_eq!(totals(&rows, Kind::Predicted), Totals { rows: 1, signs: 0, right: 0, near: 1 });
    }
}
