//! Draws plans.

use super::plan::{Deed, Plan, PlannedDeed, PlannedGroup, PlannedTask, PlannedVm, idle_bound};
use crate::kernel::topology::Shape;
use crate::program::Step::{
    self, Broadcast, Compute, Done, Hold, Lock, Post, Sleep, Synchronize, Unlock, Until, Wait, Yield,
};
use crate::program::Time::{Fixed, Mean, Within};
use crate::program::{MS, SEC, US};
use crate::rng::Rng;
use crate::world::{Arch, Policy};

/// Weights of tasks and groups: all magnitudes, and the plain one most often.
const WEIGHTS: &[u32] = &[1, 10, 50, 100, 100, 100, 100, 300, 1000, 10_000];

/// What a task may do.
fn load(rng: &mut Rng) -> Vec<Step> {
    match rng.within(0, 8) {
        0 => vec![Compute(Mean(20 * MS)), Done],
        8 => vec![Compute(Mean(2 * MS)), Synchronize, Done],
        1 => vec![Sleep(Mean(2 * MS)), Compute(Mean(100 * US)), Done],
        2 => vec![Compute(Within(10 * US, 200 * US)), Lock(0), Hold(Fixed(3 * US)), Unlock(0), Done],
        3 => vec![Compute(Mean(500 * US)), Broadcast, Done],
        4 => vec![Compute(Mean(50 * US)), Post(1), Wait(2), Done],
        5 => vec![Wait(1), Compute(Mean(50 * US)), Post(2), Done],
        6 => vec![Until(2 * MS), Compute(Fixed(20 * US)), Done],
        _ => vec![Compute(Mean(MS)), Yield, Done],
    }
}

fn some_cpus(rng: &mut Rng, cpus: u32) -> Vec<u32> {
    let some: Vec<u32> = (0..cpus).filter(|_| rng.within(0, 1) == 1).collect();
    if some.is_empty() { vec![rng.within(0, u64::from(cpus) - 1) as u32] } else { some }
}

fn task(rng: &mut Rng, groups: usize, cpus: u32) -> PlannedTask {
    PlannedTask {
        group: rng.within(0, groups as u64) as usize,
        weight: rng.pick(WEIGHTS),
        cpus: (rng.within(0, 5) == 0).then(|| some_cpus(rng, cpus)),
        realtime: None,
        start: rng.within(0, 10 * MS),
        steps: load(rng),
    }
}

/// A thread of the real-time class: it takes a CPU away now and then, for at most half of the time.
fn realtime(rng: &mut Rng, cpus: u32) -> PlannedTask {
    PlannedTask {
        group: 0,
        weight: 100,
        cpus: None,
        realtime: Some(rng.within(0, u64::from(cpus) - 1) as u32),
        start: rng.within(0, 10 * MS),
        steps: vec![Sleep(Mean(5 * MS)), Compute(Within(50 * US, 4 * MS)), Done],
    }
}

fn deed(rng: &mut Rng, plan: &Plan) -> Option<Deed> {
    let machine = rng.within(0, plan.vms.len() as u64) as usize;
    let (tasks, cpus) = match machine {
        0 => (plan.tasks.len(), plan.shape.cpus()),
        vm => (plan.vms[vm - 1].tasks.len(), plan.vms[vm - 1].vcpus),
    };
    let of = (tasks > 0).then(|| rng.within(0, tasks.max(1) as u64 - 1) as usize);
    let group = rng.within(0, plan.groups.len() as u64) as usize;
    Some(match rng.within(0, 11) {
        0 | 1 => Deed::Allow { machine, task: of?, cpus: some_cpus(rng, cpus) },
        2 => Deed::Weight { machine, task: of?, weight: rng.pick(WEIGHTS) },
        3 if group > 0 => Deed::GroupWeight { group, weight: rng.pick(WEIGHTS) },
        4 if machine == 0 => Deed::Move { task: of?, group },
        5 => Deed::Fork { machine, weight: rng.pick(WEIGHTS), steps: load(rng) },
        6 => Deed::Kill { machine, task: of? },
        8 => Deed::Attach { machine },
        9 => Deed::Detach { machine },
        10 => Deed::Bypass { machine, on: rng.within(0, 2) == 0 },
        11 => Deed::Hotplug { machine, cpu: rng.within(0, u64::from(cpus) - 1) as u32, online: rng.within(0, 1) == 1 },
        7 if machine > 0 => Deed::Lie { vm: machine - 1 },
        _ => return None,
    })
}

