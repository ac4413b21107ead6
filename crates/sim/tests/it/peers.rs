//! scx_simple of the kernel's tools, unchanged: it does here what its own comments say that it does on a real kernel.

use entrain_sim::kernel::topology::Shape;
use entrain_sim::kernel::{Kernel, TaskId};
use entrain_sim::program::Step::{Compute, Done, Sleep};
use entrain_sim::program::Time::{Fixed, Mean};
use entrain_sim::program::{MS, SEC, Step, US};
use entrain_sim::scenario::{Arm, guest, host, tasks};
use entrain_sim::world::{HOST, World};

const HOG: &[Step] = &[Compute(Mean(30 * MS)), Done];
/// `SCX_SLICE_DFL`.
const SLICE: u64 = 20 * MS;

fn hog(world: &mut World, weight: u32) -> TaskId {
    world.add_task(HOST, World::spec(Kernel::ROOT, weight, None), HOG, 0)
}

fn had(world: &World, task: TaskId) -> f64 {
    world.machines[0].kernel.task(task).sum_exec as f64 / 1e9
}

fn fine(world: &World) {
    assert_eq!(world.machines[0].kernel.failed, None);
    let found: Vec<_> = world.checks.found.iter().filter(|v| ["queue", "watchdog"].contains(&v.rule)).collect();
    assert!(found.is_empty(), "{found:?}");
}

fn new(cpus: u32) -> World {
    let mut world = host(1, Shape::flat(cpus), Arm::SIMPLE);
    world.checks.queues = true;
    world
}

/// "By default, it operates as a simple global weighted vtime scheduler."
#[test]
fn it_is_weighted_and_global() {
    let ratio = |others: u32| {
        let mut world = new(1);
        let (light, heavy) = (hog(&mut world, 100), hog(&mut world, 300));
        (0..others).for_each(|_| {
            hog(&mut world, 100);
        });
        world.run(40 * SEC);
        fine(&world);
        had(&world, heavy) / had(&world, light)
    };
    let many = ratio(5);
    assert!((2.7..3.3).contains(&many), "{many}");
    // ops.dispatch() is asked before who runs is back in the queue: two on one CPU take turns, whatever they weigh.
    let two = ratio(0);
    assert!((0.95..1.05).contains(&two), "{two}");

    // One queue for all CPUs: seven on three get their sevenths without a balancer.
    let mut world = new(3);
    let hogs: Vec<_> = (0..7).map(|_| hog(&mut world, 100)).collect();
    world.run(20 * SEC);
    fine(&world);
    for task in hogs {
        let had = had(&world, task);
        assert!((8.3..8.8).contains(&had), "{had} of {:.2} s", 60.0 / 7.0);
    }
}

/// "Preemption is not implemented": who wakes beside hogs waits until a slice is over, or two. On an idle CPU it runs at once.
#[test]
fn it_does_not_preempt() {
    let latencies = |hogs: u32| {
        let mut world = new(1);
        (0..hogs).for_each(|_| {
            hog(&mut world, 100);
        });
        let steps = [Sleep(Mean(30 * MS)), Compute(Fixed(100 * US)), Done];
        let sleeper = tasks(&mut world, HOST, "sleeper", 1, &steps).tasks[0];
        world.run(30 * SEC);
        fine(&world);
        let mut late = world.machines[0].tasks[sleeper.0 as usize].latencies.clone();
        late.sort_unstable();
        (f64::from(late[late.len() / 2]) / 1e6, f64::from(*late.last().unwrap()) / 1e6)
    };
    let (p50, worst) = latencies(0);
    assert!(worst < 0.05, "an idle CPU: {p50} {worst} ms");
    let (p50, worst) = latencies(2);
    // It comes at any moment of a slice of 20 ms, which ends at a tick. At worst it has had its budget, and the other hog
    // is before it.
    assert!((5.0..15.0).contains(&p50), "{p50} ms");
    assert!(worst > 15.0 && worst < 2.0 * (SLICE as f64 / 1e6 + 5.0), "{worst} ms");
    println!("scx_simple, a sleeper beside two hogs: p50 {p50:.1} ms, worst {worst:.1} ms");
}

/// Slices are 20 ms: so many switches a second has a CPU with hogs alone, and no more.
#[test]
fn its_slices_are_twenty_milliseconds() {
    let mut world = new(1);
    let hogs: Vec<_> = (0..3).map(|_| hog(&mut world, 100)).collect();
    world.run(20 * SEC);
    fine(&world);
    let switches: u64 = hogs.iter().map(|task| world.machines[0].kernel.task(*task).switches).sum();
    assert!((800..1_050).contains(&switches), "{switches} in 20 s");
}

/// It is a scheduler for vCPUs like any other, and comes and goes like one.
#[test]
fn it_runs_guests() {
    let mut world = new(2);
    let guests: Vec<_> = (0..2).map(|_| guest(&mut world, 2, Arm::SIMPLE)).collect();
    for m in &guests {
        tasks(&mut world, *m, "hog", 2, &[Compute(Mean(MS)), Done]);
    }
    for turn in 0..10 {
        world.act(turn * 300 * MS + MS, entrain_sim::world::Act::Detach(HOST));
        world.act(turn * 300 * MS + 20 * MS, entrain_sim::world::Act::Attach(HOST));
    }
    world.run(4 * SEC);
    fine(&world);
    let of = |m| (0..2).map(|cpu| had(&world, world.thread_of(m, cpu))).sum::<f64>();
    let ratio = of(guests[0]) / of(guests[1]);
    assert!((0.9..1.1).contains(&ratio), "{ratio}");
}
