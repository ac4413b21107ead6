//! CPUs at several last-level caches: what is compared, what is moved (issue 26, faults 4 and 9).

use entrain_sim::kernel::topology::Shape;
use entrain_sim::kernel::{Kernel, TaskId};
use entrain_sim::program::Step::{Compute, Done, Sleep};
use entrain_sim::program::Time::{Fixed, Mean};
use entrain_sim::program::{MS, SEC, Step, US};
use entrain_sim::scenario::{Arm, host};
use entrain_sim::world::{HOST, World};

const HOG: &[Step] = &[Compute(Fixed(50 * MS)), Done];
const TWO_CACHES: Shape = Shape { nodes: 1, llcs: 2, cores: 4, threads: 1 };
const SECOND: &[u32] = &[4, 5, 6, 7];

fn add(world: &mut World, weight: u32, cpus: Option<&[u32]>, steps: &[Step], start: u64) -> TaskId {
    world.add_task(HOST, World::spec(Kernel::ROOT, weight, cpus), steps, start)
}

fn cpu_time(world: &World, task: TaskId) -> f64 {
    world.machines[0].kernel.task(task).sum_exec as f64
}

/// How many of the tasks are at the second cache.
fn at_second(world: &World, tasks: &[TaskId]) -> usize {
    tasks.iter().filter(|task| SECOND.contains(&world.machines[0].kernel.task(**task).cpu)).count()
}

/// Least and most CPU that 32 hogs on 8 CPUs at two caches have.
fn spread(arm: Arm) -> (f64, f64) {
    let mut world = host(1, TWO_CACHES, arm);
    let hogs: Vec<_> = (0..32).map(|_| add(&mut world, 100, None, HOG, 0)).collect();
    world.run(4 * SEC);
    let mut times: Vec<_> = hogs.iter().map(|hog| cpu_time(&world, *hog) / 4e9).collect();
    times.sort_by(f64::total_cmp);
    (times[0], times[31])
}

#[test]
fn busy_caches_have_equal_parts() {
    let (entrain, stock) = (spread(Arm::HOST), spread(Arm::STOCK));
    println!("32 hogs on 8 CPUs at two caches, least and most of a CPU: {entrain:.3?}, with EEVDF {stock:.3?}");
    assert!(entrain.1 < 1.1 * entrain.0, "all have the same: {entrain:?}");
}

#[test]
fn twenty_four_and_eight_even_out_within_200_ms() {
    let mut world = host(1, TWO_CACHES, Arm::HOST);
    // These keep as many others away from the second cache, and sleep when they have had 50 ms.
    let bound: Vec<_> = (0..16)
        .map(|_| add(&mut world, 100, Some(SECOND), &[Compute(Fixed(50 * MS)), Sleep(Fixed(900 * SEC))], 0))
        .collect();
    let hogs: Vec<_> = (0..32).map(|_| add(&mut world, 100, None, HOG, MS)).collect();
    while !bound.iter().all(|task| cpu_time(&world, *task) >= 50e6) {
        world.run(world.now + MS);
        assert!(world.now < 2 * SEC, "those that are bound have had their time");
    }
    let (freed, began) = (world.now, at_second(&world, &hogs));
    while !(15..=17).contains(&at_second(&world, &hogs)) {
        world.run(world.now + MS);
        assert!(
            world.now < freed + 200 * MS,
            "{} of 32 at the second cache, {began} at first",
            at_second(&world, &hogs)
        );
    }
    println!("{began} of 32 at the second cache: even after {} ms", (world.now - freed) / MS);
    assert!(began <= 12, "there was something to balance: {began}");
    let moves = |world: &World| -> u64 { hogs.iter().map(|hog| world.machines[0].kernel.task(*hog).llc_moves).sum() };
    let before = moves(&world);
    world.run(world.now + 2 * SEC);
    assert!(moves(&world) - before <= 4, "what is even stays: {} moves in 2 s", moves(&world) - before);
}

/// An odd task out does not wander from cache to cache.
#[test]
fn nine_hogs_on_eight_cpus_stay_where_they_are() {
    let mut world = host(1, TWO_CACHES, Arm::HOST);
    let hogs: Vec<_> = (0..9).map(|_| add(&mut world, 100, None, HOG, 0)).collect();
    world.run(4 * SEC);
    let moves: u64 = hogs.iter().map(|hog| world.machines[0].kernel.task(*hog).llc_moves).sum();
    assert!(moves <= 4, "{moves} moves in 4 s");
}

/// Tasks that may run at one cache only stay there, and nobody starves for it.
#[test]
fn the_balancer_respects_affinity() {
    let mut world = host(1, TWO_CACHES, Arm::HOST);
    let bound: Vec<_> = (0..24).map(|_| add(&mut world, 100, Some(SECOND), HOG, 0)).collect();
    let free: Vec<_> = (0..8).map(|_| add(&mut world, 100, None, HOG, 0)).collect();
    world.run(2 * SEC);
    assert!(world.machines[0].kernel.failed.is_none() && world.checks.counts.is_empty(), "{:?}", world.checks.counts);
    assert_eq!(at_second(&world, &bound), 24);
    assert!(at_second(&world, &free) <= 2, "there is more room at the first cache");
}

/// The clock of the second cache is far ahead of the first one's: that says nothing of who waits for whom.
#[test]
fn no_victims_are_sought_at_the_other_cache() {
    let mut world = host(1, Shape { nodes: 1, llcs: 2, cores: 2, threads: 1 }, Arm::HOST);
    for cpu in 0..4 {
        // For 3 s the clocks of the second cache run ten times as fast, then as fast as the others.
        let weight = if cpu < 2 { 100 } else { 10 };
        add(&mut world, weight, Some(&[cpu]), &[Compute(Fixed(3 * SEC)), Sleep(Fixed(900 * SEC))], 0);
        add(&mut world, 100, Some(&[cpu]), HOG, 3 * SEC);
    }
    let nap = &[Sleep(Mean(3 * MS)), Compute(Fixed(300 * US)), Done];
    let sleepers: Vec<_> = (0..8).map(|_| add(&mut world, 100, None, nap, 4 * SEC)).collect();
    world.run(5 * SEC);
    let moves =
        |world: &World| -> u64 { sleepers.iter().map(|task| world.machines[0].kernel.task(*task).llc_moves).sum() };
    let before = moves(&world);
    world.run(15 * SEC);
    let there = sleepers.iter().filter(|task| world.machines[0].kernel.task(**task).cpu >= 2).count();
    let moved = moves(&world) - before;
    println!("{there} of 8 sleepers are at the cache whose clock is ahead; {moved} moves between caches in 10 s");
    assert!((2..=6).contains(&there), "sleepers gather at a cache: {there}");
    assert!(moved < 100, "steady moves between caches: {moved}");
}