/// The plan of a seed.
pub fn draw(seed: u64) -> Plan {
    let mut rng = Rng::new(seed);
    let rng = &mut rng;
    let shape = Shape {
        nodes: rng.pick(&[1, 1, 2]),
        llcs: rng.pick(&[1, 1, 2]),
        cores: rng.within(1, 4) as u32,
        threads: rng.pick(&[1, 1, 2]),
    };
    let both = rng.within(0, 2) > 0;
    let mut plan = Plan {
        seed: rng.next(),
        shape,
        host: Policy::Entrain,
        guest: if both { Policy::Entrain } else { Policy::Eevdf },
        paired: both,
        end: SEC,
        races: 0,
        planted: None,
        idle_bound: idle_bound(),
        groups: Vec::new(),
        tasks: Vec::new(),
        vms: Vec::new(),
        deeds: Vec::new(),
    };
    for made in 0..rng.within(0, 6) {
        plan.groups.push(PlannedGroup { parent: rng.within(0, made) as usize, weight: rng.pick(WEIGHTS) });
    }
    let groups = plan.groups.len();
    for _ in 0..rng.within(0, 5) {
        let planned = task(rng, groups, shape.cpus());
        plan.tasks.push(planned);
    }
    if rng.within(0, 3) == 0 {
        plan.tasks.push(realtime(rng, shape.cpus()));
    }
    for _ in 0..rng.within(1, 5) {
        let vcpus = rng.within(1, 6) as u32;
        let tasks = (0..rng.within(1, 8)).map(|_| task(rng, 0, vcpus)).collect();
        let group = rng.within(0, groups as u64) as usize;
        plan.vms.push(PlannedVm { vcpus, group, pinned: false, arch: rng.pick(&[Arch::Arm64, Arch::Amd]), tasks });
    }
    // Half of all worlds are left in peace.
    let deeds = rng.within(0, 40).saturating_sub(20);
    for _ in 0..deeds {
        let at = rng.within(MS, plan.end);
        if let Some(deed) = deed(rng, &plan) {
            plan.deeds.push(PlannedDeed { at, deed });
        }
    }
    plan
}

/// A plan of tasks and vCPUs that want to run all the time, in a tree of groups: what the shares are judged by.
pub fn draw_hogs(seed: u64) -> Plan {
    let mut plan = draw(seed);
    let rng = &mut Rng::new(!seed);
    plan.deeds.clear();
    plan.end = 8 * SEC;
    // Guests under our scheduler give up vCPUs that they cannot have, and want less than their weights say.
    (plan.guest, plan.paired) = (Policy::Eevdf, false);
    plan.tasks.retain(|task| task.realtime.is_none());
    for task in plan.vms.iter_mut().flat_map(|vm| &mut vm.tasks).chain(&mut plan.tasks) {
        (task.steps, task.cpus, task.start) = (vec![Compute(Mean(20 * MS)), Done], None, 0);
    }
    // A hog for each vCPU, so that none of them sleeps.
    for vm in &mut plan.vms {
        let hog = |_| PlannedTask {
            group: 0,
            weight: 100,
            cpus: None,
            realtime: None,
            start: 0,
            steps: vec![Compute(Mean(20 * MS)), Done],
        };
        vm.tasks = (0..vm.vcpus).map(hog).collect();
    }
    // Weights that leave each at least some thousandth, or the window were too short for its slices.
    for weight in
        plan.groups.iter_mut().map(|group| &mut group.weight).chain(plan.tasks.iter_mut().map(|t| &mut t.weight))
    {
        *weight = rng.pick(&[30, 100, 100, 300]);
    }
    plan
}

