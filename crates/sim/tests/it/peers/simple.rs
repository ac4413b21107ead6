//! scx_simple of the kernel's tools.

use entrain_sim::kernel::topology::Shape;
use entrain_sim::program::{MS, SEC};
use entrain_sim::scenario::Arm;
use entrain_sim::world::World;

use super::{fine, had, hog, hogs, latencies, runs_guests, switches};

/// `SCX_SLICE_DFL`.
const SLICE: u64 = 20 * MS;

fn new(cpus: u32) -> World {
    super::new(Shape::flat(cpus), Arm::SIMPLE)
}

/// "By default, it operates as a simple global weighted vtime scheduler."
#[test]
fn it_is_weighted_and_global() {
    let ratio = |others: u32| {
        let mut world = new(1);
        let (light, heavy) = (hog(&mut world, 100), hog(&mut world, 300));
        hogs(&mut world, others);
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
    let seven = hogs(&mut world, 7);
    world.run(20 * SEC);
    fine(&world);
    for task in seven {
        let had = had(&world, task);
        assert!((8.3..8.8).contains(&had), "{had} of {:.2} s", 60.0 / 7.0);
    }
}

/// "Preemption is not implemented": who wakes beside hogs waits until a slice is over, or two. On an idle CPU it runs at once.
#[test]
fn it_does_not_preempt() {
    let beside = |others: u32| {
        let mut world = new(1);
        hogs(&mut world, others);
        latencies(&mut world)
    };
    let (p50, worst) = beside(0);
    assert!(worst < 0.05, "an idle CPU: {p50} {worst} ms");
    let (p50, worst) = beside(2);
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
    let three = hogs(&mut world, 3);
    world.run(20 * SEC);
    fine(&world);
    let switches = switches(&world, &three);
    assert!((800..1_050).contains(&switches), "{switches} in 20 s");
}

#[test]
fn it_runs_guests() {
    runs_guests(Arm::SIMPLE);
}
