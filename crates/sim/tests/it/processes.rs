//! Threads of one process, and processes: what tells them apart, and how they wake and interrupt each other.

use entrain_sim::costs::Costs;
use entrain_sim::kernel::topology::Shape;
use entrain_sim::program::Step::{Compute, Done, Enlist, Membarrier, Post, PostNewest, Serve, Served, Sleep, Wait};
use entrain_sim::program::Time::Fixed;
use entrain_sim::program::{MS, SEC, Step, US};
use entrain_sim::scenario::{Arm, Measured, guest, host, one_process, tasks};
use entrain_sim::world::{HOST, MachineId, World};

/// Makes tasks alike.
type Make = fn(&mut World, MachineId, &str, u32, &[Step]) -> Measured;

fn operations(world: &World, of: &Measured) -> u64 {
    let states = &world.machines[of.machine.0 as usize].tasks;
    of.tasks.iter().map(|task| states[task.0 as usize].ops).sum()
}

/// Round trips a second of two tasks on a guest's only vCPU.
fn round_trips(make: Make, costs: Costs) -> u64 {
    let mut world = host(1, Shape::flat(1), Arm::STOCK);
    world.set_costs(costs);
    let m = guest(&mut world, 1, Arm::STOCK);
    let ping = make(&mut world, m, "ping", 1, &[Post(1), Wait(2), Compute(Fixed(100)), Done]);
    make(&mut world, m, "pong", 1, &[Wait(1), Compute(Fixed(100)), Post(2)]);
    world.run(SEC / 4);
    operations(&world, &ping) * 4
}

/// The emulator drops all translations with each switch to another address space; hardware does not.
#[test]
fn another_process_finds_its_translations_forgotten_in_the_lab_alone() {
    let [lab, hardware] = [Costs::LAB, Costs::HARDWARE].map(|costs| {
        let [threads, processes] = [one_process as Make, tasks].map(|make| round_trips(make, costs));
        println!("round trips/s: {threads} of threads, {processes} of processes");
        (threads, processes)
    });
    assert!(lab.0 > 2 * lab.1, "{lab:?}");
    assert!(hardware.0 == hardware.1, "{hardware:?}");
}

/// Barriers a second while others compute on all other CPUs.
fn barriers(others: Make) -> u64 {
    let mut world = host(1, Shape::flat(4), Arm::STOCK);
    let sender = one_process(&mut world, HOST, "barrier", 1, &[Compute(Fixed(US)), Membarrier, Done]);
    others(&mut world, HOST, "hog", 3, &[Compute(Fixed(MS))]);
    world.run(SEC / 10);
    operations(&world, &sender)
}

/// `membarrier()` waits for who runs its own process, and for nobody else.
#[test]
fn a_membarrier_interrupts_its_own_process() {
    let (own, strangers) = (barriers(one_process), barriers(tasks));
    println!("barriers in 100 ms: {own} beside threads of its process, {strangers} beside others");
    assert!(strangers > 80_000 && own < strangers / 2, "{own}, {strangers}");
}

/// Who was served or posted to first: the numbers of two tasks that have begun to wait one after the other.
fn first(waits: [&[Step]; 2], wakes: &[Step]) -> usize {
    let mut world = host(1, Shape::flat(4), Arm::STOCK);
    let mut waiter = |after: u64, steps: &[Step]| {
        let steps = [&[Sleep(Fixed(after))][..], steps, &[Done, Sleep(Fixed(SEC))]].concat();
        tasks(&mut world, HOST, "waiter", 1, &steps)
    };
    let waiters = [waiter(MS, waits[0]), waiter(2 * MS, waits[1])];
    tasks(&mut world, HOST, "waker", 1, &[&[Sleep(Fixed(10 * MS))][..], wakes, &[Sleep(Fixed(SEC))]].concat());
    world.run(20 * MS);
    let done = waiters.map(|waiter| operations(&world, &waiter));
    assert_eq!(done.iter().sum::<u64>(), 1, "one of them: {done:?}");
    usize::from(done[1] == 1)
}

/// A desk serves in turn; a semaphore gives to whoever has waited longest, or to the newest.
#[test]
fn sleepers_are_woken_in_their_order() {
    assert_eq!(first([&[Enlist(7), Served], &[Enlist(7), Served]], &[Serve(7)]), 0);
    assert_eq!(first([&[Wait(1)], &[Wait(1)]], &[Post(1)]), 0);
    assert_eq!(first([&[Wait(1)], &[Wait(1)]], &[PostNewest(1)]), 1);
}

/// Who is served before it sleeps does not sleep, and nobody else takes its turn.
#[test]
fn who_is_served_already_does_not_sleep() {
    let served_early: &[Step] = &[Enlist(7), Compute(Fixed(20 * MS)), Served];
    let mut world = host(1, Shape::flat(2), Arm::STOCK);
    let early = tasks(&mut world, HOST, "early", 1, &[served_early, &[Done, Sleep(Fixed(SEC))]].concat());
    let late = tasks(&mut world, HOST, "late", 1, &[Sleep(Fixed(MS)), Enlist(7), Served, Done, Sleep(Fixed(SEC))]);
    tasks(&mut world, HOST, "waker", 1, &[Sleep(Fixed(10 * MS)), Serve(7), Sleep(Fixed(SEC))]);
    world.run(100 * MS);
    assert_eq!((operations(&world, &early), operations(&world, &late)), (1, 0));
}
