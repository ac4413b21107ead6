//! What the load `frames` costs one big CPU of the Chromebook under several rules for its speed, by the energy model: the
//! guest's rule that is in force (the policies' own code), constant speeds, a rule that knows each frame's work before it
//! begins, and one that paces by the work of earlier frames. docs/frequency.md, "Which speed is the best one".

use entrain_cpufreq_emulation::energy::power_uw;
use entrain_cpufreq_emulation::tables::{Cluster, table};
use entrain_policy::guest;
use entrain_policy::perf::{Level, PerfIn, wanted};

const MS: u64 = 1_000_000;
const PERIOD: u64 = 1_000_000_000 / 60;
const STEP: u64 = MS / 20;
const SECONDS: u64 = 20;
/// The CPU is the biggest of its machine.
const CAPACITY: u32 = 1024;

/// The two threads of the pipeline, and the share of a frame's time that each works at full speed.
const THREADS: [f64; 2] = [0.20, 0.25];
/// A heavy frame's work, in an ordinary one's, and how many of 60 are heavy.
const HEAVY: f64 = 1.8;
const BURST: u64 = 15;

/// Who says how fast the CPU should be, 0..1024.
trait Rule {
    /// A frame begins that has so much work, in ns at full speed.
    fn begins(&mut self, _now: u64, _work: f64) {}
    /// So much time has passed, in which a thread worked at this level, or none.
    fn passed(&mut self, _now: u64, _thread: Option<usize>, _level: u32) {}
    fn sleeps(&mut self, _now: u64, _thread: usize) {}
    fn level(&mut self, now: u64, thread: usize) -> u32;
}

/// A constant speed: the governor `performance`, or a lowest speed that the load does not exceed.
struct Constant(u32);

impl Rule for Constant {
    fn level(&mut self, _: u64, _: usize) -> u32 {
        self.0
    }
}

/// Knows the work of each frame, and is as slow as its deadline allows: no rule makes all frames in time for less.
#[derive(Default)]
struct Clairvoyant(u32);

impl Rule for Clairvoyant {
    fn begins(&mut self, _: u64, work: f64) {
        self.0 = (work / PERIOD as f64 * 1024.0).ceil() as u32;
    }
    fn level(&mut self, _: u64, _: usize) -> u32 {
        self.0
    }
}

/// As the guest's scheduler and the host's do it.
#[derive(Default)]
struct InForce {
    tasks: [Task; 2],
    level: Level,
}

#[derive(Default)]
struct Task {
    load: u64,
    ran: u64,
    at: u64,
    worked: u64,
    est: u32,
    slept_at: u64,
}

impl Rule for InForce {
    fn passed(&mut self, now: u64, thread: Option<usize>, level: u32) {
        for (number, task) in self.tasks.iter_mut().enumerate() {
            let ran = if thread == Some(number) { STEP } else { 0 };
            task.ran += ran;
            task.worked += ran;
            if now - task.at >= 1_048_576 {
                task.load = guest::load_update(task.load, task.ran, now - task.at, CAPACITY, level);
                (task.ran, task.at) = (0, now);
            }
        }
    }
    fn sleeps(&mut self, now: u64, thread: usize) {
        let task = &mut self.tasks[thread];
        task.est = guest::task_est(task.est, task.load, task.worked, now - task.slept_at);
        (task.slept_at, task.worked) = (now, 0);
    }
    fn level(&mut self, now: u64, thread: usize) -> u32 {
        let all: u32 = self.tasks.iter().map(|task| guest::util(task.load)).sum();
        let task = &self.tasks[thread];
        let claim = guest::task_claim(task.load, task.est, task.worked);
        let wanted = wanted(&PerfIn { all: all.min(1024), task: all.min(1024), claim, limit: 1024 });
        self.level.step(wanted, now).0
    }
}

/// Work of the guest's recent frames over the time between their begins, with so much to spare; beyond the work that it
/// knows it ramps up as the rule in force does.
struct ByPeriod {
    spare: f64,
    known: f64,
    done: f64,
    began: u64,
    period: f64,
}

impl ByPeriod {
    fn new(spare: f64) -> Self {
        Self { spare, known: 0.0, done: 0.0, began: 0, period: 0.0 }
    }
}

impl Rule for ByPeriod {
    fn begins(&mut self, now: u64, _: f64) {
        let passed = (now - self.began) as f64;
        let forgotten = left_of(passed.min(32e6), 32e6);
        self.known = (self.known * forgotten).max(self.done);
        self.period = if self.period == 0.0 { passed } else { passed.min(self.period * 1.05) };
        (self.began, self.done) = (now, 0.0);
    }
    fn passed(&mut self, _: u64, thread: Option<usize>, level: u32) {
        if thread.is_some() {
            self.done += STEP as f64 * f64::from(level) / 1024.0;
        }
    }
    fn level(&mut self, _: u64, _: usize) -> u32 {
        let pace = if self.period == 0.0 { 0.0 } else { (self.known / self.period).min(1.0) };
        let beyond = (self.done - self.known).max(0.0) / pace.max(0.2);
        let claim = 1.0 - (1.0 - pace) * left_of(beyond, 5.3e6);
        (claim * self.spare * 1024.0).min(1024.0) as u32
    }
}

/// What is left after `passed` of what halves in `half`.
fn left_of(passed: f64, half: f64) -> f64 {
    (-passed / half).exp2()
}

