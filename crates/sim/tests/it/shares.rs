//! Shares against what weights say, in flat and nested cgroups.

use entrain_sim::kernel::counts::Kind;
use entrain_sim::kernel::group::GroupId;
use entrain_sim::kernel::topology::Shape;
use entrain_sim::kernel::{Kernel, TaskId};
use entrain_sim::program::Step::{Compute, Done};
use entrain_sim::program::Time::Mean;
use entrain_sim::program::{MS, SEC, Step, US};
use entrain_sim::scenario::{Arm, guest, guest_in, host};
use entrain_sim::search::shares::{self, Share};
use entrain_sim::world::{Act, HOST, World};

/// A task that computes without end.
pub(crate) const HOG: &[Step] = &[Compute(Mean(20 * MS)), Done];

/// The largest miss, as a part of what was due; due less than `least` CPUs are left out: their slices are too long.
fn worst(shares: &[Share], least: f64) -> f64 {
    shares
        .iter()
        .filter(|share| share.due >= least)
        .map(|share| (share.had / share.due - 1.0).abs())
        .fold(0.0, f64::max)
}

fn flat(arm: Arm) -> f64 {
    let mut world = host(1, Shape::flat(1), arm);
    for weight in [50, 100, 100, 200, 400] {
        world.add_task(HOST, World::spec(Kernel::ROOT, weight, None), HOG, 0);
    }
    worst(&shares::measure(&mut world, 20 * SEC), 0.0)
}

#[test]
fn one_cpu_is_divided_by_weight() {
    let (entrain, stock) = (flat(Arm::HOST), flat(Arm::STOCK));
    println!("worst miss of a share on one CPU: {entrain:.4}, with EEVDF {stock:.4}");
    assert!(entrain < 0.02 && stock < 0.02);
}

/// A VM in a group of the host all of whose vCPUs compute.
pub(crate) fn hogs_in(world: &mut World, vcpus: u32, arm: Arm, group: GroupId) {
    let m = guest_in(world, vcpus, arm, group);
    for cpu in 0..vcpus {
        world.add_task(m, World::spec(Kernel::ROOT, 100, Some(&[cpu])), HOG, 0);
    }
}

/// A `machine.slice` with 50 VMs of 4 vCPUs that all compute, of weights from 1 to 10,000, on 16 CPUs.
fn machines(arm: Arm, weights: &[u32]) -> f64 {
    let mut world = host(1, Shape::flat(16), arm);
    let slice = world.add_group(HOST, Kernel::ROOT, 100);
    for vm in 0..50 {
        let group = world.add_group(HOST, slice, weights[vm % weights.len()]);
        hogs_in(&mut world, 4, arm, group);
    }
    worst(&shares::measure(&mut world, 10 * SEC), 0.02)
}

#[test]
fn fifty_vms_below_one_slice() {
    let equal = (machines(Arm::HOST, &[100]), machines(Arm::STOCK, &[100]));
    let unequal = (machines(Arm::HOST, &[1, 100, 1000, 10_000]), machines(Arm::STOCK, &[1, 100, 1000, 10_000]));
    println!("worst miss of a share, 50 VMs below one slice: equal {equal:.3?}, of weights 1 to 10,000 {unequal:.3?}");
    println!("(Entrain on the host, EEVDF)");
    // Issue 26, fault 1. The lightest of the unequal ones are due less than a millisecond in these eight seconds.
    assert!(equal.0 < 0.02 && unequal.0 < 0.02, "{equal:?} {unequal:?}");
}

/// The thread of a guest with one vCPU, which computes.
fn hog(world: &mut World) -> TaskId {
    let m = guest(world, 1, Arm::HOST);
    world.add_task(m, World::spec(Kernel::ROOT, 100, None), HOG, 0);
    world.thread_of(m, 0)
}

/// Guests with a vCPU each that compute on two CPUs. For a millisecond one of them has one for itself, and the others share
/// the other one; then all may use both again. After how many ms one of them has come to the one that is alone.
fn joined_after() -> f64 {
    let mut world = host(1, Shape::flat(2), Arm::HOST);
    let vcpus: Vec<_> = (0..6)
        .map(|vm| {
            let vcpu = hog(&mut world);
            world.act(50 * MS, Act::Allow(HOST, vcpu, std::iter::once((vm == 0).into()).collect()));
            world.act(51 * MS, Act::Allow(HOST, vcpu, (0..2).collect()));
            vcpu
        })
        .collect();
    let alone = |world: &World| vcpus.iter().filter(|vcpu| world.machines[0].kernel.task(**vcpu).cpu == 1).count() < 2;
    let mut at = 51 * MS;
    world.run(at);
    while alone(&world) && at < 100 * MS {
        at += 100 * US;
        world.run(at);
    }
    (at - 51 * MS) as f64 / 1e6
}

/// One that has a CPU for itself shares it with those that queue for another, before its clock is far ahead of theirs: where it
/// is a vCPU that spins, they are who could end that, and KVM does not trap one whom nobody waits for.
#[test]
fn who_is_alone_is_joined_by_those_who_queue_elsewhere() {
    let after = joined_after();
    println!("one of five that share a CPU comes to the one that is alone after {after:.1} ms");
    assert!(after < 2.5, "{after}");
}

/// How often a second a vCPU that has a CPU for itself is called to the scheduler and goes on, while five wait for another
/// CPU, on which all but it have to stay.
fn called_in_vain() -> u64 {
    let mut world = host(1, Shape::flat(2), Arm::HOST);
    for vm in 0..6 {
        let vcpu = hog(&mut world);
        world.act(0, Act::Allow(HOST, vcpu, std::iter::once((vm == 0).into()).collect()));
    }
    world.run(SEC);
    world.machines[0].kernel.counts.of(Kind::Stay).events
}

/// Those who may not come to it are none of its business: it is asked once in a slice whether it goes on, as where nobody
/// waits anywhere.
#[test]
fn who_is_alone_is_not_called_for_those_who_may_not_come() {
    let called = called_in_vain();
    println!("called in vain {called} times a second");
    assert!(called < 450, "{called}");
}
