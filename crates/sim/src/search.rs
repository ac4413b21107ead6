//! Draws machines, trees of cgroups and loads, and runs each until something that must hold does not.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

use crate::kernel::Kernel;
use crate::kernel::group::GroupId;
use crate::kernel::topology::Shape;
use crate::program::Step::{Broadcast, Compute, Done, Hold, Lock, Post, Sleep, Unlock, Wait, Yield};
use crate::program::Time::{Fixed, Mean, Within};
use crate::program::{MS, SEC, Step, US};
use crate::rng::Rng;
use crate::scenario::Arm;
use crate::world::{Arch, HOST, MachineId, MachineSpec, VmSpec, World};

/// One drawn world that has run.
#[derive(Clone, Debug)]
pub struct Run {
    /// What it was drawn from.
    pub seed: u64,
    /// What was drawn, in words.
    pub drawn: String,
    /// Digest of all that happened.
    pub trace: u64,
    /// The rules that were broken, with the first violation of each.
    pub broken: Vec<(&'static str, u64, String)>,
}

impl Run {
    /// Whether a rule was broken.
    pub fn broken(&self) -> bool {
        !self.broken.is_empty()
    }

    /// What was found, with the command that shows it again.
    pub fn text(&self) -> String {
        let rules: Vec<_> =
            self.broken.iter().map(|(rule, count, what)| format!("  {rule} ({count} times): {what}")).collect();
        format!(
            "{}: trace {:016x}\n{}\n  again: entrain-sim search --replay --seed {}",
            self.drawn,
            self.trace,
            if rules.is_empty() { "  nothing broken".to_owned() } else { rules.join("\n") },
            self.seed
        )
    }
}

/// Runs worlds from a seed on for so long, on so many threads; `tell` hears of those that broke a rule, in the order of
/// their seeds within each thread. Returns whether there was one.
pub fn search(first: u64, time: Duration, threads: usize, mut tell: impl FnMut(&Run)) -> bool {
    let (next, end) = (AtomicU64::new(first), Instant::now() + time);
    let found = AtomicBool::new(false);
    let (sender, receiver) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let (sender, next, found) = (sender.clone(), &next, &found);
            scope.spawn(move || {
                while Instant::now() < end {
                    let run = run(next.fetch_add(1, Ordering::Relaxed));
                    if run.broken() {
                        found.store(true, Ordering::Relaxed);
                        let _ = sender.send(run);
                    }
                }
            });
        }
        drop(sender);
        receiver.iter().for_each(|run| tell(&run));
    });
    found.into_inner()
}

/// Runs the worlds of some seeds on so many threads. The runs come in the order of the seeds.
pub fn run_all(seeds: std::ops::Range<u64>, threads: usize) -> Vec<Run> {
    let next = AtomicU64::new(seeds.start);
    let runs = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        break;
                    }
                    let run = run(seed);
                    runs.lock().expect("no thread has failed").push(run);
                }
            });
        }
    });
    let mut runs = runs.into_inner().expect("no thread has failed");
    runs.sort_by_key(|run| run.seed);
    runs
}

/// Draws the world of a seed and runs it.
pub fn run(seed: u64) -> Run {
    let mut rng = Rng::new(seed);
    let (mut world, drawn) = draw(seed, &mut rng);
    world.checks.idle_bound = 1_000_000;
    world.run(SEC);
    let broken = world
        .checks
        .counts
        .iter()
        .map(|(rule, count)| {
            let first = world.checks.found.iter().find(|violation| violation.rule == *rule);
            (*rule, *count, first.map_or(String::new(), |violation| violation.what.clone()))
        })
        .collect();
    Run { seed, drawn, trace: world.trace, broken }
}

/// What a task may do.
fn load(rng: &mut Rng) -> Vec<Step> {
    match rng.within(0, 6) {
        0 => vec![Compute(Mean(20 * MS)), Done],
        1 => vec![Sleep(Mean(2 * MS)), Compute(Mean(100 * US)), Done],
        2 => vec![Compute(Within(10 * US, 200 * US)), Lock(0), Hold(Fixed(3 * US)), Unlock(0), Done],
        3 => vec![Compute(Mean(500 * US)), Broadcast, Done],
        4 => vec![Compute(Mean(50 * US)), Post(1), Wait(2), Done],
        5 => vec![Wait(1), Compute(Mean(50 * US)), Post(2), Done],
        _ => vec![Compute(Mean(MS)), Yield, Done],
    }
}

fn draw(seed: u64, rng: &mut Rng) -> (World, String) {
    let shape = Shape {
        nodes: rng.pick(&[1, 1, 2]),
        llcs: rng.pick(&[1, 1, 2]),
        cores: rng.within(1, 4) as u32,
        threads: rng.pick(&[1, 1, 2]),
    };
    let arm = rng.pick(&[Arm::HOST, Arm::BOTH, Arm::BOTH]);
    let mut world = World::new(seed);
    world.add_host(&MachineSpec { shape, policy: arm.host, tunables: Vec::new() });
    let mut groups = vec![Kernel::ROOT];
    for _ in 0..rng.within(0, 4) {
        let parent: GroupId = rng.pick(&groups);
        let weight = rng.pick(&[1, 10, 100, 100, 1000, 10_000]);
        groups.push(world.add_group(HOST, parent, weight));
    }
    let Shape { nodes, llcs, cores, threads } = shape;
    let guests = if arm.paired { "Entrain on both sides" } else { "Entrain on the host" };
    let mut words = format!(
        "{nodes} nodes with {llcs} caches of {cores} cores of {threads} threads, {guests}, {} groups",
        groups.len()
    );
    for _ in 0..rng.within(0, 4) {
        let spec = World::spec(rng.pick(&groups), rng.pick(&[10, 100, 100, 1000]), None);
        let steps = load(rng);
        world.add_task(HOST, spec, &steps, rng.within(0, 10 * MS));
    }
    let vms = rng.within(1, 5);
    for _ in 0..vms {
        let vcpus = rng.within(1, 6) as u32;
        let m: MachineId = world.add_vm(&VmSpec {
            guest: MachineSpec { shape: Shape::flat(vcpus), policy: arm.guest, tunables: Vec::new() },
            group: rng.pick(&groups),
            paired: arm.paired,
            arch: rng.pick(&[Arch::Arm64, Arch::Amd]),
            pins: None,
        });
        let tasks = rng.within(1, 8);
        words += &format!(", guest of {vcpus} vCPUs with {tasks} tasks");
        for _ in 0..tasks {
            let spec = World::spec(Kernel::ROOT, rng.pick(&[30, 100, 100, 300]), None);
            let steps = load(rng);
            world.add_task(m, spec, &steps, rng.within(0, 10 * MS));
        }
    }
    (world, format!("seed {seed}: {words}"))
}