/// In worlds that are drawn for races a task may wait so long beside an idle CPU, ns: a CPU's way out of its idle state, the
/// guest's on top, and the schedulers' own work.
const RACES_IDLE_BOUND: u64 = 100 * US;

/// Pairs that wake each other without end, and tasks that compute long now and then.
fn pairs(rng: &mut Rng, cpus: u32) -> Vec<Vec<Step>> {
    let mut all = Vec::new();
    for pair in 0..rng.within(1, u64::from(cpus)) as u32 {
        let (there, back) = (10 + 2 * pair, 11 + 2 * pair);
        let work = rng.pick(&[500, 2 * US, 5 * US]);
        all.push(vec![Compute(Mean(work)), Post(there), Wait(back), Done]);
        all.push(vec![Wait(there), Compute(Mean(work)), Post(back)]);
    }
    for _ in 0..rng.within(1, u64::from(cpus)) {
        let (work, sleep) = (rng.pick(&[20 * US, 200 * US, 3 * MS]), rng.pick(&[10 * US, 100 * US, MS]));
        all.push(vec![Compute(Mean(work)), Sleep(Mean(sleep)), Done]);
    }
    all
}

/// More tasks than CPUs, whose timers are due at the same time and which compute for some microseconds or for long: who
/// comes last is put behind one of them while another's CPU is about to idle, and nobody else looks for it until the next
/// tick.
fn herd(rng: &mut Rng, cpus: u32) -> Vec<Vec<Step>> {
    let (period, short) = (rng.pick(&[3 * MS, 5 * MS, 7 * MS]), rng.pick(&[2 * US, 4 * US, 8 * US]));
    let mut task = || {
        let phase = |rng: &mut Rng| match rng.within(0, 1) {
            0 => [Until(period), Compute(Within(200, short)), Done],
            _ => [Until(period), Compute(Within(MS, 4 * MS)), Done],
        };
        (0..3).flat_map(|_| phase(rng)).collect()
    };
    let more = if cpus > 2 { 2 } else { 1 };
    (0..cpus + more).map(|_| task()).collect()
}

/// A plan for races: few CPUs, on the host or in a guest that has a CPU for each vCPU, so that whoever is forgotten waits
/// beside an idle CPU.
pub fn draw_races(seed: u64) -> Plan {
    let mut rng = Rng::new(seed);
    let rng = &mut rng;
    let cpus = rng.within(2, 4) as u32;
    let inside = rng.within(0, 2) > 0;
    // Half of the hosts that are large enough have two caches.
    let caches = if !inside && cpus == 4 { rng.pick(&[1, 2]) } else { 1 };
    let shape = Shape { llcs: caches, cores: cpus / caches, ..Shape::flat(cpus) };
    let programs = if rng.within(0, 2) == 0 { pairs(rng, cpus) } else { herd(rng, cpus) };
    let mut add = |steps: Vec<Step>| {
        let cpus = (rng.within(0, 7) == 0).then(|| some_cpus(rng, cpus));
        PlannedTask { group: 0, weight: 100, cpus, realtime: None, start: rng.within(0, MS), steps }
    };
    let tasks = programs.into_iter().map(&mut add).collect();
    let mut plan = Plan {
        seed: rng.next(),
        shape,
        host: if inside { Policy::Eevdf } else { Policy::Entrain },
        guest: Policy::Entrain,
        paired: false,
        end: SEC / 4,
        races: rng.pick(&[2, 4, 16]),
        planted: None,
        idle_bound: RACES_IDLE_BOUND,
        groups: Vec::new(),
        tasks: Vec::new(),
        vms: Vec::new(),
        deeds: Vec::new(),
    };
    if inside {
        plan.vms.push(PlannedVm { vcpus: cpus, group: 0, pinned: true, arch: Arch::Arm64, tasks });
    } else {
        plan.tasks = tasks;
    }
    plan
}
