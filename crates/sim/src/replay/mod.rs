//! A recording of a real host (`entrain record`) as a scenario: the same VMs, vCPUs and pCPUs, and what each vCPU wanted.
//!
//! Each vCPU has one task inside, bound to it, that computes and sleeps as the vCPU was seen to run and halt. What a
//! recording does not tell is said by [`untold`].

pub mod demand;
pub mod export;

use std::collections::HashMap;

use entrain_record::analysis::Analysis;
use entrain_record::file::Recording;

use crate::costs::Costs;
use crate::kernel::Kernel;
use crate::kernel::mask::MAX_CPUS;
use crate::kernel::topology::Shape;
use crate::program::Step::{Compute, Done, Sleep};
use crate::program::Time::Fixed;
use crate::program::{SEC, Step};
use crate::rng::Rng;
use crate::scenario::Measured;
use crate::scenario::{Arm, Setup, guest, host, named_tasks};
use crate::world::{HOST, MachineId, World};
use demand::{Demand, Disturber, Shares};

/// Bursts of a vCPU that are kept: half a minute of a vCPU that halts 30,000 times a second.
const PAIRS: usize = 1 << 20;
/// Threads of the host that are kept, the busiest.
const DISTURBERS: usize = 256;
/// What a burst costs the simulated machine beside the guest's own work, ns: the wake-up of the vCPU's thread, the way
/// in, the interrupt, the switch to the task and back to idle, the way out. The recorded burst has the real machine's.
const AROUND: u64 = 2 * Costs::HARDWARE.exit_work
    + Costs::HARDWARE.entry
    + Costs::HARDWARE.exit
    + Costs::HARDWARE.interrupt
    + Costs::HARDWARE.wake
    + 2 * (Costs::HARDWARE.schedule + Costs::HARDWARE.switch);
/// The least that is left of a burst, ns.
const LEAST: u64 = 500;

/// How the bursts of a vCPU follow one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// As recorded.
    Recorded,
    /// Drawn from those that were recorded, each as likely: the distribution without the sequence.
    Drawn,
}

/// A VM of the scenario.
#[derive(Clone, Debug)]
pub struct ReplayVm {
    /// For people.
    pub name: String,
    /// What its vCPUs want.
    pub vcpus: Vec<Demand>,
    /// Where its time went on the real host.
    pub shares: Shares,
}

/// What a recording comes to.
#[derive(Clone, Debug)]
pub struct Replay {
    /// Its VMs.
    pub vms: Vec<ReplayVm>,
    /// Who of the host disturbed them.
    pub disturbers: Vec<Disturber>,
    /// The host's CPUs.
    pub shape: Shape,
    /// How long it is, ns.
    pub span: u64,
    /// What it cannot tell, in sentences.
    pub untold: Vec<String>,
}

/// Why a recording is no scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoScenario {
    /// No vCPU is known in it.
    Empty,
    /// Of the machine that was asked for.
    Shape(String),
}

