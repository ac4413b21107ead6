//! CPUs of the host that come and go while its scheduler runs (issue 26, fault 8).

use entrain_sim::kernel::topology::Shape;
use entrain_sim::program::Step::{Compute, Done, Sleep};
use entrain_sim::program::Time::{Fixed, Mean};
use entrain_sim::program::{MS, SEC};
use entrain_sim::scenario::{Arm, guest, host, tasks};
use entrain_sim::world::{HOST, World};

const TWO_CACHES: Shape = Shape { nodes: 1, llcs: 2, cores: 4, threads: 1 };

fn healthy(world: &World) {
    assert!(world.machines[0].kernel.failed.is_none(), "{:?}", world.machines[0].kernel.failed);
    assert!(!world.checks.counts.contains_key("wait"), "{:?}", world.checks.found);
    assert!(!world.checks.counts.contains_key("watchdog"), "{:?}", world.checks.found);
}

fn busy(world: &World) -> Vec<u32> {
    (0..8).filter(|cpu| world.machines[0].kernel.cpu(*cpu).curr.is_some()).collect()
}

#[test]
fn the_scheduler_goes_on_without_a_cpu_and_with_it_again() {
    let mut world = host(1, TWO_CACHES, Arm::HOST);
    world.checks.idle_bound = 300 * MS;
    tasks(&mut world, HOST, "hog", 16, &[Compute(Fixed(20 * MS)), Done]);
    tasks(&mut world, HOST, "napper", 16, &[Compute(Mean(MS)), Sleep(Mean(MS)), Done]);
    let m = guest(&mut world, 4, Arm::HOST);
    tasks(&mut world, m, "guest's hog", 4, &[Compute(Mean(MS)), Done]);
    for cpu in [1, 5, 6, 7] {
        world.plan_hotplug(cpu, false, 500 * MS + u64::from(cpu) * MS);
        world.plan_hotplug(cpu, true, 1_500 * MS + u64::from(cpu) * MS);
    }
    world.run(1_400 * MS);
    healthy(&world);
    assert_eq!(busy(&world), [0, 2, 3, 4]);
    world.run(1_800 * MS);
    assert_eq!(busy(&world).len(), 8, "the CPUs that came back have work");
    world.run(4 * SEC);
    healthy(&world);
    assert_eq!(world.checks.beside_idle(), 0, "{:?}", world.checks.found);
}

/// A whole cache goes and comes, and CPUs go and come all the time; wake-ups that want to preempt queue everywhere.
#[test]
fn no_task_is_left_in_the_queue_of_a_cpu_that_has_gone() {
    let mut world = host(2, TWO_CACHES, Arm::HOST);
    tasks(&mut world, HOST, "hog", 8, &[Compute(Fixed(20 * MS)), Done]);
    tasks(&mut world, HOST, "napper", 40, &[Compute(Mean(MS / 5)), Sleep(Mean(2 * MS)), Done]);
    for turn in 0..200 {
        let cpu = 1 + turn as u32 % 7;
        world.plan_hotplug(cpu, false, SEC / 10 + turn * 15 * MS);
        world.plan_hotplug(cpu, true, SEC / 10 + turn * 15 * MS + 95 * MS);
    }
    world.run(5 * SEC);
    healthy(&world);
    for cpu in 4..8 {
        world.plan_hotplug(cpu, false, 5 * SEC + 1);
    }
    world.run(7 * SEC);
    assert_eq!(busy(&world), [0, 1, 2, 3]);
    healthy(&world);
}
