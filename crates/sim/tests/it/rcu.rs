//! Grace periods: over when every busy CPU has been in a quiescent state, held up by a vCPU that has lost its CPU.

use entrain_sim::kernel::topology::Shape;
use entrain_sim::program::Step::{Compute, Done, Hold, Lock, Synchronize, Unlock};
use entrain_sim::program::Time::{Fixed, Mean};
use entrain_sim::program::{MS, SEC, US};
use entrain_sim::scenario::{Arm, guest, host, tasks};
use entrain_sim::world::{HOST, World};

fn ops(world: &World, m: entrain_sim::world::MachineId, task: entrain_sim::kernel::TaskId) -> u64 {
    world.machines[m.0 as usize].tasks[task.0 as usize].ops
}

#[test]
fn an_idle_machine_has_none_to_wait_for() {
    let mut world = host(1, Shape::flat(4), Arm::STOCK);
    let writer = tasks(&mut world, HOST, "writer", 1, &[Compute(Fixed(50 * US)), Synchronize, Done]).tasks[0];
    world.run(SEC);
    // Its own CPU is in a quiescent state when it sleeps.
    assert!(ops(&world, HOST, writer) > 15_000, "{}", ops(&world, HOST, writer));
    assert_eq!(world.grace_periods(HOST), ops(&world, HOST, writer));
}

/// One grace period that begins as all CPUs are idle waits for none of them.
#[test]
fn one_that_begins_as_the_last_cpu_idles_is_over() {
    let mut world = host(1, Shape::flat(4), Arm::STOCK);
    let writers = tasks(&mut world, HOST, "writer", 3, &[Compute(Mean(50 * US)), Synchronize, Done]).tasks;
    world.run(SEC);
    for writer in writers {
        assert!(ops(&world, HOST, writer) > 5_000, "{}", ops(&world, HOST, writer));
    }
}

#[test]
fn a_tick_in_user_mode_ends_it_and_one_in_a_section_does_not() {
    let periods = |steps: &[entrain_sim::program::Step]| {
        let mut world = host(1, Shape::flat(2), Arm::STOCK);
        tasks(&mut world, HOST, "busy", 1, steps);
        let writer = tasks(&mut world, HOST, "writer", 1, &[Compute(Fixed(50 * US)), Synchronize, Done]).tasks[0];
        world.run(SEC);
        ops(&world, HOST, writer)
    };
    // One tick each 4 ms.
    let user = periods(&[Compute(Fixed(100 * MS)), Done]);
    assert!((200..260).contains(&user), "{user}");
    let section = periods(&[Lock(0), Hold(Fixed(50 * MS)), Unlock(0), Compute(Fixed(US)), Done]);
    assert!(section < 60, "{section}");
}

/// The host's own grace periods do not wait for guests that compute: an entry is a quiescent state.
#[test]
fn guests_hold_up_their_own_and_not_the_hosts() {
    let mut world = host(1, Shape::flat(2), Arm::STOCK);
    let mut writers = Vec::new();
    for _ in 0..2 {
        let m = guest(&mut world, 4, Arm::STOCK);
        tasks(&mut world, m, "hog", 4, &[Compute(Mean(5 * MS)), Done]);
        writers.push((m, tasks(&mut world, m, "writer", 1, &[Compute(Fixed(50 * US)), Synchronize, Done]).tasks[0]));
    }
    let mine = tasks(&mut world, HOST, "writer", 1, &[Compute(Fixed(50 * US)), Synchronize, Done]).tasks[0];
    world.run(2 * SEC);
    let theirs = writers.iter().map(|(m, task)| ops(&world, *m, *task)).max().expect("two");
    assert!(theirs > 20, "they come to an end: {theirs}");
    assert!(ops(&world, HOST, mine) > 4 * theirs, "{} {theirs}", ops(&world, HOST, mine));
}
