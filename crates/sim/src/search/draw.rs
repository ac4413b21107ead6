//! Draws plans.

use super::plan::{Deed, Plan, PlannedDeed, PlannedGroup, PlannedTask, PlannedVm};
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
        planted: false,
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
        plan.vms.push(PlannedVm { vcpus, group, arch: rng.pick(&[Arch::Arm64, Arch::Amd]), tasks });
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

/// A plan for races: few CPUs, each with somebody who computes long now and then, and tasks that wake each other all the
/// time, on the host or in a guest that has a CPU for each vCPU. Whoever is forgotten then waits beside an idle CPU.
pub fn draw_races(seed: u64) -> Plan {
    let mut rng = Rng::new(seed);
    let rng = &mut rng;
    let cpus = rng.within(2, 4) as u32;
    let inside = rng.within(0, 2) > 0;
    let mut tasks = Vec::new();
    let mut add = |rng: &mut Rng, steps: Vec<Step>| {
        let cpus = (rng.within(0, 7) == 0).then(|| some_cpus(rng, cpus));
        tasks.push(PlannedTask { group: 0, weight: 100, cpus, realtime: None, start: rng.within(0, MS), steps });
    };
    for pair in 0..rng.within(1, u64::from(cpus)) as u32 {
        let (there, back) = (10 + 2 * pair, 11 + 2 * pair);
        let work = rng.pick(&[500, 2 * US, 5 * US]);
        add(rng, vec![Compute(Mean(work)), Post(there), Wait(back), Done]);
        add(rng, vec![Wait(there), Compute(Mean(work)), Post(back)]);
    }
    for _ in 0..rng.within(1, u64::from(cpus)) {
        let (work, sleep) = (rng.pick(&[20 * US, 200 * US, 3 * MS]), rng.pick(&[10 * US, 100 * US, MS]));
        add(rng, vec![Compute(Mean(work)), Sleep(Mean(sleep)), Done]);
    }
    let mut plan = Plan {
        seed: rng.next(),
        shape: Shape::flat(cpus),
        host: if inside { Policy::Eevdf } else { Policy::Entrain },
        guest: Policy::Entrain,
        paired: false,
        end: SEC / 4,
        races: rng.pick(&[2, 4, 16]),
        planted: false,
        groups: Vec::new(),
        tasks: Vec::new(),
        vms: Vec::new(),
        deeds: Vec::new(),
    };
    if inside {
        plan.vms.push(PlannedVm { vcpus: cpus, group: 0, arch: Arch::Arm64, tasks });
    } else {
        plan.tasks = tasks;
    }
    plan
}
