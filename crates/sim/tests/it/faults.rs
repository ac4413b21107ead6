//! Faults that reviews named, found by the simulator.
//!
//! Each test that `finds` something asserts that the fault is there, since it is not mended yet. Whoever mends one turns
//! its test around, and so keeps it as the guard against its return.

use entrain_sim::kernel::Kernel;
use entrain_sim::kernel::TaskId;
use entrain_sim::kernel::topology::Shape;
use entrain_sim::lab;
use entrain_sim::program::Step::{Broadcast, Compute, Done, Hold, Lock, Post, Sleep, Unlock, Until, Wait};
use entrain_sim::program::Time::{Fixed, Mean, Within};
use entrain_sim::program::{MS, SEC, Step, US};
use entrain_sim::report::Outcome;
use entrain_sim::rng::Rng;
use entrain_sim::scenario::{Arm, guest, host, tasks};
use entrain_sim::world::{HOST, MachineId, World};

const HOG: &[Step] = &[Compute(Fixed(50 * MS)), Done];

fn add(world: &mut World, m: MachineId, weight: u32, cpus: Option<&[u32]>, steps: &[Step]) -> TaskId {
    world.add_task(m, World::spec(Kernel::ROOT, weight, cpus), steps, 0)
}

fn cpu_time(world: &World, m: MachineId, tasks: &[TaskId]) -> f64 {
    tasks.iter().map(|task| world.machines[m.0 as usize].kernel.task(*task).sum_exec as f64).sum()
}

fn both_kinds(policy: Arm, count: u32) -> f64 {
    let mut world = host(1, Shape::flat(4), policy);
    let m = guest(&mut world, 4, policy);
    let heavy: Vec<_> = (0..count).map(|_| add(&mut world, m, 100, None, HOG)).collect();
    let light: Vec<_> = (0..count).map(|_| add(&mut world, m, 33, None, HOG)).collect();
    world.run(10 * SEC);
    cpu_time(&world, m, &heavy) / cpu_time(&world, m, &light)
}

/// Issue 22, fault 2: the sum of all weights was clamped as if it were one task's.
#[test]
fn weights_count_with_many_tasks() {
    let (few, many, stock) = (both_kinds(Arm::BOTH, 10), both_kinds(Arm::BOTH, 150), both_kinds(Arm::STOCK, 150));
    println!(
        "weights 100 to 33, should be 3.03: {few:.2} with 20 tasks, {many:.2} with 300; EEVDF with 300 {stock:.2}"
    );
    assert!((2.5..3.5).contains(&few), "{few}");
    assert!((2.5..3.5).contains(&many), "nice counts with many tasks, too: {many}");
}

/// Issue 26, fault 1: whoever has a small share of the machine waited beyond the watchdog's 10 s.
#[test]
fn a_light_task_is_served_in_time() {
    let mut world = host(1, Shape::flat(1), Arm::HOST);
    let light = add(&mut world, HOST, 1, None, HOG);
    let heavy = add(&mut world, HOST, 10_000, None, HOG);
    world.run(20 * SEC);
    let part = cpu_time(&world, HOST, &[light]) / cpu_time(&world, HOST, &[heavy]);
    println!("the light task has {part:.4} of the heavy one; {:?}", world.checks.counts);
    assert!(world.checks.counts.is_empty(), "{:?}", world.checks.found);
    assert!(part < 0.02, "the bound of its wait gives the light task a multiple of its share: {part}");
}

/// The same for all weights, nested in groups, on few CPUs, with tasks that come later and that sleep.
#[test]
fn nobody_waits_for_seconds_whatever_the_weights() {
    const WEIGHTS: &[u32] = &[1, 3, 10, 100, 1_000, 10_000];
    for seed in 1..=24 {
        let mut rng = Rng::new(seed);
        let mut weight = || rng.pick(WEIGHTS);
        let mut world = host(seed, Shape::flat(1 + seed as u32 % 3), Arm::HOST);
        let mut groups = vec![Kernel::ROOT];
        for parent in [0, 0, 1, 2, 3, 3, 4] {
            groups.push(world.add_group(HOST, groups[parent], weight()));
        }
        for i in 0..24 {
            let steps: &[Step] = match i % 4 {
                0 => &[Compute(Mean(2 * MS)), Sleep(Mean(MS)), Done],
                1 => &[Compute(Fixed(500 * US)), Sleep(Mean(20 * MS)), Done],
                _ => HOG,
            };
            let spec = World::spec(groups[i % groups.len()], weight(), None);
            world.add_task(HOST, spec, steps, (i as u64 / 8) * 2 * SEC);
        }
        world.run(8 * SEC);
        for rule in ["wait", "watchdog", "failed"] {
            assert_eq!(world.checks.counts.get(rule), None, "seed {seed}: {:?}", world.checks.found);
        }
    }
}

