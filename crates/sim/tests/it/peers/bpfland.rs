//! scx_bpfland of scx, with the options that its loader has when none is given.

use entrain_sim::kernel::topology::Shape;
use entrain_sim::kernel::{Kernel, TaskId};
use entrain_sim::program::Step::{Compute, Done, Sleep};
use entrain_sim::program::Time::Fixed;
use entrain_sim::program::{MS, SEC, Step};
use entrain_sim::scenario::Arm;
use entrain_sim::world::{HOST, MachineSpec, Policy, Tunable, World};

use super::{HOG, fine, had, hog, hogs, latencies, runs_guests, switches};

fn new(cpus: u32) -> World {
    shaped(Shape::flat(cpus))
}

fn shaped(shape: Shape) -> World {
    super::new(shape, Arm::BPFLAND)
}

fn task(world: &mut World, cpus: Option<&[u32]>, steps: &[Step]) -> TaskId {
    world.add_task(HOST, World::spec(Kernel::ROOT, 100, cpus), steps, 0)
}

/// "Pick any idle CPU usable by the task": who wakes beside an idle CPU runs at once, and nobody shares one.
#[test]
fn it_uses_idle_cpus() {
    let mut world = new(4);
    hogs(&mut world, 2);
    let (_, worst) = latencies(&mut world);
    assert!(worst < 0.05, "{worst} ms");

    // Of one node, and of two, whose idle CPUs the kernel keeps apart for it.
    for nodes in [1, 2] {
        let mut world = shaped(Shape { nodes, llcs: 2, cores: 4 / nodes, threads: 1 });
        let eight = hogs(&mut world, 8);
        world.run(4 * SEC);
        fine(&world);
        for task in eight {
            let had = had(&world, task);
            assert!(had > 3.95, "{had} of 4 s on {nodes} nodes");
        }
    }
}

/// The kernel's choice prefers "CPUs from fully idle cores", and bpfland gives "a chance to migrate" to who shares one.
#[test]
fn it_spreads_over_cores() {
    let mut world = shaped(Shape { nodes: 1, llcs: 1, cores: 4, threads: 2 });
    let four = hogs(&mut world, 4);
    world.run(2 * SEC);
    fine(&world);
    let mut cores: Vec<_> = four.iter().map(|task| world.machines[0].kernel.task(*task).cpu / 2).collect();
    cores.sort_unstable();
    assert_eq!(cores, [0, 1, 2, 3]);
}

/// "Fairness is driven by `vruntime`", which is "inversely scaled by its weight".
#[test]
fn it_shares_by_weight() {
    for cpus in [1, 3] {
        let mut world = new(cpus);
        let (light, heavy) = (hog(&mut world, 100), hog(&mut world, 300));
        hogs(&mut world, 4 * cpus);
        world.run(40 * SEC);
        fine(&world);
        let ratio = had(&world, heavy) / had(&world, light);
        assert!((2.7..3.3).contains(&ratio), "{ratio} on {cpus} CPUs");
    }
}

/// "`awake_vtime` helps prioritize tasks that sleep frequently and use the CPU in short bursts": however many hogs there are,
/// they wait for one slice, which ends at a tick.
#[test]
fn it_prefers_who_sleeps() {
    for others in [2, 10, 40] {
        let mut world = new(1);
        hogs(&mut world, others);
        let (p50, worst) = latencies(&mut world);
        assert!(p50 < 3.0 && worst < 4.1, "{p50} {worst} ms beside {others} hogs");
    }
}

/// "To prevent over-prioritizing tasks that sleep for long periods of time, the maximum vruntime they can accumulate while
/// sleeping is limited": who has slept for a minute is no further ahead of five others than who has slept for some seconds.
/// Without that it would have every second slice until it has caught up.
#[test]
fn it_bounds_what_sleep_saves() {
    for nap in [5, 20, 60] {
        let mut world = new(1);
        hogs(&mut world, 5);
        let late = task(&mut world, None, &[Sleep(Fixed(nap * SEC)), Compute(Fixed(60 * SEC)), Done]);
        world.run((nap + 1) * SEC);
        fine(&world);
        let first = had(&world, late);
        assert!((1.0 / 6.0..0.36).contains(&first), "{first} s of the first one after {nap} s");
    }
}

/// "If the current task expired its time slice and no other task wants to run, simply replenish its time slice".
#[test]
fn it_lets_who_is_alone_run() {
    let mut world = new(2);
    let two = hogs(&mut world, 2);
    world.run(10 * SEC);
    fine(&world);
    let switches = switches(&world, &two);
    assert!(switches < 10, "{switches}");
}

/// Tasks of one CPU have a queue of their own. "This does not cause starvation for tasks in per-node DSQs, since
/// ops.dispatch() always picks the task with the earliest deadline between per-node and per-CPU DSQs."
#[test]
fn who_is_bound_to_a_cpu_has_no_more_than_others() {
    let mut world = new(2);
    let bound: Vec<_> = (0..2).map(|_| task(&mut world, Some(&[0]), HOG)).collect();
    let free = hogs(&mut world, 4);
    world.run(20 * SEC);
    fine(&world);
    for task in bound.into_iter().chain(free) {
        let had = had(&world, task);
        assert!((6.5..6.8).contains(&had), "{had} of {:.2} s", 40.0 / 6.0);
    }
}

/// "Throttle the CPUs by injecting @throttle_ns idle time every @slice_max", which is 1 ms: by a timer and kicks.
#[test]
fn it_throttles() {
    for (throttle, share) in [(MS, 0.5), (3 * MS, 0.25)] {
        let mut world = World::new(1);
        let tunables = vec![("throttle_ns", Tunable::Number(throttle))];
        world.add_host(&MachineSpec { shape: Shape::flat(1), policy: Policy::Bpfland, tunables });
        let all = hogs(&mut world, 2);
        world.run(4 * SEC);
        fine(&world);
        let used = all.iter().map(|task| had(&world, *task)).sum::<f64>() / 4.0;
        assert!((share - 0.01..share + 0.01).contains(&used), "{used} of the CPU, {share} wanted");
    }
}

#[test]
fn it_runs_guests() {
    runs_guests(Arm::BPFLAND);
}
