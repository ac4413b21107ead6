//! cpu.max under Entrain's schedulers and under the model of EEVDF: who is limited has its quota, within 5 %, and nobody
//! else pays for that.

use entrain_sim::costs::TICK_PERIOD;
use entrain_sim::kernel::counts::{Count, Kind};
use entrain_sim::kernel::group::{GroupId, Max};
use entrain_sim::kernel::topology::Shape;
use entrain_sim::kernel::{Kernel, TaskId};
use entrain_sim::program::Step::{Compute, Done, Hold, Lock, Sleep, Unlock};
use entrain_sim::program::Time::{Fixed, Mean};
use entrain_sim::program::{MS, SEC, Step, US};
use entrain_sim::scenario::{Arm, guest, guest_in, host};
use entrain_sim::world::{HOST, MachineId, Policy, World};

const HOG: &[Step] = &[Compute(Fixed(50 * MS)), Done];
/// Entrain in the guests alone.
const GUEST: Arm = Arm { host: Policy::Eevdf, guest: Policy::Entrain, paired: false, tunables: &[] };
const ARMS: [(&str, Arm); 2] = [("EEVDF", Arm::STOCK), ("Entrain", Arm::HOST)];

fn limit(quota: u64, period: u64) -> Option<Max> {
    Some(Max { quota, period, burst: 0 })
}

fn hogs(world: &mut World, m: MachineId, group: GroupId, count: u32, steps: &[Step]) -> Vec<TaskId> {
    (0..count).map(|_| world.add_task(m, World::spec(group, 100, None), steps, 0)).collect()
}

fn cpu_time(world: &World, m: MachineId, tasks: &[TaskId]) -> u64 {
    tasks.iter().map(|task| world.machines[m.0 as usize].kernel.task(*task).sum_exec).sum()
}

/// Nothing was broken, least of all the watchdog's patience.
fn healthy(world: &World) {
    assert!(world.checks.counts.is_empty(), "{:?}", world.checks.found.first());
}

/// The scheduler goes on. Limits that came and went have made tasks wait.
fn alive(world: &World) {
    for rule in ["failed", "watchdog"] {
        assert_eq!(world.checks.counts.get(rule), None, "{:?}", world.checks.found);
    }
}

/// CPU time that a limited group's tasks have in `seconds` on `cpus` CPUs, of what its quota allows, beside `others`
/// hogs without a limit; and the time of those.
fn of_quota(arm: Arm, cpus: u32, count: u32, steps: &[Step], max: Max, others: u32, seconds: u64) -> (f64, f64) {
    let mut world = host(1, Shape::flat(cpus), arm);
    let group = world.add_group(HOST, Kernel::ROOT, 10_000);
    world.set_group_max(HOST, group, Some(max));
    let limited = hogs(&mut world, HOST, group, count, steps);
    let free = hogs(&mut world, HOST, Kernel::ROOT, others, HOG);
    world.run(seconds * SEC);
    alive(&world);
    let allowed = max.quota as f64 / max.period as f64 * (seconds * SEC) as f64;
    (cpu_time(&world, HOST, &limited) as f64 / allowed, cpu_time(&world, HOST, &free) as f64 / 1e9)
}

#[test]
fn a_hog_has_its_quota() {
    for percent in [1, 5, 20, 50, 90] {
        let max = Max { quota: percent * MS, period: 100 * MS, burst: 0 };
        for (name, arm) in ARMS {
            let (part, _) = of_quota(arm, 1, 1, HOG, max, 0, 10);
            println!("{percent} % of one CPU under {name}: {part:.3} of it");
            assert!((0.95..1.05).contains(&part), "{percent} % under {name}: {part}");
        }
    }
}

#[test]
fn short_and_long_periods_have_their_quota() {
    for (quota, period) in [(MS, 4 * MS), (2 * MS, SEC), (500 * MS, SEC), (3 * MS, 10 * MS)] {
        for (name, arm) in ARMS {
            let (part, _) = of_quota(arm, 2, 2, HOG, Max { quota, period, burst: 0 }, 0, 100);
            println!("{quota} ns in {period} under {name}: {part:.3} of it");
            assert!((0.95..1.05).contains(&part), "{quota} in {period} under {name}: {part}");
        }
    }
}

