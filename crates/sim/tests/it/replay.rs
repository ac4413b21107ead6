//! Round trip: a simulated host is recorded, the recording becomes a scenario, and that gives the same shares.

use entrain_record::analysis::{Analysis, State};
use entrain_record::file;
use entrain_sim::kernel::Kernel;
use entrain_sim::kernel::topology::Shape;
use entrain_sim::program::Step::{Compute, Done, Sleep};
use entrain_sim::program::Time::{Fixed, Mean};
use entrain_sim::program::{MS, SEC, US};
use entrain_sim::replay::demand::Shares;
use entrain_sim::replay::{Order, Replay, export};
use entrain_sim::scenario::{Arm, Measured, Setup, guest, host, tasks};
use entrain_sim::world::{HOST, World};

/// Two guests on two pCPUs: one that computes a lot and one that sleeps a lot; a thread of the host beside them, if wanted.
fn overcommitted(arm: Arm, disturbed: bool) -> Setup {
    let mut world = host(5, Shape::flat(2), arm);
    let mut measured = Vec::new();
    for (computes, sleeps) in [(4 * MS, 2 * MS), (300 * US, MS)] {
        let m = guest(&mut world, 3, arm);
        tasks(&mut world, m, "worker", 3, &[Sleep(Mean(sleeps)), Compute(Mean(computes)), Done]);
        let threads = (0..3).map(|cpu| world.thread_of(m, cpu)).collect();
        measured.push(Measured { name: "vCPUs".into(), machine: HOST, tasks: threads });
    }
    if disturbed {
        let spec = World::spec(Kernel::ROOT, 100, None);
        let backup = world.add_task(HOST, spec, &[Sleep(Fixed(7 * MS)), Compute(Fixed(5 * MS))], 0);
        world.set_name(HOST, backup, "backup");
    }
    Setup { world, end: 2 * SEC, measured }
}

/// Of a world's own account.
fn own(setup: &Setup) -> Vec<Shares> {
    let kernel = &setup.world.machines[0].kernel;
    let of = |vm: &Measured| {
        let sum = |ns: &dyn Fn(&entrain_sim::kernel::Task) -> u64| {
            let all: u64 = vm.tasks.iter().map(|task| ns(kernel.task(*task))).sum();
            all as f64 / (setup.world.now * vm.tasks.len() as u64) as f64
        };
        let (ran, waited) = (sum(&|task| task.sum_exec), sum(&|task| task.sum_wait));
        Shares { ran, waited, halted: 1.0 - ran - waited, known: 1.0 }
    };
    setup.measured.iter().map(of).collect()
}

fn near(one: &[Shares], other: &[Shares], bound: f64) {
    eprintln!("{one:.3?}\n{other:.3?}");
    for (one, other) in one.iter().zip(other) {
        for (a, b) in [(one.ran, other.ran), (one.waited, other.waited), (one.halted, other.halted)] {
            assert!((a - b).abs() < bound, "{one:?} {other:?}");
        }
    }
}

fn recorded(arm: Arm, disturbed: bool) -> (Setup, file::Recording) {
    let mut setup = overcommitted(arm, disturbed);
    setup.world.record(0, setup.end);
    setup.world.run(setup.end);
    let recording = export::recording(&setup.world, 0);
    (setup, recording)
}

#[test]
fn a_recording_of_a_simulated_host_says_what_its_own_account_says() {
    let (setup, recording) = recorded(Arm::STOCK, true);
    let analysis = Analysis::of(&recording);
    let shares: Vec<_> = analysis.vms.iter().map(|vm| Shares::of(vm.vcpus.iter())).collect();
    near(&shares, &own(&setup), 0.01);
    assert!(shares.iter().all(|vm| vm.known > 0.999), "{shares:?}");
    assert!(analysis.vms.iter().all(|vm| vm.times.of(State::Polling) > 0), "halts are told");
    assert!(analysis.culprits.iter().any(|culprit| culprit.who.name.contains("backup")), "{:?}", analysis.culprits);
}

#[test]
fn the_file_of_a_recording_gives_the_same_shares_again() {
    let (_, recording) = recorded(Arm::STOCK, true);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sim.rec");
    file::write(&path, &recording).unwrap();
    let read = file::parse(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!(read, recording);
    // Who of the host disturbs is recorded while a vCPU waits for its pCPU alone: the rest of it is not there again.
    for (disturbed, recorded, drawn) in [(false, 0.03, 0.05), (true, 0.06, 0.08)] {
        gives_the_same_shares(disturbed, recorded, drawn);
    }
}

fn gives_the_same_shares(disturbed: bool, recorded_bound: f64, drawn_bound: f64) {
    let (setup, recording) = recorded(Arm::STOCK, disturbed);
    let replay = Replay::of(&recording, None).unwrap();
    assert_eq!((replay.vms.len(), replay.shape.cpus()), (2, 2));
    assert_eq!(replay.disturbers.iter().any(|one| one.name.contains("backup")), disturbed);
    for (order, bound) in [(Order::Recorded, recorded_bound), (Order::Drawn, drawn_bound)] {
        let mut again = replay.build(1, Arm::STOCK, order);
        again.world.run(again.end);
        near(&replay.shares(&again), &own(&setup), bound);
    }
}

#[test]
fn what_was_recorded_under_one_scheduler_runs_under_the_others() {
    let (_, recording) = recorded(Arm::STOCK, true);
    let replay = Replay::of(&recording, None).unwrap();
    // All pCPUs are busy under each of them, and work is not lost.
    let ran: Vec<f64> = ["stock", "host", "guest", "both"]
        .iter()
        .map(|name| {
            let mut setup = replay.build(1, Arm::named(name).unwrap(), Order::Recorded);
            setup.world.run(setup.end);
            assert!(setup.world.machines.iter().all(|machine| machine.kernel.failed.is_none()), "{name}");
            replay.shares(&setup).iter().map(|vm| vm.ran).sum()
        })
        .collect();
    assert!(ran.iter().all(|one| (one / ran[0] - 1.0).abs() < 0.1), "{ran:?}");
    assert!(replay.untold.len() > 3);
}

#[test]
fn a_shape_that_is_too_small_and_a_recording_of_nothing_are_told() {
    let (_, mut recording) = recorded(Arm::STOCK, true);
    let error = Replay::of(&recording, Some(Shape::flat(1))).unwrap_err();
    assert!(error.to_string().contains("2 pCPUs"), "{error}");
    recording.events.clear();
    assert!(Replay::of(&recording, None).unwrap_err().to_string().contains("no vCPU ran"));
}
