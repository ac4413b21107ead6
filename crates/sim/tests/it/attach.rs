//! Schedulers that are attached and detached while tasks run, wait, sleep and wake; bypass mode; CPUs of guests.

use entrain_sim::kernel::Kernel;
use entrain_sim::kernel::group::Max;
use entrain_sim::kernel::topology::Shape;
use entrain_sim::program::Step::{Broadcast, Compute, Done, Hold, Lock, Post, Sleep, Unlock, Wait};
use entrain_sim::program::Time::{Fixed, Mean};
use entrain_sim::program::{MS, SEC, Step, US};
use entrain_sim::scenario::{Arm, guest, host, tasks};
use entrain_sim::search::{self, Plan};
use entrain_sim::world::{Act, HOST, MachineId, World};

const HOG: &[Step] = &[Compute(Mean(5 * MS)), Done];
const NAPPER: &[Step] = &[Compute(Mean(MS)), Sleep(Mean(MS)), Done];

fn fine(world: &World) {
    for machine in &world.machines {
        assert_eq!(machine.kernel.failed, None);
    }
    let found: Vec<_> =
        world.checks.found.iter().filter(|violation| !["idle", "behind"].contains(&violation.rule)).take(3).collect();
    assert!(found.is_empty(), "{found:?}");
}

/// Everything that tasks do, on the host and in two guests.
fn busy_world(seed: u64, arm: Arm) -> (World, Vec<MachineId>) {
    let mut world = host(seed, Shape { nodes: 1, llcs: 2, cores: 2, threads: 1 }, arm);
    world.checks.queues = true;
    let group = world.add_group(HOST, Kernel::ROOT, 300);
    let limited = world.add_group(HOST, Kernel::ROOT, 100);
    world.set_group_max(HOST, limited, Some(Max { quota: 20 * MS, period: 100 * MS, burst: 0 }));
    tasks(&mut world, HOST, "hog", 3, HOG);
    for of in [group, limited] {
        world.add_task(HOST, World::spec(of, 100, None), HOG, 0);
        world.add_task(HOST, World::spec(of, 100, None), NAPPER, 0);
    }
    world.add_task(HOST, World::spec(group, 100, Some(&[1])), NAPPER, 0);
    let guests: Vec<_> = (0..2).map(|_| guest(&mut world, 4, arm)).collect();
    for m in &guests {
        let lock = [Compute(Mean(200 * US)), Lock(0), Hold(Fixed(5 * US)), Unlock(0), Done];
        tasks(&mut world, *m, "lock", 4, &lock);
        tasks(&mut world, *m, "ping", 2, &[Compute(Mean(50 * US)), Post(1), Wait(2), Done]);
        tasks(&mut world, *m, "pong", 2, &[Wait(1), Compute(Mean(50 * US)), Post(2)]);
        tasks(&mut world, *m, "broadcast", 1, &[Sleep(Mean(3 * MS)), Broadcast, Done]);
        world.add_task(*m, World::spec(Kernel::ROOT, 100, Some(&[2])), NAPPER, 0);
    }
    (world, guests)
}

fn done(world: &World, m: MachineId) -> u64 {
    world.machines[m.0 as usize].tasks.iter().map(|task| task.ops).sum()
}

#[test]
fn schedulers_come_and_go_at_any_moment() {
    let (mut world, guests) = busy_world(1, Arm::BOTH);
    for (i, m) in guests.iter().chain([&HOST]).enumerate() {
        for turn in 0..60 {
            let at = 20 * MS + turn * 31_337 * US + i as u64 * 7_919 * US;
            world.act(at, Act::Detach(*m));
            world.act(at + (turn % 7) * 2_113 * US, Act::Attach(*m));
        }
    }
    let mut before = 0;
    for end in 1..=4 {
        world.run(end * SEC);
        fine(&world);
        let all = done(&world, guests[0]) + done(&world, guests[1]);
        assert!(all > before + 1_000, "guests go on: {all}");
        before = all;
    }
    for m in guests.iter().chain([&HOST]) {
        assert!(!world.checks.counts.contains_key("watchdog"), "{m:?}");
    }
}

/// What a scheduler knows of tasks must not outlive it, nor be missed: shares are right after any number of turns.
#[test]
fn shares_are_right_after_a_scheduler_has_come_back() {
    let mut world = host(3, Shape::flat(1), Arm::STOCK);
    let hog = |world: &mut World, weight| world.add_task(HOST, World::spec(Kernel::ROOT, weight, None), HOG, 0);
    let (light, heavy) = (hog(&mut world, 100), hog(&mut world, 300));
    for turn in 0..20 {
        world.act(turn * 50 * MS + 3 * MS, Act::Attach(HOST));
        world.act(turn * 50 * MS + 28 * MS, Act::Detach(HOST));
    }
    world.act(1_003 * MS, Act::Attach(HOST));
    world.run(1_010 * MS);
    let had = |world: &World, task| world.machines[0].kernel.task(task).sum_exec as f64;
    let before = (had(&world, light), had(&world, heavy));
    world.run(9 * SEC);
    fine(&world);
    let ratio = (had(&world, heavy) - before.1) / (had(&world, light) - before.0);
    assert!((2.8..3.2).contains(&ratio), "{ratio}");
}

#[test]
fn a_bypassed_scheduler_finds_its_way_back() {
    let (mut world, guests) = busy_world(2, Arm::BOTH);
    for (i, m) in guests.iter().chain([&HOST]).enumerate() {
        for turn in 0..80 {
            let at = 10 * MS + turn * 23_117 * US + i as u64 * 5_701 * US;
            world.act(at, Act::Bypass(*m, true));
            world.act(at + 1_000 * US + (turn % 9) * 1_709 * US, Act::Bypass(*m, false));
        }
    }
    world.run(3 * SEC);
    fine(&world);
    assert!(done(&world, guests[0]) > 3_000);
}

/// A guest's scheduler has no word about CPUs: it is left, and its agent loads it anew.
#[test]
fn vcpus_come_and_go() {
    for arm in [Arm::STOCK, Arm::BOTH] {
        let (mut world, guests) = busy_world(3, arm);
        for turn in 0..12 {
            let (m, cpu) = (guests[turn % 2], 1 + turn as u32 % 3);
            world.act(100 * MS + turn as u64 * 150 * MS, Act::Hotplug(m, cpu, false));
            world.act(190 * MS + turn as u64 * 150 * MS, Act::Hotplug(m, cpu, true));
        }
        world.run(SEC);
        let before = done(&world, guests[0]);
        world.run(3 * SEC);
        fine(&world);
        assert!(done(&world, guests[0]) > before + 1_000, "{arm:?}");
        for m in guests {
            let kernel = &world.machines[m.0 as usize].kernel;
            assert_eq!(kernel.online.count(), 4);
            assert!((0..4).any(|cpu| kernel.cpu(cpu).curr.is_some()), "{arm:?}");
        }
    }
}

/// The search draws these deeds, too.
#[test]
fn the_search_draws_them() {
    let plans: Vec<Plan> = (0..200).map(search::plan_of).collect();
    let text = serde_json::to_string(&plans).expect("plans are data");
    for deed in ["Attach", "Detach", "Bypass", "Hotplug"] {
        assert!(text.contains(deed), "{deed}");
    }
}
