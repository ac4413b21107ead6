//! Drawn worlds with Entrain on the host beside the same with EEVDF: what each kind of task does, waits and has. Faults
//! of a scheduler that break no rule show as worlds where it is far behind: `beside 1 400` and then `beside 142 1`.

use std::collections::BTreeMap;

use entrain_sim::costs::Costs;
use entrain_sim::program::{SEC, Step, US};
use entrain_sim::search::Plan;
use entrain_sim::search::draw::draw;
use entrain_sim::search::plan::PlannedTask;
use entrain_sim::world::Policy;

/// What a task does, in a word.
fn kind(task: &PlannedTask) -> &'static str {
    match &task.steps[..] {
        _ if task.realtime.is_some() => "real-time",
        [Step::Compute(_), Step::Done] => "computes",
        [Step::Compute(_), Step::Synchronize, ..] => "grace period",
        [Step::Compute(_), Step::Lock(_), ..] => "lock",
        [Step::Compute(_), Step::Broadcast, ..] => "broadcast",
        [Step::Compute(_), Step::Post(_), ..] => "asks",
        [Step::Wait(_), ..] => "answers",
        [Step::Sleep(_), ..] => "sleeps",
        [Step::Until(_), ..] => "clock",
        _ => "yields",
    }
}

/// What a task has done, and waited from wake-up to running on average and at the 99th percentile, ns.
struct Had {
    ops: f64,
    mean: f64,
    p99: f64,
}

fn had(plan: &Plan, host: Policy) -> Vec<(String, Had)> {
    let mut world = Plan { host, ..plan.clone() }.build();
    world.set_costs(Costs::HARDWARE);
    world.run(plan.end);
    let machines = std::iter::once(("host", &plan.tasks)).chain(plan.vms.iter().map(|vm| ("guest", &vm.tasks)));
    let mut all = Vec::new();
    for ((place, tasks), machine) in machines.zip(&world.machines) {
        for (task, state) in tasks.iter().zip(&machine.tasks) {
            let mut waits = state.latencies.clone();
            waits.sort_unstable();
            let count = waits.len().max(1);
            let mean = waits.iter().map(|wait| f64::from(*wait)).sum::<f64>() / count as f64;
            let p99 = waits.get(count * 99 / 100).copied().map_or(0.0, f64::from);
            all.push((format!("{place}, {}", kind(task)), Had { ops: state.ops as f64, mean, p99 }));
        }
    }
    all
}

/// Sums of one kind of task: tasks, logarithms of the ratios to EEVDF, and waits.
#[derive(Default)]
struct Sum {
    tasks: f64,
    ops: f64,
    p99: f64,
    mean: [f64; 2],
}

fn main() {
    let numbers: Vec<u64> = std::env::args().skip(1).filter_map(|word| word.parse().ok()).collect();
    let &[first, worlds] = &numbers[..] else {
        eprintln!("usage: beside FIRST-SEED WORLDS");
        std::process::exit(2);
    };
    let mut sums: BTreeMap<String, Sum> = BTreeMap::new();
    for seed in first..first + worlds {
        let mut plan = draw(seed);
        plan.deeds.clear();
        (plan.end, plan.guest, plan.paired) = (2 * SEC, Policy::Eevdf, false);
        // Weights far apart make waits of seconds, beside which no other is seen.
        plan.groups.iter_mut().for_each(|group| group.weight = 100);
        plan.vms.iter_mut().flat_map(|vm| &mut vm.tasks).chain(&mut plan.tasks).for_each(|task| task.weight = 100);
        // Waits below this are all the same.
        let short = 30.0 * US as f64;
        for ((kind, here), (_, stock)) in had(&plan, Policy::Entrain).into_iter().zip(had(&plan, Policy::Eevdf)) {
            let (ops, p99) = ((here.ops + 1.0) / (stock.ops + 1.0), (here.p99 + short) / (stock.p99 + short));
            if worlds == 1 || p99 > 10.0 || ops < 0.3 {
                println!(
                    "seed {seed}: {kind}: {} operations, EEVDF {}; waits {:.0} µs, {:.0}; p99 {:.0} µs, {:.0}",
                    here.ops,
                    stock.ops,
                    here.mean / 1e3,
                    stock.mean / 1e3,
                    here.p99 / 1e3,
                    stock.p99 / 1e3
                );
            }
            let sum = sums.entry(kind).or_default();
            sum.tasks += 1.0;
            sum.ops += ops.ln();
            sum.p99 += p99.ln();
            sum.mean[0] += here.mean;
            sum.mean[1] += stock.mean;
        }
        if worlds == 1 {
            println!("{}", plan.words());
        }
    }
    println!("{:20} tasks  operations  p99  (to EEVDF's, geometric means)  mean wait, µs; EEVDF's", "");
    for (kind, sum) in sums {
        let [ops, p99] = [sum.ops, sum.p99].map(|sum_of| (sum_of / sum.tasks).exp());
        let [here, stock] = sum.mean.map(|waits| waits / sum.tasks / 1e3);
        println!("{kind:20} {:5}  {ops:10.3}  {p99:.2}  {here:8.0}  {stock:8.0}", sum.tasks);
    }
}
