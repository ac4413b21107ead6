//! Who gives way to whom, beyond what faults.rs has (issue 26, faults 3 and 13).

use entrain_sim::kernel::Kernel;
use entrain_sim::kernel::topology::Shape;
use entrain_sim::program::Step::{Barrier, Broadcast, Compute, Done};
use entrain_sim::program::Time::Mean;
use entrain_sim::program::{SEC, US};
use entrain_sim::scenario::{Arm, guest, host, tasks};
use entrain_sim::world::{Arch, MachineSpec, Policy, VmSpec, World};

/// Shootdowns a second of three guests with 4 vCPUs on 4 pCPUs.
fn shootdowns(arch: Arch) -> f64 {
    let mut world = host(1, Shape::flat(4), Arm::HOST);
    let mut done = Vec::new();
    for _ in 0..3 {
        let shape = Shape::flat(4);
        let m = world.add_vm(&VmSpec {
            guest: MachineSpec { shape, policy: Policy::Eevdf, tunables: Vec::new() },
            group: Kernel::ROOT,
            paired: false,
            arch,
            pins: None,
        });
        done.push(tasks(&mut world, m, "unmap", 4, &[Compute(Mean(300 * US)), Broadcast, Done]));
    }
    world.run(2 * SEC);
    let ops = |world: &World| -> u64 {
        done.iter()
            .flat_map(|these| {
                these.tasks.iter().map(|task| world.machines[these.machine.0 as usize].tasks[task.0 as usize].ops)
            })
            .sum()
    };
    ops(&world) as f64 / 2.0
}

/// Fault 3: with APIC virtualization nothing is requested of KVM, and a target that was preempted in user mode looked as
/// if it owed nobody an answer.
#[test]
fn posted_interrupts_are_owed_answers() {
    let (posted, requested) = (shootdowns(Arch::Apicv), shootdowns(Arch::Amd));
    println!("shootdowns a second: {posted:.0} with APIC virtualization, {requested:.0} without");
    assert!(posted > 0.9 * requested, "yields to who has an interrupt to take are followed alike");
}

/// Fault 13: vCPUs that do nothing but spin, and so trap as fast as they can.
#[test]
fn spinners_do_not_hammer_the_queues() {
    let mut world = host(1, Shape::flat(1), Arm::HOST);
    let m = guest(&mut world, 4, Arm::HOST);
    tasks(&mut world, m, "spinner", 4, &[Barrier(0, 99)]);
    world.run(2 * SEC);
    let looks = world.machines[0].kernel.iterations / 2;
    println!("{looks} searches of queues a second");
    // 300 µs for an answer, a sixteenth of that between two looks.
    assert!(looks < 55_000, "{looks} searches of queues a second");
}
