//! What is done to tasks from outside, at any moment: affinity, weights, cgroups, new ones and the end of others, CPUs
//! that the real-time class takes away, guests that lie.

use entrain_sim::kernel::topology::Shape;
use entrain_sim::kernel::{Kernel, State, TaskId};
use entrain_sim::program::Step::{Compute, Done, Sleep};
use entrain_sim::program::Time::{Fixed, Mean};
use entrain_sim::program::{MS, SEC, Step, US};
use entrain_sim::scenario::{Arm, guest, host, tasks};
use entrain_sim::world::{Act, HOST, MachineId, World};

const HOG: &[Step] = &[Compute(Fixed(50 * MS)), Done];

fn had(world: &World, task: TaskId) -> u64 {
    world.machines[0].kernel.task(task).sum_exec
}

fn fine(world: &World) {
    let found: Vec<_> =
        world.checks.found.iter().filter(|violation| !["idle", "behind"].contains(&violation.rule)).collect();
    assert!(found.is_empty(), "{found:?}");
}

fn new(cpus: u32, arm: Arm) -> World {
    let mut world = host(1, Shape::flat(cpus), arm);
    world.checks.queues = true;
    world
}

fn hog(world: &mut World) -> TaskId {
    tasks(world, HOST, "hog", 1, HOG).tasks[0]
}

#[test]
fn affinity_moves_tasks_that_run_wait_and_sleep() {
    for arm in [Arm::STOCK, Arm::HOST] {
        let mut world = new(4, arm);
        let hogs: Vec<_> = (0..6).map(|_| hog(&mut world)).collect();
        let sleeper = tasks(&mut world, HOST, "sleeper", 1, &[Sleep(Fixed(5 * MS)), Compute(Fixed(MS)), Done]).tasks[0];
        // Everybody goes around all CPUs, each at another moment.
        for (i, task) in hogs.iter().chain([&sleeper]).enumerate() {
            for turn in 0..40 {
                let cpu = (i + turn) as u32 % 4;
                let at = turn as u64 * 20 * MS + i as u64 * 2_337 * US;
                world.act(at, Act::Allow(HOST, *task, [cpu].into_iter().collect()));
            }
        }
        world.run(SEC);
        fine(&world);
        for task in hogs.iter().chain([&sleeper]) {
            let kernel = &world.machines[0].kernel;
            assert!(kernel.task(*task).allowed.has(kernel.task(*task).cpu), "{task:?} is where it may not be");
        }
        assert!(hogs.iter().map(|task| had(&world, *task)).sum::<u64>() > 3 * SEC, "hardly a CPU idles");
        assert!(world.machines[0].tasks[sleeper.0 as usize].ops > 20);
    }
}

#[test]
fn weights_and_groups_change_shares_at_once() {
    for arm in [Arm::STOCK, Arm::HOST] {
        let mut world = new(1, arm);
        let group = world.add_group(HOST, Kernel::ROOT, 100);
        let (a, b) = (hog(&mut world), hog(&mut world));
        world.act(2 * SEC, Act::Weight(HOST, a, 400));
        world.run(2 * SEC);
        let before = (had(&world, a), had(&world, b));
        world.run(4 * SEC);
        let ratio = (had(&world, a) - before.0) as f64 / (had(&world, b) - before.1) as f64;
        assert!((3.0..5.0).contains(&ratio), "{arm:?}: {ratio}");
        world.act(4 * SEC, Act::Move(HOST, a, group));
        world.act(4 * SEC, Act::GroupWeight(HOST, group, 50));
        let before = (had(&world, a), had(&world, b));
        world.run(8 * SEC);
        let ratio = (had(&world, a) - before.0) as f64 / (had(&world, b) - before.1) as f64;
        assert!((0.4..0.65).contains(&ratio), "{arm:?}: half of the other's weight, {ratio}");
        fine(&world);
    }
}

#[test]
fn tasks_come_and_go() {
    for arm in [Arm::STOCK, Arm::HOST] {
        let mut world = new(2, arm);
        let hogs: Vec<_> = (0..4).map(|_| hog(&mut world)).collect();
        let sleeper = tasks(&mut world, HOST, "sleeper", 1, &[Sleep(Fixed(300 * MS)), Compute(Fixed(MS))]).tasks[0];
        for task in [hogs[0], hogs[1], sleeper] {
            world.act(500 * MS, Act::Kill(HOST, task));
        }
        world.act(600 * MS, Act::Fork(HOST, Kernel::ROOT, 100, HOG.to_vec()));
        world.run(2 * SEC);
        fine(&world);
        let kernel = &world.machines[0].kernel;
        for task in [hogs[0], hogs[1], sleeper] {
            assert_eq!(kernel.task(task).state, State::Dead, "{arm:?} {task:?}");
        }
        let child = kernel.tasks.last().expect("there is one").id;
        assert!(had(&world, child) > 600 * MS, "three share two CPUs: {}", had(&world, child));
    }
}

#[test]
fn the_real_time_class_takes_cpus_away_and_gives_them_back() {
    for arm in [Arm::STOCK, Arm::HOST] {
        let mut world = new(2, arm);
        let hogs: Vec<_> = (0..4).map(|_| hog(&mut world)).collect();
        let mut spec = World::spec(Kernel::ROOT, 100, Some(&[0]));
        spec.realtime = true;
        let rt = world.add_task(HOST, spec, &[Sleep(Fixed(2 * MS)), Compute(Fixed(2 * MS)), Done], 0);
        world.run(2 * SEC);
        fine(&world);
        let late = &world.machines[0].tasks[rt.0 as usize].latencies;
        assert!(late.iter().all(|ns| *ns < 100_000), "nobody is before it: {:?}", late.iter().max());
        assert!(world.machines[0].tasks[rt.0 as usize].ops > 450);
        let least = hogs.iter().map(|task| had(&world, *task)).min().expect("four");
        // EEVDF's model counts tasks, not what the real-time class leaves of a CPU: two stay on each.
        assert!(least > 450 * MS, "{arm:?}: one and a half CPUs for four: {least}");
    }
}

#[test]
fn a_guest_that_lies_gains_nothing() {
    let mut world = new(2, Arm::BOTH);
    let guests: Vec<MachineId> = (0..2).map(|_| guest(&mut world, 2, Arm::BOTH)).collect();
    for m in &guests {
        tasks(&mut world, *m, "hog", 2, &[Compute(Mean(MS)), Done]);
    }
    for turn in 1..1_000 {
        world.act(turn * 4_100 * US, Act::Lie(guests[0]));
    }
    world.run(4 * SEC);
    fine(&world);
    let of = |m: MachineId| (0..2).map(|cpu| had(&world, world.thread_of(m, cpu))).sum::<u64>() as f64;
    let ratio = of(guests[0]) / of(guests[1]);
    assert!(ratio < 1.1, "{ratio}");
}
