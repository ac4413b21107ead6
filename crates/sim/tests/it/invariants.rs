//! What must hold at every moment, with the bounds that are stated for it, while machines and tasks change.

use entrain_sim::kernel::Kernel;
use entrain_sim::kernel::mask::CpuMask;
use entrain_sim::kernel::topology::Shape;
use entrain_sim::program::Step::{Compute, Done, Post, Sleep, Wait};
use entrain_sim::program::Time::{Fixed, Mean};
use entrain_sim::program::{MS, SEC, Step, US};
use entrain_sim::scenario::{Arm, guest, host, tasks};
use entrain_sim::world::{Act, Arch, HOST, MachineSpec, VmSpec, World};

const NAPPER: &[Step] = &[Compute(Mean(300 * US)), Sleep(Mean(500 * US)), Done];

fn two_caches(arm: Arm) -> World {
    let mut world = host(5, Shape { nodes: 1, llcs: 2, cores: 4, threads: 1 }, arm);
    world.checks.queues = true;
    world
}

/// Sleepers and pairs that wake each other, about as many as there are CPUs, and two that compute.
fn lively(world: &mut World) {
    tasks(world, HOST, "napper", 10, NAPPER);
    tasks(world, HOST, "hog", 2, &[Compute(Mean(10 * MS)), Done]);
    for pair in 0..3 {
        let (there, back) = (10 + 2 * pair, 11 + 2 * pair);
        tasks(world, HOST, "ping", 1, &[Compute(Mean(20 * US)), Post(there), Wait(back), Done]);
        tasks(world, HOST, "pong", 1, &[Wait(there), Compute(Mean(20 * US)), Post(back)]);
    }
}

/// The longest that somebody waited beside an idle CPU that he might have used, µs.
fn longest_idle(world: &World) -> f64 {
    world.checks.longest_idle as f64 / 1e3
}

fn sound(world: &World) {
    for rule in ["failed", "queue", "budget", "watchdog", "wait"] {
        let found = world.checks.found.iter().find(|violation| violation.rule == rule);
        assert!(found.is_none(), "{found:?}");
    }
}

#[test]
fn nobody_waits_beside_an_idle_cpu() {
    let idle = |arm| {
        let mut world = two_caches(arm);
        lively(&mut world);
        world.run(4 * SEC);
        sound(&world);
        longest_idle(&world)
    };
    let (entrain, stock) = (idle(Arm::HOST), idle(Arm::STOCK));
    println!("longest wait beside an idle CPU: Entrain {entrain:.1} µs, EEVDF {stock:.1}");
    assert!(entrain <= IDLE_US && entrain < stock, "{entrain} µs, EEVDF {stock}");
}

/// A choice, a switch and an interrupt to an idle CPU are on the way: 20 µs would do. It is not so yet: 177 µs on the host
/// (the model of EEVDF: 2 ms) and 96 in a guest, found by these tests on 2026-11-24. Whoever mends that lowers it.
const IDLE_US: f64 = 200.0;

#[test]
fn affinity_and_hotplug_leave_nobody_behind() {
    for arm in [Arm::STOCK, Arm::HOST] {
        let mut world = two_caches(arm);
        lively(&mut world);
        let all: Vec<_> = world.machines[0].kernel.tasks.iter().map(|task| task.id).collect();
        for turn in 0..400_u64 {
            let at = 5 * MS + turn * 9_173 * US;
            let task = all[turn as usize * 7 % all.len()];
            let some: CpuMask = (0..8).filter(|cpu| (turn >> (cpu % 5)) & 1 == 0 || *cpu == turn as u32 % 8).collect();
            world.act(at, Act::Allow(HOST, task, some));
            let cpu = 1 + turn as u32 % 7;
            world.act(at + 1_331 * US, Act::Hotplug(HOST, cpu, false));
            world.act(at + 31_907 * US, Act::Hotplug(HOST, cpu, true));
        }
        world.run(5 * SEC);
        sound(&world);
        println!("longest wait beside an idle CPU, {:?}: {:.1} µs", arm.host, longest_idle(&world));
        for task in &world.machines[0].kernel.tasks {
            assert!(task.allowed.has(task.cpu), "{:?} is where it may not be", task.id);
            assert!(task.sum_exec > 100 * MS, "{:?} had {} ns", task.id, task.sum_exec);
        }
    }
}

/// A `machine.slice` with 50 VMs of 4 vCPUs of weights from 1 to 10,000, on 16 CPUs; tasks, CPUs and weights change.
#[test]
fn fifty_vms_below_one_slice_keep_the_rules() {
    let mut world = host(3, Shape { nodes: 2, llcs: 1, cores: 8, threads: 1 }, Arm::HOST);
    world.checks.queues = true;
    let slice = world.add_group(HOST, Kernel::ROOT, 100);
    let mut groups = Vec::new();
    for vm in 0..50 {
        let group = world.add_group(HOST, slice, [1, 10, 100, 1000, 10_000][vm % 5]);
        groups.push(group);
        let m = world.add_vm(&VmSpec {
            guest: MachineSpec { shape: Shape::flat(4), policy: Arm::HOST.guest, tunables: Vec::new() },
            group,
            paired: false,
            arch: Arch::Arm64,
            pins: None,
        });
        let steps: &[Step] = if vm % 3 == 0 { NAPPER } else { &[Compute(Mean(5 * MS)), Done] };
        tasks(&mut world, m, "work", 4, steps);
    }
    for turn in 0..100_u64 {
        let at = 50 * MS + turn * 27_011 * US;
        let group = groups[turn as usize * 3 % 50];
        world.act(at, Act::GroupWeight(HOST, group, [10_000, 1, 100, 10][turn as usize % 4]));
        let cpu = 1 + (turn as u32 * 5) % 15;
        world.act(at + 3 * MS, Act::Hotplug(HOST, cpu, false));
        world.act(at + 90 * MS, Act::Hotplug(HOST, cpu, true));
    }
    world.run(4 * SEC);
    for rule in ["failed", "queue", "budget", "watchdog"] {
        let found = world.checks.found.iter().find(|violation| violation.rule == rule);
        assert!(found.is_none(), "{found:?}");
    }
    // Nobody starves, at whatever weight.
    let least = world.machines[0].kernel.tasks.iter().map(|task| task.sum_exec).min();
    println!("the least that a vCPU had in 4 s: {:.2} ms", least.unwrap_or(0) as f64 / 1e6);
    assert!(least > Some(0));
}

/// The same rules inside a guest that has a CPU for each vCPU, where its own scheduler decides.
#[test]
fn nobody_waits_beside_an_idle_vcpu() {
    let mut world = host(7, Shape::flat(4), Arm::GUEST);
    world.checks.guests = true;
    let m = guest(&mut world, 4, Arm::GUEST);
    tasks(&mut world, m, "napper", 5, NAPPER);
    tasks(&mut world, m, "hog", 1, &[Compute(Mean(10 * MS)), Done]);
    tasks(&mut world, m, "ping", 2, &[Compute(Fixed(20 * US)), Post(1), Wait(2), Done]);
    tasks(&mut world, m, "pong", 2, &[Wait(1), Compute(Fixed(20 * US)), Post(2)]);
    world.run(4 * SEC);
    sound(&world);
    println!("longest wait beside an idle vCPU: {:.1} µs", longest_idle(&world));
    assert!(longest_idle(&world) <= IDLE_US, "{} µs", longest_idle(&world));
}
