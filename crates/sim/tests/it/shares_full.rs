//! Shares where some are due a whole CPU or nearly that, and cannot have more: in drawn trees of cgroups, and beside VMs that
//! fill the machine.

use entrain_sim::kernel::group::GroupId;
use entrain_sim::kernel::topology::Shape;
use entrain_sim::kernel::{Kernel, TaskId};
use entrain_sim::program::Step::{Compute, Done, Until};
use entrain_sim::program::Time::Fixed;
use entrain_sim::program::{MS, SEC, Step, US};
use entrain_sim::scenario::{Arm, host};
use entrain_sim::search::{draw, shares};
use entrain_sim::world::{HOST, Policy, World};

use crate::shares::{HOG, hogs_in};

/// Services of a slice, each in a group of its own.
fn services(world: &mut World, slice: GroupId, count: usize, steps: &[Step]) -> Vec<TaskId> {
    let add = |_| {
        let service = world.add_group(HOST, slice, 100);
        world.add_task(HOST, World::spec(service, 100, None), steps, 0)
    };
    (0..count).map(add).collect()
}

/// VMs of a slice all of whose vCPUs compute.
fn vms_in(world: &mut World, slice: GroupId, vms: usize, vcpus: u32, arm: Arm) {
    for _ in 0..vms {
        let group = world.add_group(HOST, slice, 100);
        hogs_in(world, vcpus, arm, group);
    }
}

/// What this many programs in `system.slice`, beside VMs of so many vCPUs in a `machine.slice` of the same weight, have too much
/// or too little, as a part of all CPUs. All compute.
fn slices(arm: Arm, shape: Shape, programs: usize, vms: usize, vcpus: u32) -> f64 {
    let mut world = host(1, shape, arm);
    let (system, machine) = (world.add_group(HOST, Kernel::ROOT, 100), world.add_group(HOST, Kernel::ROOT, 100));
    services(&mut world, system, programs, HOG);
    vms_in(&mut world, machine, vms, vcpus, arm);
    let shares = shares::measure(&mut world, 6 * SEC);
    shares::misplaced(&world, &shares)
}

/// A busy service is due more than one CPU where VMs have as much weight as all services. It has its CPU, and the other CPUs of
/// its cache are not kept free for it.
#[test]
fn one_that_is_due_more_than_a_cpu_leaves_the_rest_of_its_cache_to_others() {
    let caches = Shape { llcs: 2, cores: 4, ..Shape::flat(8) };
    for (shape, programs, vms, vcpus, most) in [
        (caches, 1, 4, 8, 0.02),
        (caches, 1, 20, 4, 0.03),
        (caches, 2, 4, 8, 0.02),
        (Shape::flat(8), 1, 4, 8, 0.01),
        (Shape::flat(8), 2, 20, 4, 0.01),
        (Shape::flat(8), 5, 4, 8, 0.01),
    ] {
        let misplaced = |arm| slices(arm, shape, programs, vms, vcpus);
        let (entrain, stock) = (misplaced(Arm::HOST), misplaced(Arm::STOCK));
        println!(
            "{programs} programs beside {vms} VMs of {vcpus} vCPUs on 8 CPUs with {} caches: {:.1} % of all CPUs are with the \
             wrong ones, {:.1} % with EEVDF",
            shape.llcs,
            entrain * 100.0,
            stock * 100.0
        );
        assert!(entrain < most, "{programs} programs, {vms} VMs of {vcpus}: {entrain}");
    }
}

/// In trees of cgroups as the search draws them: whole CPUs and parts of one, one cache and several, hyper-threads.
#[test]
fn drawn_trees_of_cgroups_have_their_shares_as_with_eevdf_or_better() {
    let (mut entrain, mut stock, worlds) = (0.0, 0.0, 80);
    for seed in 1..=worlds {
        let mut plan = draw::draw_hogs(seed);
        let mut misplaced = |policy| {
            plan.host = policy;
            let mut world = plan.build();
            let shares = shares::measure(&mut world, plan.end);
            shares::misplaced(&world, &shares) / worlds as f64
        };
        entrain += misplaced(Policy::Entrain);
        stock += misplaced(Policy::Eevdf);
    }
    println!("with the wrong ones, of all CPUs: {:.1} %, {:.1} % with EEVDF", entrain * 100.0, stock * 100.0);
    assert!(entrain < 0.025 && entrain < stock / 1.5, "{entrain} {stock}");
}

/// A thread that works for a moment each 2 ms: a backend of a virtual device.
const LIGHT: &[Step] = &[Until(2 * MS), Compute(Fixed(20 * US)), Done];

/// What four light services of a `machine.slice` wait on average from wake-up to running, ns, where VMs and programs that
/// are due a whole CPU compute on four CPUs.
fn light_ones_wait(arm: Arm, programs: usize, vms: usize, vcpus: u32) -> u64 {
    let mut waits = Vec::new();
    for seed in 1..=4 {
        let mut world = host(seed, Shape::flat(4), arm);
        let (system, machine) = (world.add_group(HOST, Kernel::ROOT, 100), world.add_group(HOST, Kernel::ROOT, 100));
        services(&mut world, system, programs, HOG);
        let light = services(&mut world, machine, 4, LIGHT);
        vms_in(&mut world, machine, vms, vcpus, arm);
        world.run(3 * SEC);
        waits.extend(light.iter().flat_map(|task| world.machines[0].tasks[task.0 as usize].latencies.clone()));
    }
    waits.iter().map(|wait| u64::from(*wait)).sum::<u64>() / waits.len() as u64
}

/// One that is due more than a CPU is behind without end. Those who wake beside it do not wait until it has caught up.
#[test]
fn what_one_is_owed_keeps_those_who_wake_beside_it_waiting_for_no_longer_than_a_slice_or_two() {
    for (programs, vms, vcpus) in [(1, 2, 4), (2, 2, 4), (2, 8, 2)] {
        let wait = |arm| light_ones_wait(arm, programs, vms, vcpus) / US;
        let (entrain, stock) = (wait(Arm::HOST), wait(Arm::STOCK));
        println!("{programs} programs, {vms} VMs of {vcpus} vCPUs: {entrain} µs, EEVDF {stock}");
        assert!(entrain < 300, "{programs} programs, {vms} VMs of {vcpus} vCPUs: {entrain} µs");
    }
}