#[test]
fn many_on_64_cpus_have_their_quota() {
    for quota in [20 * MS, 400 * MS, 3200 * MS] {
        let max = Max { quota, period: 100 * MS, burst: 0 };
        for (name, arm) in ARMS {
            let (part, free) = of_quota(arm, 64, 64, HOG, max, 64, 10);
            let rest = 64.0 * 10.0 - part * quota as f64 / 1e8 * 10.0;
            println!("{quota} ns of 64 CPUs under {name}: {part:.3} of it, the others {:.3} of the rest", free / rest);
            // EEVDF's CPUs find out at their ticks, and each may owe as much at the end; and while it idles, a CPU leaves to
            // another whoever has just run there.
            let stock = arm.host == Policy::Eevdf;
            let (owed, least) =
                if stock { ((64 * TICK_PERIOD) as f64 / (100 * quota) as f64, 0.95) } else { (0.0, 0.97) };
            assert!((0.95..1.05 + owed).contains(&part), "{quota} under {name}: {part}");
            assert!(free > least * rest, "{quota} under {name}: the others have {free} of {rest}");
        }
    }
}

/// Tasks that sleep much use their quota as well as those that compute, one turn each being small.
#[test]
fn sleepers_have_their_quota() {
    let steps = &[Compute(Mean(200 * US)), Sleep(Mean(300 * US)), Done];
    let max = Max { quota: 100 * MS, period: 100 * MS, burst: 0 };
    for (name, arm) in ARMS {
        let (part, _) = of_quota(arm, 8, 32, steps, max, 0, 10);
        println!("sleepers under {name}: {part:.3}");
        assert!((0.95..1.05).contains(&part), "{name}: {part}");
    }
}

/// What one does not use another does; what all of them may have together is the outer group's.
#[test]
fn nested_limits_hold_together() {
    for (name, arm) in ARMS {
        let mut world = host(1, Shape::flat(4), arm);
        let outer = world.add_group(HOST, Kernel::ROOT, 100);
        world.set_group_max(HOST, outer, limit(100 * MS, 100 * MS));
        let between = world.add_group(HOST, outer, 100);
        let inner: Vec<_> = (0..3).map(|_| world.add_group(HOST, between, 100)).collect();
        world.set_group_max(HOST, inner[0], limit(20 * MS, 50 * MS));
        world.set_group_max(HOST, inner[1], limit(80 * MS, 100 * MS));
        let tasks: Vec<_> = inner.iter().map(|group| hogs(&mut world, HOST, *group, 2, HOG)).collect();
        world.run(20 * SEC);
        healthy(&world);
        let had: Vec<_> = tasks.iter().map(|tasks| cpu_time(&world, HOST, tasks) as f64 / 20e9).collect();
        let all: f64 = had.iter().sum();
        println!("nested under {name}: {had:.3?}, together {all:.3} of 1");
        assert!((0.95..1.05).contains(&all), "{name}: {all}");
        assert!(had[0] < 0.42 && had[1] < 0.84, "{name}: {had:?}");
        // Nobody is left out while the outer group has time.
        assert!(had.iter().all(|had| *had > 0.15), "{name}: {had:?}");
    }
}

/// Time that was not used is saved for a burst.
#[test]
fn bursts_are_saved_up() {
    for (name, arm) in ARMS {
        let burst = |burst| {
            let mut world = host(1, Shape::flat(1), arm);
            let group = world.add_group(HOST, Kernel::ROOT, 100);
            world.set_group_max(HOST, group, Some(Max { quota: 20 * MS, period: 100 * MS, burst }));
            // Now and then it wants 40 ms at once.
            let steps = &[Sleep(Fixed(933 * MS)), Compute(Fixed(40 * MS)), Done];
            let task = hogs(&mut world, HOST, group, 1, steps)[0];
            world.run(20 * SEC);
            healthy(&world);
            let task = world.machines[0].kernel.task(task);
            (task.sum_wait as f64 / 20e6, task.max_wait / MS)
        };
        let (without, with) = (burst(0), burst(20 * MS));
        println!("waits for a burst of 40 ms under {name}, mean and longest in ms: {without:?}, saved up: {with:?}");
        assert!(without.0 > 20.0, "{name}: {without:?}");
        assert!(with.0 < 0.1 * without.0, "{name}: {with:?}");
    }
}