impl std::fmt::Display for NoScenario {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Empty => f.write_str("no vCPU ran in this recording: record while the VMs work"),
            Self::Shape(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for NoScenario {}

impl Replay {
    /// Reads what was wanted out of a recording. `shape`: the host's, which a recording does not hold; flat if not given.
    ///
    /// # Errors
    /// When there is no vCPU in it, or when the shape has fewer CPUs than it.
    pub fn of(recording: &Recording, shape: Option<Shape>) -> Result<Self, NoScenario> {
        let analysis = Analysis::of(recording);
        let seen = recording.events.iter().map(|event| u32::from(event.cpu) + 1).max().unwrap_or(0);
        // CPUs that are offline have numbers, too.
        let pcpus = analysis.pcpus.max(seen);
        let flat = shape.is_none();
        let shape = shape.unwrap_or_else(|| Shape::flat(pcpus));
        if shape.cpus() < pcpus || shape.cpus() as usize > MAX_CPUS {
            return Err(NoScenario::Shape(format!(
                "the recording has {pcpus} pCPUs, the shape {}: it must have {pcpus} to {MAX_CPUS}",
                shape.cpus()
            )));
        }
        let mut long = 0;
        let mut vms = Vec::new();
        for vm in &analysis.vms {
            let mut vcpus: Vec<Demand> = Vec::new();
            for vcpu in &vm.vcpus {
                let (demand, more) = Demand::of(vcpu, PAIRS);
                long += u64::from(more);
                vcpus.push(demand);
            }
            if !vcpus.is_empty() {
                vms.push(ReplayVm { name: vm.name.clone(), vcpus, shares: Shares::of(vm.vcpus.iter()) });
            }
        }
        if analysis.span_ns == 0 || vms.iter().all(|vm| vm.vcpus.iter().all(|vcpu| vcpu.pairs.is_empty())) {
            return Err(NoScenario::Empty);
        }
        let mut disturbers = demand::disturbers(&analysis);
        let left_out: u64 = disturbers.iter().skip(DISTURBERS).map(Disturber::ran).sum();
        disturbers.truncate(DISTURBERS);
        let mut untold = untold(&analysis, flat);
        if long > 0 {
            untold.push(format!("{long} vCPUs halted more than {PAIRS} times: what came after is left out"));
        }
        if left_out > 0 {
            let ms = left_out as f64 / 1e6;
            untold.push(format!("of the host's threads the {DISTURBERS} busiest are kept; the others ran {ms:.1} ms"));
        }
        Ok(Self { vms, disturbers, shape, span: analysis.span_ns, untold })
    }

    /// Its world under an arm: as long as the recording, from its beginning.
    pub fn build(&self, seed: u64, arm: Arm, order: Order) -> Setup {
        let mut world = host(seed, self.shape, arm);
        let mut rng = Rng::new(seed ^ 0x7265_706c_6179);
        let mut measured = Vec::new();
        for vm in &self.vms {
            let m = guest(&mut world, vm.vcpus.len() as u32, arm);
            for (cpu, demand) in vm.vcpus.iter().enumerate() {
                add_vcpu(&mut world, m, cpu as u32, demand, order, &mut rng);
            }
            let threads = (0..vm.vcpus.len() as u32).map(|cpu| world.thread_of(m, cpu)).collect();
            measured.push(Measured { name: vm.name.clone(), machine: HOST, tasks: threads });
        }
        for one in &self.disturbers {
            let mut steps = Vec::new();
            let mut at = 0;
            for (from, until) in &one.runs {
                steps.extend([Sleep(Fixed(from.saturating_sub(at).max(1))), Compute(Fixed(until - from))]);
                at = *until;
            }
            steps.push(Sleep(Fixed(self.span.saturating_sub(at).max(1))));
            let allowed = one.bound.then_some([one.cpu]);
            let spec = World::spec(Kernel::ROOT, 100, allowed.as_ref().map(|cpus| &cpus[..]));
            let task = world.add_task(HOST, spec, &steps, 0);
            world.set_name(HOST, task, &one.name);
        }
        named_tasks(Setup { world, end: self.span.max(SEC / 100), measured })
    }

    /// Where the time of each VM went in a world that has run.
    pub fn shares(&self, setup: &Setup) -> Vec<Shares> {
        setup.measured.iter().map(|vm| shares(&setup.world, vm)).collect()
    }
}

/// One task that wants what the vCPU wanted.
fn add_vcpu(world: &mut World, m: MachineId, cpu: u32, demand: &Demand, order: Order, rng: &mut Rng) {
    if demand.pairs.is_empty() {
        return;
    }
    let mut steps: Vec<Step> = Vec::with_capacity(3 * demand.pairs.len() + 1);
    if demand.first_halt > 0 {
        steps.push(Sleep(Fixed(demand.first_halt)));
    }
    for at in 0..demand.pairs.len() {
        let (computes, halted) = match order {
            Order::Recorded => demand.pairs[at],
            Order::Drawn => demand.pairs[rng.within(0, demand.pairs.len() as u64 - 1) as usize],
        };
        // One that did not halt was not woken either.
        let around = if halted > 0 { AROUND } else { 0 };
        steps.push(Compute(Fixed(computes.saturating_sub(around).max(LEAST))));
        if halted > 0 {
            steps.push(Sleep(Fixed(halted)));
        }
        steps.push(Done);
    }
    let spec = World::spec(Kernel::ROOT, 100, Some(&[cpu]));
    world.add_task(m, spec, &steps, 0);
}

/// Where the time of some threads of the host went.
fn shares(world: &World, of: &Measured) -> Shares {
    let tasks = || of.tasks.iter().map(|task| world.machines[0].kernel.task(*task));
    let all = (world.now * of.tasks.len() as u64).max(1) as f64;
    let ran = tasks().map(|task| task.sum_exec).sum::<u64>() as f64 / all;
    let waited =
        tasks().map(|task| task.sum_wait + task.waits_since.map_or(0, |since| world.now - since)).sum::<u64>() as f64;
    let waited = waited / all;
    Shares { ran, waited, halted: 1.0 - ran - waited, known: 1.0 }
}

/// What no recording tells, and what this one does not.
fn untold(analysis: &Analysis, flat: bool) -> Vec<String> {
    let mut untold: Vec<String> = [
        "what the vCPUs did inside: each has one task that is bound to it, so that the guest's scheduler has nothing to move; \
         time spent spinning counts as work",
        "why a vCPU was woken: timers wake it, however long its waits were; nobody waits for another one's answer",
        "what the host's threads did while no vCPU waited for their pCPU: they are here only when they disturbed",
        "weights, limits and affinity: all VMs are equal and may run anywhere",
    ]
    .map(String::from)
    .into();
    if flat {
        untold
            .push("caches, cores and nodes of the host: it has one cache, unless --shape says what it is like".into());
    }
    if analysis.dropped + analysis.damaged > 0 {
        untold.push(format!("{} events that were lost, {} damaged blocks", analysis.dropped, analysis.damaged));
    }
    let unknown: HashMap<&str, f64> = analysis
        .vms
        .iter()
        .map(|vm| (vm.name.as_str(), Shares::of(vm.vcpus.iter()).known))
        .filter(|(_, known)| *known < 0.99)
        .collect();
    if !unknown.is_empty() {
        let mut worst: Vec<_> = unknown.into_iter().collect();
        worst.sort_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(b.0)));
        let (name, known) = worst[0];
        untold.push(format!("{:.0} % of the time of {name}, and parts of others'", (1.0 - known) * 100.0));
    }
    untold
}
