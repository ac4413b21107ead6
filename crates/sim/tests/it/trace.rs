//! Traces say what happened, and are no part of it; counts say what the schedulers' code did.

use entrain_sim::kernel::counts::Kind;
use entrain_sim::kernel::topology::Shape;
use entrain_sim::program::Step::{Compute, Done, Hold, Lock, Sleep, Unlock};
use entrain_sim::program::Time::{Fixed, Mean, Within};
use entrain_sim::program::{MS, SEC, US};
use entrain_sim::scenario::{Arm, guest, host, tasks};
use entrain_sim::trace::{Timeline, perfetto, text, wait};
use entrain_sim::world::{HOST, World};

fn busy(arm: Arm) -> World {
    let mut world = host(1, Shape::flat(2), arm);
    for _ in 0..2 {
        let m = guest(&mut world, 4, arm);
        let steps = [Compute(Within(10 * US, 30 * US)), Lock(0), Hold(Fixed(2 * US)), Unlock(0), Done];
        tasks(&mut world, m, "lock", 4, &steps);
        tasks(&mut world, m, "sleeper", 1, &[Sleep(Mean(MS)), Compute(Fixed(10 * US)), Done]);
    }
    world
}

#[test]
fn recording_changes_nothing() {
    for arm in [Arm::STOCK, Arm::BOTH] {
        let (mut plain, mut recorded) = (busy(arm), busy(arm));
        recorded.record(0, SEC);
        plain.run(SEC / 2);
        recorded.run(SEC / 2);
        assert_eq!((plain.trace, plain.events), (recorded.trace, recorded.events));
        assert!(recorded.records().len() > 1_000, "{}", recorded.records().len());
    }
}

#[test]
fn a_window_accounts_for_all_time_of_the_cpus() {
    let mut world = busy(Arm::HOST);
    let (from, until) = (200 * MS, 300 * MS);
    world.record(from, until);
    world.run(until);
    let timeline = Timeline::of(world.records(), until);
    for cpu in 0..2 {
        let ran: u64 = timeline.runs_on(HOST, cpu, from, until).map(|run| run.until - run.from).sum();
        assert!(ran > 98 * MS && ran <= 100 * MS, "both CPUs are wanted all the time: {ran}");
    }
    // Four vCPUs of two guests on two CPUs: somebody waits at every moment.
    let waited: u64 =
        timeline.waits.iter().filter(|wait| wait.machine == HOST).map(|wait| wait.until - wait.from.max(from)).sum();
    assert!(waited > 100 * MS, "{waited}");
    let trace = perfetto::trace(&world, world.records(), &timeline);
    let events = trace["traceEvents"].as_array().expect("a list");
    let runs = events.iter().filter(|event| event["ph"] == "X" && event["pid"] == 1).count();
    assert_eq!(runs, timeline.runs.iter().filter(|run| run.machine == HOST).count());
    assert!(text::lines(&world, world.records(), |record| record.machine == HOST).contains("guest 1 vCPU 3"));
}

#[test]
fn a_wait_is_told_with_who_ran_meanwhile() {
    let mut world = busy(Arm::HOST);
    world.run(SEC);
    let vcpus: Vec<_> = (1..3).flat_map(|m| (0..4).map(move |vcpu| (m, vcpu))).collect();
    let threads: Vec<_> =
        vcpus.iter().map(|(m, vcpu)| (HOST, world.thread_of(entrain_sim::world::MachineId(*m), *vcpu))).collect();
    let (m, task, from, until) = wait::longest(&world, &threads).expect("four vCPUs wait for each CPU");
    let mut again = busy(Arm::HOST);
    again.record(from.saturating_sub(20 * MS), until + MS);
    again.run(until + MS);
    let told = wait::why(&again, again.records(), m, task, from, until);
    assert!(told.contains(&again.name(m, task)) && told.contains("clock"), "{told}");
    let others = vcpus.iter().filter(|(m, vcpu)| told.contains(&format!("guest {} vCPU {vcpu} ", m - 1))).count();
    assert!(others > 1, "who ran meanwhile is named: {told}");
}

#[test]
fn what_the_schedulers_do_is_counted_for_each_kind_of_event() {
    let mut world = busy(Arm::BOTH);
    world.run(SEC);
    for machine in &world.machines {
        let counts = &machine.kernel.counts;
        for kind in [Kind::Wake, Kind::Switch, Kind::Tick] {
            let count = counts.of(kind);
            assert!(count.events > 5 && count.operations > 0 && count.lookups > 0, "{kind:?}: {count:?}");
        }
    }
    let host = |kind| world.machines[0].kernel.counts.of(kind);
    // An operation's cost is bounded whatever the machine's size: what grows beyond this is a fault.
    for (kind, most) in [(Kind::Wake, 120.0), (Kind::Switch, 160.0), (Kind::Tick, 80.0), (Kind::Idle, 60.0)] {
        let count = host(kind);
        let calls = count.per_event(count.helpers + count.lookups);
        assert!(calls < most, "{kind:?}: {calls} calls for each, of which look-ups {}", count.per_event(count.lookups));
    }
    assert!(host(Kind::Wake).atomics > 0, "queues count who waits");
}