/// The same fault: the bound of debts was 100 ms at a share of 100, so that one who naps was forgiven what it ran.
fn napper(arm: Arm) -> f64 {
    let mut world = host(1, Shape::flat(1), arm);
    let slice = world.add_group(HOST, Kernel::ROOT, 100);
    let in_group = |world: &mut World, steps: &[Step]| {
        let group = world.add_group(HOST, slice, 100);
        world.add_task(HOST, World::spec(group, 100, None), steps, 0)
    };
    let napper = in_group(&mut world, &[Compute(Fixed(3_500 * US)), Sleep(Fixed(50 * US))]);
    let hogs: Vec<_> = (0..99).map(|_| in_group(&mut world, HOG)).collect();
    world.run(40 * SEC);
    cpu_time(&world, HOST, &[napper]) / (cpu_time(&world, HOST, &hogs) / 99.0)
}

/// Issue 26, fault 1, with 100 groups in one: a nap of 50 µs was worth a multiple of the share.
#[test]
fn naps_are_not_forgiven_in_nested_groups() {
    let (entrain, stock) = (napper(Arm::HOST), napper(Arm::STOCK));
    println!("a napper's part of a hog's: {entrain:.2}, with EEVDF {stock:.2}");
    assert!((0.8..1.2).contains(&entrain), "the napper has its share: {entrain}");
}

/// Issue 22, fault 3: an idle vCPU that was claimed looked idle until it ran, and its own queue was not counted.
fn burst(arm: Arm) -> (u64, u64) {
    let mut world = host(1, Shape::flat(8), arm);
    let m = guest(&mut world, 8, arm);
    world.checks.guests = true;
    world.checks.idle_bound = 20 * US;
    let master = [Sleep(Fixed(10 * MS)), Post(1), Post(1), Post(1), Post(1), Done];
    add(&mut world, m, 100, None, &master);
    tasks(&mut world, m, "worker", 4, &[Wait(1), Compute(Fixed(MS)), Done]);
    world.run(2 * SEC);
    (world.checks.beside_idle(), world.checks.longest_idle)
}

#[test]
fn wake_ups_go_to_idle_vcpus_of_their_own() {
    let (entrain, stock) = (burst(Arm::BOTH), burst(Arm::STOCK));
    println!("waits beside idle vCPUs, and the longest, ns: {entrain:?}, with EEVDF {stock:?}");
    assert!(entrain.0 == 0 && stock.0 == 0, "each wakes on a vCPU of its own: {entrain:?}, {stock:?}");
}

/// A 2 ms clock on each vCPU beside a lock, in two guests of 4 vCPUs on 2 pCPUs: p99 and worst delay, ms.
fn clock(arm: Arm) -> (f64, f64) {
    let mut world = host(1, Shape::flat(2), arm);
    let mut clocks = Vec::new();
    for _ in 0..2 {
        let m = guest(&mut world, 4, arm);
        tasks(&mut world, m, "lock", 4, &[Compute(Within(10 * US, 30 * US)), Lock(0), Hold(Fixed(2 * US)), Unlock(0)]);
        for cpu in 0..4 {
            clocks.push((m, add(&mut world, m, 100, Some(&[cpu]), &[Until(2 * MS), Compute(Fixed(5 * US))])));
        }
    }
    world.run(4 * SEC);
    let delays =
        |(m, task): &(MachineId, TaskId)| world.machines[m.0 as usize].tasks[task.0 as usize].latencies.clone();
    let mut waits: Vec<_> = clocks.iter().flat_map(delays).collect();
    waits.sort_unstable();
    let ms = |ns: u32| f64::from(ns) / 1e6;
    (ms(waits[waits.len() * 99 / 100]), ms(waits[waits.len() - 1]))
}

/// Issue 26: beside locks the worst delay of a guest's clock was a multiple of stock's, and p99 that of the turns of the
/// others.
#[test]
fn a_clock_beside_locks_is_as_good_as_with_eevdf() {
    let (entrain, stock) = (clock(Arm::HOST), clock(Arm::STOCK));
    println!("a 2 ms clock beside locks, p99 and worst delay, ms: {entrain:.2?}, with EEVDF {stock:.2?}");
    assert!(entrain.1 < stock.1 && entrain.0 < 1.1 * stock.0, "no worse than stock's: {entrain:?}, {stock:?}");
}

/// Waits beside an idle CPU of more than 200 µs in 10 s, and the longest, µs.
fn idle_beside_waits(arm: Arm) -> (u64, u64) {
    let mut world = host(1, Shape::flat(4), arm);
    world.checks.idle_bound = 200 * US;
    tasks(&mut world, HOST, "napper", 6, &[Compute(Mean(2 * MS)), Sleep(Mean(MS)), Done]);
    world.run(10 * SEC);
    (world.checks.beside_idle(), world.checks.longest_idle / 1_000)
}

/// Issue 26, fault 6: whoever queues a task looks for an idle CPU after that, and who goes idle at those that wait. A
/// few are still missed, where a CPU that was claimed for one task takes another; before, five in 10 s, for 828 µs.
#[test]
fn idle_cpus_are_missed_less_than_by_eevdf() {
    let (entrain, stock) = (idle_beside_waits(Arm::HOST), idle_beside_waits(Arm::STOCK));
    println!("waits beside an idle CPU in 10 s, and the longest, µs: {entrain:?}, with EEVDF {stock:?}");
    assert!(2 * entrain.0 < stock.0 && entrain.1 < stock.1, "{entrain:?}, {stock:?}");
}

