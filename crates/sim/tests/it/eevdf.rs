//! The model of the kernel's own scheduler does what the kernel does.

use entrain_sim::kernel::Kernel;
use entrain_sim::kernel::topology::Shape;
use entrain_sim::program::Step::{Compute, Done, Post, Sleep, System, Wait};
use entrain_sim::program::Time::Fixed;
use entrain_sim::program::{MS, SEC, Step, US};
use entrain_sim::scenario::{Arm, Measured, guest, host};
use entrain_sim::world::{HOST, World};

/// How late a task begins that another wakes each 10 ms while a third one computes on its CPU: the median, µs. The waker is
/// on the same CPU or on another one.
fn woken_beside_a_hog(waker: u32) -> u32 {
    let mut world = host(1, Shape::flat(2), Arm::STOCK);
    let on = |cpu: u32| World::spec(Kernel::ROOT, 100, Some(&[cpu]));
    world.add_task(HOST, on(0), &[Compute(Fixed(50 * MS)), Done], 0);
    world.add_task(HOST, on(waker), &[Sleep(Fixed(10 * MS)), Post(1), Compute(Fixed(20 * US)), Done], 0);
    let woken = world.add_task(HOST, on(0), &[Wait(1), Compute(Fixed(20 * US)), Done], 0);
    world.run(2 * SEC);
    let late = Measured { name: "woken".to_owned(), machine: HOST, tasks: vec![woken] }.latencies(&world);
    late[late.len() / 2] / 1_000
}

/// PREEMPT_LAZY: who computes on another CPU is not interrupted for a wake-up, and hears of it at its tick.
#[test]
fn a_wake_up_interrupts_nobody_elsewhere() {
    let (here, there) = (woken_beside_a_hog(0), woken_beside_a_hog(1));
    println!("woken beside a hog, p50, µs: {here} by the same CPU, {there} by another");
    assert!(here < 100 && there > 300 && there < 8_000, "{here}, {there}");
}

/// What the host's scheduler adds to the turns of a vCPU for the sake of its guest's kernel, ms.
fn extended(steps: &[Step]) -> u64 {
    let mut world = host(1, Shape::flat(1), Arm::HOST);
    for steps in [steps, &[Compute(Fixed(MS)), Done]] {
        let m = guest(&mut world, 1, Arm::HOST);
        world.add_task(m, World::spec(Kernel::ROOT, 100, None), steps, 0);
    }
    world.run(2 * SEC);
    let thread = world.vms[0].vcpus[0].task;
    world.machines[0].kernel.extended(thread) / MS
}

/// A guest that works in its kernel is there in every round of its program.
#[test]
fn a_system_call_is_the_guests_kernel() {
    let (system, compute) = (extended(&[System(Fixed(MS)), Done]), extended(&[Compute(Fixed(MS)), Done]));
    println!("extended by {system} ms in system calls, {compute} ms in user mode");
    assert!(system > 5 * compute.max(1), "{system}, {compute}");
}
