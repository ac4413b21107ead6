//! The simulated kernel does what a kernel does, under Entrain's schedulers.

use entrain_sim::kernel::Kernel;
use entrain_sim::kernel::topology::Shape;
use entrain_sim::program::Step::{Barrier, Begin, Broadcast, Compute, Done, Hold, Lock, Post, Sleep, Unlock, Wait};
use entrain_sim::program::Time::{Fixed, Mean};
use entrain_sim::program::{MS, SEC, US};
use entrain_sim::world::{Arch, HOST, MachineSpec, Policy, VmSpec, World};

fn machine(cpus: u32) -> MachineSpec {
    MachineSpec { shape: Shape::flat(cpus), policy: Policy::Entrain, tunables: Vec::new() }
}

fn healthy(world: &World) {
    for machine in &world.machines {
        assert_eq!(machine.kernel.failed, None);
    }
    assert_eq!(world.checks.counts.get("watchdog"), None, "{:?}", world.checks.found);
}

#[test]
fn hogs_share_the_cpus() {
    let mut world = World::new(1);
    world.add_host(&machine(4));
    let hogs: Vec<_> = (0..8)
        .map(|_| world.add_task(HOST, World::spec(Kernel::ROOT, 100, None), &[Compute(Fixed(50 * MS))], 0))
        .collect();
    world.run(4 * SEC);
    healthy(&world);
    let times: Vec<_> = hogs.iter().map(|hog| world.machines[0].kernel.task(*hog).sum_exec).collect();
    let total: u64 = times.iter().sum();
    assert!(total > 4 * 4 * SEC * 99 / 100, "{times:?}");
    assert!(times.iter().all(|time| time.abs_diff(2 * SEC) < SEC / 10), "{times:?}");
}

#[test]
fn weights_count() {
    let mut world = World::new(1);
    world.add_host(&machine(1));
    let hog = |world: &mut World, weight| {
        world.add_task(HOST, World::spec(Kernel::ROOT, weight, None), &[Compute(Fixed(50 * MS))], 0)
    };
    let (light, heavy) = (hog(&mut world, 100), hog(&mut world, 300));
    world.run(8 * SEC);
    healthy(&world);
    let time = |task| world.machines[0].kernel.task(task).sum_exec as f64;
    let ratio = time(heavy) / time(light);
    assert!((2.8..3.2).contains(&ratio), "{ratio}");
}

#[test]
fn tasks_that_wake_one_another_make_progress() {
    let mut world = World::new(1);
    world.add_host(&machine(2));
    let ping = [Compute(Fixed(10 * US)), Post(1), Wait(2), Done];
    let pong = [Wait(1), Compute(Fixed(10 * US)), Post(2)];
    let a = world.add_task(HOST, World::spec(Kernel::ROOT, 100, None), &ping, 0);
    world.add_task(HOST, World::spec(Kernel::ROOT, 100, None), &pong, 0);
    world.run(SEC);
    healthy(&world);
    let ops = world.machines[0].tasks[a.0 as usize].ops;
    assert!((15_000..40_000).contains(&ops), "{ops}");
}

fn guests(seed: u64, cpus: u32, vms: u32, vcpus: u32) -> World {
    let mut world = World::new(seed);
    world.add_host(&machine(cpus));
    for _ in 0..vms {
        let spec = VmSpec { guest: machine(vcpus), group: Kernel::ROOT, paired: true, arch: Arch::Arm64, pins: None };
        let m = world.add_vm(&spec);
        for _ in 0..vcpus {
            let group = World::spec(Kernel::ROOT, 100, None);
            world.add_task(m, group, &[Compute(Mean(200 * US)), Lock(0), Hold(Fixed(5 * US)), Unlock(0), Done], 0);
        }
        world.add_task(m, World::spec(Kernel::ROOT, 100, None), &[Sleep(Mean(MS)), Compute(Fixed(50 * US)), Done], 0);
        world.add_task(m, World::spec(Kernel::ROOT, 100, None), &[Sleep(Mean(5 * MS)), Broadcast, Done], 0);
    }
    world
}

#[test]
fn guests_run_in_overcommit() {
    let mut world = guests(3, 2, 2, 4);
    world.run(2 * SEC);
    healthy(&world);
    for m in &world.machines[1..] {
        let ops: u64 = m.tasks[..4].iter().map(|task| task.ops).sum();
        // One pCPU each: 205 µs an operation.
        assert!((2_000..11_000).contains(&ops), "{ops}");
        assert!(m.tasks[4].ops > 100 && m.tasks[5].ops > 50, "{} {}", m.tasks[4].ops, m.tasks[5].ops);
    }
    let busy: u64 = world.machines[0].kernel.tasks.iter().map(|task| task.sum_exec).sum();
    assert!(busy > 2 * 2 * SEC * 9 / 10, "{busy}");
}

#[test]
fn a_seed_has_one_trace() {
    let run = |seed| {
        let mut world = guests(seed, 4, 3, 4);
        world.run(SEC / 2);
        (world.trace, world.events)
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7).0, run(8).0);
}

#[test]
fn barriers_let_all_pass_at_once() {
    let mut world = World::new(1);
    world.add_host(&machine(4));
    let tasks: Vec<_> = (0..4)
        .map(|_| {
            let steps = [Compute(Mean(100 * US)), Barrier(0, 4), Done];
            world.add_task(HOST, World::spec(Kernel::ROOT, 100, None), &steps, 0)
        })
        .collect();
    world.run(SEC);
    healthy(&world);
    let ops: Vec<_> = tasks.iter().map(|task| world.machines[0].tasks[task.0 as usize].ops).collect();
    assert!(ops[0] > 1_000 && ops.iter().all(|o| o.abs_diff(ops[0]) <= 1), "{ops:?}");
}

/// A figure of rounds counts what lies between `Begin` and `Done`, and not how long it takes to make a round ready.
#[test]
fn what_lies_between_two_timed_operations_does_not_count() {
    let timed = |pause: u64| {
        let mut world = World::new(1);
        world.add_host(&machine(1));
        let round = [Compute(Fixed(pause)), Begin, Compute(Fixed(MS)), Done];
        let task = world.add_task(HOST, World::spec(Kernel::ROOT, 100, None), &round, 0);
        world.run(SEC);
        let state = &world.machines[0].tasks[task.0 as usize];
        state.timed as f64 / state.ops as f64
    };
    for pause in [MS, 5 * MS] {
        assert!((timed(pause) / MS as f64 - 1.0).abs() < 0.05, "{} ns", timed(pause));
    }
}
