//! Published schedulers, unchanged: they do here what their own comments say that they do on a real kernel.

mod bpfland;
mod simple;

use entrain_sim::kernel::topology::Shape;
use entrain_sim::kernel::{Kernel, TaskId};
use entrain_sim::program::Step::{Compute, Done, Sleep};
use entrain_sim::program::Time::{Fixed, Mean};
use entrain_sim::program::{MS, SEC, Step, US};
use entrain_sim::scenario::{Arm, guest, host, tasks};
use entrain_sim::world::{Act, HOST, World};

const HOG: &[Step] = &[Compute(Mean(30 * MS)), Done];
const SLEEPER: &[Step] = &[Sleep(Mean(30 * MS)), Compute(Fixed(100 * US)), Done];

fn new(shape: Shape, arm: Arm) -> World {
    let mut world = host(1, shape, arm);
    world.checks.queues = true;
    world
}

fn hog(world: &mut World, weight: u32) -> TaskId {
    world.add_task(HOST, World::spec(Kernel::ROOT, weight, None), HOG, 0)
}

fn hogs(world: &mut World, count: u32) -> Vec<TaskId> {
    (0..count).map(|_| hog(world, 100)).collect()
}

/// CPU time, s.
fn had(world: &World, task: TaskId) -> f64 {
    world.machines[0].kernel.task(task).sum_exec as f64 / 1e9
}

fn switches(world: &World, of: &[TaskId]) -> u64 {
    of.iter().map(|task| world.machines[0].kernel.task(*task).switches).sum()
}

fn fine(world: &World) {
    assert_eq!(world.machines[0].kernel.failed, None);
    let found: Vec<_> = world.checks.found.iter().filter(|v| ["queue", "watchdog"].contains(&v.rule)).collect();
    assert!(found.is_empty(), "{found:?}");
}

/// Runs the world with somebody who sleeps and computes shortly: how late that one is in the median and at worst, ms, once
/// everybody has run.
fn latencies(world: &mut World) -> (f64, f64) {
    let sleeper = tasks(world, HOST, "sleeper", 1, SLEEPER).tasks[0];
    world.run(30 * SEC);
    fine(world);
    let mut late = world.machines[0].tasks[sleeper.0 as usize].latencies[20..].to_vec();
    late.sort_unstable();
    (f64::from(late[late.len() / 2]) / 1e6, f64::from(*late.last().unwrap()) / 1e6)
}

/// A scheduler for vCPUs like any other, which comes and goes like one.
fn runs_guests(arm: Arm) {
    let mut world = new(Shape::flat(2), arm);
    let guests: Vec<_> = (0..2).map(|_| guest(&mut world, 2, arm)).collect();
    for m in &guests {
        tasks(&mut world, *m, "hog", 2, &[Compute(Mean(MS)), Done]);
    }
    for turn in 0..10 {
        world.act(turn * 300 * MS + MS, Act::Detach(HOST));
        world.act(turn * 300 * MS + 20 * MS, Act::Attach(HOST));
    }
    world.run(4 * SEC);
    fine(&world);
    let of = |m| (0..2).map(|cpu| had(&world, world.thread_of(m, cpu))).sum::<f64>();
    let ratio = of(guests[0]) / of(guests[1]);
    assert!((0.9..1.1).contains(&ratio), "{ratio}");
}