/// Issue 26, fault 5, mended: a thread of the host beside a vCPU that computes; p50 and p99 of its wake-ups, µs.
fn worker_beside_vcpu(arm: Arm) -> (u32, u32) {
    let mut world = host(1, Shape::flat(1), arm);
    let m = guest(&mut world, 1, arm);
    add(&mut world, m, 100, None, HOG);
    // Its clock stays near the vCPU's, so that a wake-up alone does not take the CPU.
    let worker = add(&mut world, HOST, 100, None, &[Sleep(Mean(400 * US)), Compute(Mean(300 * US))]);
    world.run(10 * SEC);
    let mut waits = world.machines[0].tasks[worker.0 as usize].latencies.clone();
    waits.sort_unstable();
    (waits[waits.len() / 2] / 1000, waits[waits.len() * 99 / 100] / 1000)
}

#[test]
fn host_threads_do_not_wait_for_ticks() {
    let (entrain, stock) = (worker_beside_vcpu(Arm::HOST), worker_beside_vcpu(Arm::STOCK));
    println!("a host's thread beside a vCPU, p50 and p99 of its wake-ups, µs: {entrain:?}, with EEVDF {stock:?}");
    assert!(entrain.1 < 500, "it is let in as soon as the vCPU has had its shortest stay: {entrain:?}");
}

/// Broadcasts that three guests of 4 vCPUs get answered on 4 pCPUs, 1/s, and the yields followed for each.
fn shootdowns(arm: Arm) -> (f64, f64) {
    let mut world = host(1, Shape::flat(4), arm);
    let mut senders = Vec::new();
    for _ in 0..3 {
        let m = guest(&mut world, 4, arm);
        senders.push(tasks(&mut world, m, "unmap", 4, &[Compute(Mean(300 * US)), Broadcast, Done]));
    }
    world.run(SEC);
    let done: u64 = senders
        .iter()
        .flat_map(|these| {
            these.tasks.iter().map(|task| world.machines[these.machine.0 as usize].tasks[task.0 as usize].ops)
        })
        .sum();
    let yields: u64 = world.vms.iter().map(|vm| vm.yields).sum();
    (done as f64, yields as f64 / done.max(1) as f64)
}

/// Issue 26, fault 10: who spins counts as one who holds something, and is yielded to. To refuse that is no remedy: it
/// may have got its lock while it was off its CPU, and nobody else would let it in then (the test below). But it must not
/// take the place of the one that owes an answer: there were eight yields for each broadcast, and 3,400 broadcasts.
#[test]
fn spinners_give_way_to_who_owes_an_answer() {
    let (entrain, stock) = (shootdowns(Arm::HOST), shootdowns(Arm::STOCK));
    println!("shootdowns a second, and yields for each: {entrain:.0?}, with EEVDF {stock:.0?}");
    assert!(entrain.0 > 0.75 * stock.0 && entrain.1 < 2.0, "yields are of use: {entrain:?}, {stock:?}");
}

/// A lock that is held nearly all the time goes on though its next owner is off its CPU: ten thousand times a second were
/// left of millions where spinners were not yielded to.
#[test]
fn a_lock_does_not_stand_still() {
    let ops = |name| -> f64 {
        let experiment = lab::named("overcommit/lock").expect("it is there");
        let arm = lab::ARMS.iter().find(|arm| arm.name == name).expect("it is there");
        Outcome::of("lock", arm.arm, 1, experiment.build(1, arm)).rows.iter().map(|row| row.ops).sum()
    };
    let (entrain, stock) = (ops("entrain-host"), ops("stock"));
    println!("a lock that is held all the time, 1/s: {entrain:.0}, with EEVDF {stock:.0}");
    assert!(entrain > 2.5 * stock, "{entrain}, {stock}");
}

/// 25 equal groups of two hogs below one group, on 8 CPUs at one cache: least and most of what a group should have.
fn nested(arm: Arm) -> (f64, f64) {
    let mut world = host(1, Shape::flat(8), arm);
    let slice = world.add_group(HOST, Kernel::ROOT, 100);
    let mut had = Vec::new();
    for _ in 0..25 {
        let group = world.add_group(HOST, slice, 100);
        let spec = || World::spec(group, 100, None);
        had.push([0, 1].map(|_| world.add_task(HOST, spec(), HOG, 0)));
    }
    world.run(10 * SEC);
    let mut parts: Vec<_> = had.iter().map(|these| cpu_time(&world, HOST, these) / (10e9 * 8.0 / 25.0)).collect();
    parts.sort_by(f64::total_cmp);
    (parts[0], parts[24])
}

/// Issue 26, faults 1 and 4: new tasks begin where there is least to do, and all groups have their share.
#[test]
fn nested_groups_have_their_share() {
    let (entrain, stock) = (nested(Arm::HOST), nested(Arm::STOCK));
    println!("25 equal groups, least and most of the share: {entrain:.3?}, with EEVDF {stock:.3?}");
    assert!(entrain.0 > 0.98 && entrain.1 < 1.03, "all have their share: {entrain:?}");
}