#[derive(Debug)]
struct Made {
    frames_per_s: f64,
    frames_per_mj: f64,
    /// Mean speed of busy time.
    level: f64,
}

/// The load for [`SECONDS`]; each thread takes so long to wake up.
fn frames(cluster: &Cluster, rule: &mut dyn Rule, waking: u64) -> Made {
    let top = f64::from(cluster.fastest().mhz);
    let (mut now, mut tick, mut made, mut energy_uj, mut levels, mut steps) = (0, 1, 0u32, 0.0, 0.0, 0u32);
    while now < SECONDS * 1_000_000_000 {
        while now < tick * PERIOD {
            now += STEP;
            rule.passed(now, None, 0);
        }
        let heavy = if tick % 60 < BURST { HEAVY } else { 1.0 };
        rule.begins(now, THREADS.iter().sum::<f64>() * heavy * PERIOD as f64);
        for (thread, share) in THREADS.iter().enumerate() {
            now += waking;
            let mut left = share * heavy * PERIOD as f64;
            while left > 0.0 {
                let level = f64::from(rule.level(now, thread)) / 1024.0;
                let fast_enough = cluster.points.iter().find(|point| f64::from(point.mhz) / top >= level);
                let point = *fast_enough.unwrap_or(&cluster.fastest());
                let speed = f64::from(point.mhz) / top;
                left -= STEP as f64 * speed;
                energy_uj += power_uw(cluster, point) * STEP as f64 / 1e9;
                levels += speed;
                steps += 1;
                now += STEP;
                rule.passed(now, Some(thread), (speed * 1024.0) as u32);
            }
            rule.sleeps(now, thread);
        }
        made += 1;
        tick = now / PERIOD + 1;
    }
    Made {
        frames_per_s: f64::from(made) / SECONDS as f64,
        frames_per_mj: f64::from(made) / energy_uj * 1e3,
        level: levels / f64::from(steps),
    }
}

const WAKING: u64 = 3 * STEP;

fn big(rule: &mut dyn Rule, waking: u64) -> Made {
    frames(table("chromebook").unwrap().cluster("big").unwrap(), rule, waking)
}

#[test]
fn the_model_says_what_the_lab_measured() {
    // docs/results/frames.md (N = 26) and frames-capped.md (N = 6).
    let ours = big(&mut InForce::default(), WAKING);
    assert!((58.0..60.1).contains(&ours.frames_per_s), "{ours:?}, measured 59.2");
    assert!((0.110..0.114).contains(&ours.frames_per_mj), "{ours:?}, measured 0.122");
    assert!((0.72..0.79).contains(&ours.level), "{ours:?}, measured 0.741");
    let floor = big(&mut Constant(563), WAKING);
    assert!((50.0..54.0).contains(&floor.frames_per_s), "{floor:?}, measured 51.6");
    assert!((0.145..0.170).contains(&floor.frames_per_mj), "{floor:?}, measured 0.1495");
}

#[test]
fn nothing_makes_all_frames_at_the_energy_of_a_third_of_them() {
    // The lowest speed makes 20 frames/s and costs as little per frame as any: uclamp's, which measured 0.203 at 20.8.
    let slowest = big(&mut Constant(0), WAKING);
    assert!(slowest.frames_per_s < 21.0 && slowest.frames_per_mj < 0.21, "{slowest:?}");
    let best = big(&mut Clairvoyant::default(), WAKING);
    assert!(best.frames_per_s > 59.5 && (0.131..0.135).contains(&best.frames_per_mj), "{best:?}");
    assert!(best.frames_per_mj < 0.7 * slowest.frames_per_mj, "{best:?}");
    // So much is left to gain for the rule in force.
    let ours = big(&mut InForce::default(), WAKING);
    assert!(ours.frames_per_mj > best.frames_per_mj / 1.25, "{ours:?}, {best:?}");
}

#[test]
fn a_constant_speed_that_makes_as_many_frames_costs_more() {
    let ours = big(&mut InForce::default(), WAKING);
    let constants = (0..=1024).step_by(8).map(|level| big(&mut Constant(level), WAKING));
    let as_many = constants.filter(|one| one.frames_per_s >= ours.frames_per_s - 0.1);
    let cheapest = as_many.map(|one| one.frames_per_mj).fold(0.0, f64::max);
    assert!((0.094..0.096).contains(&cheapest) && ours.frames_per_mj > 1.1 * cheapest, "{ours:?}, {cheapest}");
}

#[test]
fn pacing_by_earlier_frames_gains_little_or_loses_frames() {
    let ours = big(&mut InForce::default(), WAKING);
    let paced = big(&mut ByPeriod::new(1.25), WAKING);
    assert!((0.116..0.119).contains(&paced.frames_per_mj), "{paced:?}, {ours:?}");
    // With less to spare it gains, as long as nothing else takes time ...
    let close = big(&mut ByPeriod::new(1.06), WAKING);
    assert!((0.132..0.137).contains(&close.frames_per_mj) && close.frames_per_s > 58.0, "{close:?}");
    // ... and with slow wake-ups it is late, takes the longer period for the frames' own, and stays at half of them.
    let late = big(&mut ByPeriod::new(1.06), 20 * STEP);
    assert!(late.frames_per_s < 31.0, "{late:?}");
}