/// `cpu.max` written while tasks run, taken away, given again: each holds at once.
#[test]
fn limits_change_at_run_time() {
    for (name, arm) in ARMS {
        let mut world = host(1, Shape::flat(2), arm);
        let group = world.add_group(HOST, Kernel::ROOT, 100);
        let tasks = hogs(&mut world, HOST, group, 3, HOG);
        let (mut end, mut before) = (0, 0);
        let mut part = |world: &mut World, max| {
            world.set_group_max(HOST, group, max);
            end += 4 * SEC;
            world.run(end);
            let had = cpu_time(world, HOST, &tasks);
            let part = (had - before) as f64 / 4e9;
            before = had;
            part
        };
        let had = [
            part(&mut world, None),
            part(&mut world, limit(20 * MS, 100 * MS)),
            part(&mut world, limit(150 * MS, 100 * MS)),
            part(&mut world, None),
            part(&mut world, limit(5 * MS, 20 * MS)),
            part(&mut world, None),
        ];
        println!("CPUs under {name}: {had:.3?}");
        alive(&world);
        for (had, should) in had.iter().zip([2.0, 0.2, 1.5, 2.0, 0.25, 2.0]) {
            assert!((had / should - 1.0_f64).abs() < 0.05, "{name}: {had} of {should}");
        }
    }
}

/// A group of 200 that may have a thousandth of a CPU: each waits for minutes, and the watchdog is content.
#[test]
fn the_watchdog_is_not_tripped_by_the_smallest_limit() {
    let mut world = host(1, Shape::flat(4), Arm::HOST);
    let group = world.add_group(HOST, Kernel::ROOT, 100);
    world.set_group_max(HOST, group, limit(MS, SEC));
    let limited = hogs(&mut world, HOST, group, 200, HOG);
    let free = hogs(&mut world, HOST, Kernel::ROOT, 4, HOG);
    world.run(40 * SEC);
    healthy(&world);
    let (had, rest) = (cpu_time(&world, HOST, &limited), cpu_time(&world, HOST, &free));
    println!("200 hogs with a thousandth of a CPU had {} ms in 40 s, the others {} s", had / MS, rest / SEC);
    // What their moments on a CPU take is theirs, and beyond the quota: it is told in docs/policies.md.
    assert!(had < 40 * MS * 3 && rest > 158 * SEC, "{had} {rest}");
}

/// All of a group's tasks have their turn, also light ones beside heavy ones and beside those that sleep.
#[test]
fn nobody_starves_in_a_limited_group() {
    let mut world = host(1, Shape::flat(2), Arm::HOST);
    let group = world.add_group(HOST, Kernel::ROOT, 100);
    world.set_group_max(HOST, group, limit(50 * MS, 100 * MS));
    let light = world.add_task(HOST, World::spec(group, 1, None), HOG, 0);
    for _ in 0..4 {
        world.add_task(HOST, World::spec(group, 1000, None), HOG, 0);
    }
    hogs(&mut world, HOST, group, 8, &[Compute(Fixed(MS)), Sleep(Fixed(MS)), Done]);
    world.run(20 * SEC);
    healthy(&world);
    let light = world.machines[0].kernel.task(light);
    println!("the light one had {} ms, waited for {} ms at most", light.sum_exec / MS, light.max_wait / MS);
    assert!(light.sum_exec > 5 * MS && light.max_wait < 4 * SEC);
}

