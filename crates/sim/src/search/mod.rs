//! Draws machines, trees of cgroups, loads and what is done to them, and runs each until something that must hold does
//! not. What is found is made smaller as long as it breaks the same rule.

pub mod draw;
pub mod plan;
pub mod shares;
pub mod shrink;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

use crate::kernel::Planted;
use crate::program::SEC;
use crate::trace::text;
use crate::world::{Violation, World};
pub use plan::Plan;

/// One plan that has run.
#[derive(Clone, Debug)]
pub struct Run {
    /// What it was drawn from.
    pub seed: u64,
    /// What was drawn.
    pub plan: Plan,
    /// Digest of all that happened.
    pub trace: u64,
    /// The rules that were broken, how often, with the first violation of each.
    pub broken: Vec<(&'static str, u64, String)>,
    /// The first violations of all.
    pub found: Vec<Violation>,
    /// The longest that a task waited in a scheduler's queue beside an idle CPU, ns.
    pub longest_queued: u64,
    /// How many waits of racing operations had to be ended by force: `World::raced()`.
    pub forces: u64,
}

impl Run {
    /// Whether a rule was broken.
    pub fn broken(&self) -> bool {
        !self.broken.is_empty()
    }

    /// Whether this rule was.
    pub fn breaks(&self, rule: &str) -> bool {
        self.broken.iter().any(|(name, ..)| *name == rule)
    }

    /// What was found, with the command that shows it again.
    pub fn text(&self) -> String {
        let races = if self.plan.races > 0 { " --races" } else { "" };
        let planted = self.plan.planted.map_or(String::new(), |planted| format!(" --planted {}", planted.name()));
        let rules: Vec<_> =
            self.broken.iter().map(|(rule, count, what)| format!("  {rule} ({count} times): {what}")).collect();
        format!(
            "{}: trace {:016x}\n{}\n  again: entrain-sim search{races}{planted} --replay --seed {}",
            self.plan.words(),
            self.trace,
            if rules.is_empty() { "  nothing broken".to_owned() } else { rules.join("\n") },
            self.seed
        )
    }
}

/// The plan of a seed: each eighth is one by which shares are judged.
pub fn plan_of(seed: u64) -> Plan {
    if seed % 8 == 7 { draw::draw_hogs(seed) } else { draw::draw(seed) }
}

/// What is searched for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hunt {
    /// Anything, in worlds of all kinds whose operations are atomic.
    #[default]
    Worlds,
    /// Races: what goes wrong when operations of several CPUs run at once.
    Races,
    /// The same where a fault is known to be: a test of the search itself.
    Planted(Planted),
}

impl Hunt {
    /// The plan of a seed.
    pub fn plan(self, seed: u64) -> Plan {
        match self {
            Self::Worlds => plan_of(seed),
            // Each fourth is a world of all kinds, where tasks' affinity changes and CPUs come and go: they may wait beside
            // an idle CPU.
            Self::Races if seed % 4 == 3 => Plan { races: 8, idle_bound: SEC, ..draw::draw(seed) },
            // Each other fourth has guests whose tasks wait where they are to start soon.
            Self::Races if seed % 4 == 1 => Plan { idle_bound: plan::STAYS_IDLE_BOUND, ..draw::draw_races(seed) },
            Self::Races => draw::draw_races(seed),
            Self::Planted(planted) => Plan { planted: Some(planted), ..draw::draw_races(seed) },
        }
    }

    /// Runs it.
    pub fn run(self, seed: u64) -> Run {
        run_plan(seed, &self.plan(seed))
    }
}

/// Runs the plan of a seed.
pub fn run(seed: u64) -> Run {
    Hunt::Worlds.run(seed)
}

/// Runs a plan, drawn or made smaller.
pub fn run_plan(seed: u64, plan: &Plan) -> Run {
    let mut world = plan.build();
    run_world(seed, plan, &mut world)
}

/// What happened around the begin of what broke a rule first, a line each: from and until so many ns before and after
/// it. Runs the plan a second time.
pub fn told(run: &Run, rule: &str, around: u64) -> Option<String> {
    let first = run.found.iter().find(|violation| violation.rule == rule)?;
    let mut world = run.plan.build();
    world.record(first.since.saturating_sub(around), first.since + around);
    run_world(run.seed, &run.plan, &mut world);
    Some(text::lines(&world, world.records(), |record| record.machine.0 == first.machine))
}

fn run_world(seed: u64, plan: &Plan, world: &mut World) -> Run {
    world.checks.queues = true;
    if plan.hogs() {
        shares::run(world, plan.end)
    } else {
        world.run(plan.end)
    }
    Run {
        seed,
        plan: plan.clone(),
        trace: world.trace,
        broken: broken(world),
        found: world.checks.found.clone(),
        longest_queued: world.checks.longest_queued,
        forces: world.raced().1,
    }
}

fn broken(world: &World) -> Vec<(&'static str, u64, String)> {
    let first = |rule| world.checks.found.iter().find(|violation| violation.rule == rule);
    let counts = world.checks.counts.iter();
    counts.map(|(rule, count)| (*rule, *count, first(*rule).map_or(String::new(), |v| v.what.clone()))).collect()
}

/// The smallest plan found within so many runs that breaks the same rule.
pub fn smallest(run: &Run, rule: &str, runs: usize) -> Run {
    let least = shrink::shrink(&run.plan, runs, |plan| run_plan(run.seed, plan).breaks(rule));
    run_plan(run.seed, &least)
}

/// Runs worlds from a seed on for so long, on so many threads; `tell` hears of those that broke a rule, in the order of
/// their seeds within each thread. Returns how many have run.
pub fn search(hunt: Hunt, first: u64, time: Duration, threads: usize, mut tell: impl FnMut(&Run)) -> u64 {
    let (next, end) = (AtomicU64::new(first), Instant::now() + time);
    let (sender, receiver) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let (sender, next) = (sender.clone(), &next);
            scope.spawn(move || {
                while Instant::now() < end {
                    let run = hunt.run(next.fetch_add(1, Ordering::Relaxed));
                    if run.broken() && sender.send(run).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        receiver.iter().for_each(|run| tell(&run));
    });
    next.into_inner() - first
}

/// Runs the worlds of some seeds on so many threads. The runs come in the order of the seeds.
pub fn run_all(hunt: Hunt, seeds: std::ops::Range<u64>, threads: usize) -> Vec<Run> {
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
                    let run = hunt.run(seed);
                    runs.lock().expect("no thread has failed").push(run);
                }
            });
        }
    });
    let mut runs = runs.into_inner().expect("no thread has failed");
    runs.sort_by_key(|run| run.seed);
    runs
}
