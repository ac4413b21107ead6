//! What each should have of the machine, and whether it had it: for tasks that want to run all the time.

use std::collections::BTreeMap;

use crate::kernel::group::GroupId;
use crate::kernel::{Kernel, State, TaskId};
use crate::world::{HOST, World};

/// Begins to count when those that have just started have found their places, and have had what they missed meanwhile, ns.
const SETTLES: u64 = 2_000_000_000;
/// The share may be missed by this part of it ...
const PART: f64 = 0.02;
/// ... or by two slices of 16 ms and ticks at each end of the window: what a CPU's order leaves open, ns.
const SLICES: f64 = 2.0 * 20e6;
/// Shares are judged where nobody is due more of a CPU than this: whoever is due nearly all of one loses some of it to each
/// that comes by, as under any scheduler with a queue for each CPU.
const FULL: f64 = 0.8;

/// Divides `capacity` by weights among some that can use so much each: whoever needs less than its part leaves the rest
/// to the others.
fn divide(capacity: f64, wants: &[(f64, f64)]) -> Vec<f64> {
    let mut parts = vec![0.0; wants.len()];
    let (mut left, mut open): (f64, Vec<usize>) = (capacity, (0..wants.len()).collect());
    while !open.is_empty() {
        let weights: f64 = open.iter().map(|i| wants[*i].0).sum();
        let full = |i: &usize| wants[*i].1 <= left * wants[*i].0 / weights + 1e-12;
        let (satisfied, others): (Vec<_>, Vec<_>) = open.iter().copied().partition(full);
        if satisfied.is_empty() {
            for i in &others {
                parts[*i] = left * wants[*i].0 / weights;
            }
            break;
        }
        for i in satisfied {
            parts[i] = wants[i].1;
            left -= wants[i].1;
        }
        open = others;
    }
    parts
}

/// The CPUs that each task of `tasks` should have while all of them want to run and may run anywhere: weight against
/// weight in each group, groups beside the tasks of their parent, nobody more than one CPU.
pub fn ideal(kernel: &Kernel, tasks: &[TaskId]) -> BTreeMap<TaskId, f64> {
    let mut wants = vec![0.0; kernel.groups.len()];
    for task in tasks {
        let mut at = Some(kernel.task(*task).group);
        while let Some(group) = at {
            wants[group.0 as usize] += 1.0;
            at = kernel.groups[group.0 as usize].parent;
        }
    }
    let mut shares = BTreeMap::new();
    let mut open = vec![(GroupId(0), f64::from(kernel.topo.cpus()).min(wants[0]))];
    while let Some((group, capacity)) = open.pop() {
        let own: Vec<_> = tasks.iter().copied().filter(|task| kernel.task(*task).group == group).collect();
        let children: Vec<_> = (0..kernel.groups.len() as u32)
            .map(GroupId)
            .filter(|id| kernel.groups[id.0 as usize].parent == Some(group) && wants[id.0 as usize] > 0.0)
            .collect();
        let of_tasks = own.iter().map(|task| (f64::from(kernel.task(*task).weight), 1.0));
        let of_groups =
            children.iter().map(|id| (f64::from(kernel.groups[id.0 as usize].weight), wants[id.0 as usize]));
        let parts = divide(capacity, &of_tasks.chain(of_groups).collect::<Vec<_>>());
        shares.extend(own.iter().copied().zip(parts.iter().copied()));
        open.extend(children.into_iter().zip(parts.into_iter().skip(own.len())));
    }
    shares
}

/// One task's part: what it had, what it should have had, in CPUs.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    /// Who.
    pub task: TaskId,
    /// What it had.
    pub had: f64,
    /// What it should have had.
    pub due: f64,
}

/// Runs a world of tasks that want to run all the time until `end`, ns, and compares.
pub fn measure(world: &mut World, end: u64) -> Vec<Share> {
    let from = SETTLES.min(end / 2);
    world.run(from);
    let kernel = &world.machines[0].kernel;
    let runnable = |task: &crate::kernel::Task| task.state == State::Runnable;
    let tasks: Vec<_> = kernel.tasks.iter().filter(|task| runnable(task)).map(|task| task.id).collect();
    let before: Vec<_> = tasks.iter().map(|task| kernel.task(*task).sum_exec).collect();
    world.run(end);
    let kernel = &world.machines[0].kernel;
    let due = ideal(kernel, &tasks);
    let window = (world.now - from).max(1) as f64;
    let had = |task: TaskId, before: u64| (kernel.task(task).sum_exec - before) as f64 / window;
    tasks
        .iter()
        .zip(before)
        .map(|(task, before)| Share { task: *task, had: had(*task, before), due: due[task] })
        .collect()
}

/// What some had that others should have had, as a part of all CPUs.
pub fn misplaced(world: &World, shares: &[Share]) -> f64 {
    let cpus = f64::from(world.machines[0].kernel.topo.cpus());
    shares.iter().map(|share| (share.had - share.due).abs()).sum::<f64>() / 2.0 / cpus
}

/// Whether weights can be followed to a part in fifty: not where tasks have to be divided among caches, which takes whole
/// tasks.
fn is_judged(kernel: &Kernel, shares: &[Share]) -> bool {
    kernel.topo.nr_llcs() < 2 && shares.iter().all(|share| share.due <= FULL)
}

/// The same, and breaks the rule `share` where one had too much or too little.
pub fn run(world: &mut World, end: u64) {
    let shares = measure(world, end);
    if !is_judged(&world.machines[0].kernel, &shares) {
        return;
    }
    let window = (end - SETTLES.min(end / 2)) as f64;
    for Share { task, had, due } in shares {
        if (had - due).abs() > (due * PART).max(SLICES / window) {
            let name = world.name(HOST, task);
            world.checks.share(world.now, || format!("{name} had {had:.4} CPUs and should have had {due:.4}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_needs_less_leaves_the_rest() {
        assert_eq!(divide(2.0, &[(100.0, 1.0), (100.0, 1.0)]), [1.0, 1.0]);
        assert_eq!(divide(2.0, &[(300.0, 1.0), (100.0, 1.0), (100.0, 1.0)]), [1.0, 0.5, 0.5]);
        assert_eq!(divide(1.0, &[(300.0, 1.0), (100.0, 2.0)]), [0.75, 0.25]);
    }
}