/// Tasks that wait for their group's time may leave it, and their group may end.
#[test]
fn those_who_wait_may_move_and_groups_may_end() {
    let mut world = host(1, Shape::flat(2), Arm::HOST);
    let mut last = world.add_group(HOST, Kernel::ROOT, 100);
    world.set_group_max(HOST, last, limit(MS, SEC));
    let tasks = hogs(&mut world, HOST, last, 6, HOG);
    let mut moved = 0;
    for second in 1..12 {
        world.run(second * SEC);
        let next = world.add_group(HOST, Kernel::ROOT, 100);
        if second % 3 != 0 {
            world.set_group_max(HOST, next, limit(second * MS, SEC));
        }
        for task in &tasks {
            world.move_task(HOST, *task, next);
            moved += 1;
        }
        world.remove_group(HOST, last);
        last = next;
    }
    let end = world.now;
    let before: Vec<_> = tasks.iter().map(|task| cpu_time(&world, HOST, &[*task])).collect();
    world.set_group_max(HOST, last, None);
    world.run(end + SEC);
    alive(&world);
    let had: Vec<_> = tasks.iter().zip(before).map(|(task, had)| cpu_time(&world, HOST, &[*task]) - had).collect();
    println!("{moved} moves; without a limit they had {had:?}");
    assert!(moved == 66 && had.iter().all(|had| had.abs_diff(SEC / 3) < SEC / 20), "{had:?}");
}

/// Work of two guests of four vCPUs, one of them with a limit of one pCPU; the guests' tasks share a lock.
fn vms(arm: Arm) -> (f64, f64, f64) {
    let mut world = host(1, Shape::flat(4), arm);
    let [limited, free] = [100, 100].map(|weight| world.add_group(HOST, Kernel::ROOT, weight));
    world.set_group_max(HOST, limited, limit(100 * MS, 100 * MS));
    let mut ops = Vec::new();
    for group in [limited, free] {
        let m = guest_in(&mut world, 4, arm, group);
        let steps = &[Compute(Mean(100 * US)), Lock(0), Hold(Fixed(10 * US)), Unlock(0), Done];
        ops.push((m, hogs(&mut world, m, Kernel::ROOT, 4, steps)));
    }
    world.run(5 * SEC);
    assert_eq!(world.machines[0].kernel.failed, None);
    let work = |(m, tasks): &(MachineId, Vec<TaskId>)| {
        tasks.iter().map(|task| world.machines[m.0 as usize].tasks[task.0 as usize].ops as f64).sum::<f64>()
    };
    let vcpus: Vec<_> = (0..4).map(TaskId).collect();
    (cpu_time(&world, HOST, &vcpus) as f64 / 5e9, work(&ops[0]), work(&ops[1]))
}

/// A vCPU's critical section may borrow from its group's time, and repays: the quota holds, the lock does not collapse.
#[test]
fn a_guest_with_a_limit_has_its_quota() {
    let (stock, entrain, both) = (vms(Arm::STOCK), vms(Arm::HOST), vms(Arm::BOTH));
    println!(
        "pCPUs, and operations of the limited guest and the other: EEVDF {stock:.2?}, host {entrain:.2?}, both {both:.2?}"
    );
    // EEVDF takes a vCPU off a CPU amid its critical section, and the others halt. What they give back wakes nobody before
    // the period ends unless it is more than a slice of 5 ms (start_cfs_slack_bandwidth()), and each of the 4 CPUs keeps
    // up to 1 ms: so much of the quota of 100 ms may be unused. With slices of 1 ms all of it is used.
    let unused = (5.0 + 4.0 * 1.0) / 100.0;
    for ((part, ..), least) in [(stock, 1.0 - unused), (entrain, 0.95), (both, 0.95)] {
        assert!((least..1.05).contains(&part), "{part}");
    }
    assert!(entrain.1 > 0.8 * stock.1 && entrain.2 > 0.8 * stock.2, "{entrain:?}, {stock:?}");
}

