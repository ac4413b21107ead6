//! Where a vCPU waits that a sibling kicks, when no CPU is idle.

use entrain_sim::kernel::Kernel;
use entrain_sim::kernel::topology::Shape;
use entrain_sim::program::Step::{Compute, Done, Post, Sleep, Wait};
use entrain_sim::program::Time::Fixed;
use entrain_sim::program::{MS, SEC, US};
use entrain_sim::scenario::{Arm, Measured, guest, host};
use entrain_sim::world::{HOST, World};

/// A guest of 8 vCPUs beside a hog on each of 8 pCPUs: one vCPU wakes all of its siblings every 5 ms, and each of them
/// works for 200 µs. How long they wait for that, p80 and p99, µs.
fn broadcast(arm: Arm) -> (f64, f64) {
    let mut world = host(1, Shape::flat(8), arm);
    for cpu in 0..8 {
        world.add_task(HOST, World::spec(Kernel::ROOT, 100, Some(&[cpu])), &[Compute(Fixed(50 * MS)), Done], 0);
    }
    let m = guest(&mut world, 8, arm);
    let mut sender = vec![Sleep(Fixed(5 * MS))];
    sender.extend((1..8).map(Post));
    sender.push(Compute(Fixed(2 * MS)));
    world.add_task(m, World::spec(Kernel::ROOT, 100, Some(&[0])), &sender, 0);
    let tasks = (1..8)
        .map(|vcpu| {
            let steps = [Wait(vcpu), Compute(Fixed(200 * US)), Done];
            world.add_task(m, World::spec(Kernel::ROOT, 100, Some(&[vcpu])), &steps, 0)
        })
        .collect();
    world.run(4 * SEC);
    let waits = Measured { name: "worker".to_owned(), machine: m, tasks }.latencies(&world);
    assert!(waits.len() > 2000, "they are woken: {}", waits.len());
    let us = |percent: usize| f64::from(waits[waits.len() * percent / 100]) / 1e3;
    (us(80), us(99))
}

/// Whoever broadcasts does not gather its siblings behind itself (issue 26, finding 11), where it runs on for 2 ms: one of
/// seven waits there, whose own CPU that is; the others take the CPUs that they come from.
#[test]
fn a_broadcast_does_not_gather_its_targets() {
    let (entrain, stock) = (broadcast(Arm::HOST), broadcast(Arm::STOCK));
    println!("seven siblings woken at once, p80 and p99, µs: {entrain:.0?}, with EEVDF {stock:.0?}");
    assert!(entrain.0 < 100.0, "{entrain:.0?}, with EEVDF {stock:.0?}");
}