/// Machines without limits pay nothing: not one helper is called for them.
#[test]
fn unlimited_machines_are_as_they_were() {
    let run = |max| {
        let mut world = host(7, Shape::flat(2), Arm::HOST);
        let group = world.add_group(HOST, Kernel::ROOT, 100);
        let other = world.add_group(HOST, Kernel::ROOT, 100);
        let m = guest(&mut world, 2, Arm::HOST);
        hogs(&mut world, m, Kernel::ROOT, 2, &[Compute(Mean(MS)), Sleep(Mean(MS)), Done]);
        hogs(&mut world, HOST, group, 2, HOG);
        world.set_group_max(HOST, other, max);
        world.run(2 * SEC);
        healthy(&world);
        let sum: Count = Kind::ALL.into_iter().map(|kind| world.machines[0].kernel.counts.of(kind)).sum();
        sum.helpers + sum.lookups
    };
    let (never, elsewhere) = (run(None), run(limit(MS, SEC)));
    println!("helper calls without a limit, and with one elsewhere: {never}, {elsewhere}");
    assert!(elsewhere < never + never / 20, "{elsewhere} after {never}");
}

/// Under the guest's scheduler, with and without a host that pairs.
fn in_guest(arm: Arm, vcpus: u32, quota: u64, steps: &[Step]) -> (f64, f64) {
    let mut world = host(1, Shape::flat(vcpus), arm);
    let m = guest(&mut world, vcpus, arm);
    let group = world.add_group(m, Kernel::ROOT, 10_000);
    world.set_group_max(m, group, limit(quota, 100 * MS));
    let limited = hogs(&mut world, m, group, 2 * vcpus, steps);
    let free = hogs(&mut world, m, Kernel::ROOT, vcpus, HOG);
    world.run(10 * SEC);
    alive(&world);
    let part = cpu_time(&world, m, &limited) as f64 / (quota * 100) as f64;
    (part, cpu_time(&world, m, &free) as f64 / 1e9)
}

#[test]
fn guests_enforce_it_as_well() {
    const SLEEPER: &[Step] = &[Compute(Mean(300 * US)), Sleep(Mean(200 * US)), Done];
    for (name, arm) in [("EEVDF", Arm::STOCK), ("Entrain alone", GUEST), ("Entrain on both sides", Arm::BOTH)] {
        for (vcpus, quota, steps) in
            [(1, 20 * MS, HOG), (4, 50 * MS, HOG), (4, 150 * MS, SLEEPER), (16, 400 * MS, HOG), (64, 200 * MS, HOG)]
        {
            let (part, free) = in_guest(arm, vcpus, quota, steps);
            let rest = f64::from(vcpus) * 10.0 - part * quota as f64 / 1e7;
            println!(
                "{quota} ns of {vcpus} vCPUs under {name}: {part:.3} of it, the others {:.3} of the rest",
                free / rest
            );
            assert!((0.95..1.05).contains(&part), "{quota} of {vcpus} under {name}: {part}");
            assert!(free > 0.9 * rest, "{quota} of {vcpus} under {name}: the others have {free} of {rest}");
        }
    }
}

/// The same in a guest as on the host: no limit, however small, ends the scheduler, and what changes holds at once.
#[test]
fn a_guest_s_watchdog_is_not_tripped() {
    for arm in [GUEST, Arm::BOTH] {
        let mut world = host(1, Shape::flat(2), arm);
        let m = guest(&mut world, 2, arm);
        let group = world.add_group(m, Kernel::ROOT, 100);
        let limited = hogs(&mut world, m, group, 40, HOG);
        let free = hogs(&mut world, m, Kernel::ROOT, 2, HOG);
        world.run(SEC);
        world.set_group_max(m, group, limit(MS, SEC));
        world.run(2 * SEC);
        let before = cpu_time(&world, m, &limited);
        world.run(32 * SEC);
        alive(&world);
        let (had, rest) = (cpu_time(&world, m, &limited) - before, cpu_time(&world, m, &free));
        println!("40 hogs with a thousandth of a vCPU had {} ms in 30 s, the others {} s", had / MS, rest / SEC);
        assert!(had < 90 * MS && rest > 58 * SEC, "{had} {rest}");
        world.set_group_max(m, group, None);
        let before = cpu_time(&world, m, &limited);
        world.run(34 * SEC);
        alive(&world);
        let had = cpu_time(&world, m, &limited) - before;
        // A third of two vCPUs, beside two tasks of the same weight as the group.
        assert!(had > 11 * SEC / 10, "without a limit they had {had}");
    }
}
