//! A fleet: many hosts full of VMs as a public cloud has them ([`azure`]), each run under every arm and at every ratio of
//! vCPUs to pCPUs. Which ratio does an arm sustain, so that requests wait no longer than a target?
//!
//! A host's VMs are the same under each arm and ratio; what the ratio changes is how many pCPUs they have. Hosts are
//! runs of their own, so that a sweep is divided by their numbers ([`Shard`]) and put together again ([`table`]).

pub mod azure;
#[cfg(feature = "parquet")]
mod parquet;
pub mod sustain;
pub mod table;

use crate::kernel::topology::Shape;
use crate::program::Step::{Compute, Done, Sleep};
use crate::program::Time::Mean;
use crate::program::{MS, Step};
use crate::rng::Rng;
use crate::scenario::{Arm, guest, host};
use crate::world::{MachineId, World};
use azure::Vm;

/// Which hosts of a sweep a process runs: those whose number leaves this rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Its own number, from 0.
    pub index: u32,
    /// How many there are.
    pub of: u32,
}

impl std::str::FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no shard: it is I/N with I from 0 to N - 1, as 3/16");
        let (index, of) = text.split_once('/').ok_or_else(wrong)?;
        let (index, of) = (index.parse().map_err(|_| wrong())?, of.parse().map_err(|_| wrong())?);
        if index < of { Ok(Self { index, of }) } else { Err(wrong()) }
    }
}

/// A sweep.
#[derive(Clone, Debug, PartialEq)]
pub struct Sweep {
    /// Hosts.
    pub hosts: u32,
    /// VMs of each.
    pub vms: u32,
    /// vCPUs for each pCPU.
    pub ratios: Vec<f64>,
    /// Names of arms.
    pub arms: Vec<String>,
    /// Simulated time of each run, ms; its first third is not measured.
    pub length_ms: u64,
    /// What all is drawn from.
    pub seed: u64,
}

/// One run of a sweep.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// Which host.
    pub host: u32,
    /// Under which arm.
    pub arm: String,
    /// At which ratio.
    pub ratio: f64,
}

/// What a run has shown. The first four name it: two rows of one name are the same run.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Row {
    /// What the sweep was drawn from, and how: of sweeps that differ no rows are put together.
    pub sweep: String,
    /// The host's number.
    pub host: u32,
    /// The arm.
    pub arm: String,
    /// vCPUs for each pCPU.
    pub ratio: f64,
    /// pCPUs.
    pub pcpus: u32,
    /// vCPUs.
    pub vcpus: u32,
    /// What the VMs want of the host's CPU time, as a part of it; above 1 it cannot be had.
    pub wanted: f64,
    /// What its CPUs were busy with VMs, as a part of their time.
    pub busy: f64,
    /// Requests a second.
    pub requests: f64,
    /// From a request's arrival to its first instruction: median, 99th percentile, 99.9th, worst, µs.
    pub wait_us: [f64; 4],
    /// Part of the time that runnable vCPUs were without a pCPU.
    pub stolen: f64,
    /// Events of the simulation.
    pub events: u64,
    /// Digest of the run.
    pub trace: String,
}

impl Sweep {
    /// What tells it from other sweeps. The number of hosts does not: more of them add rows.
    pub fn name(&self) -> String {
        format!("azure-2017 vms={} ms={} seed={}", self.vms, self.length_ms, self.seed)
    }

    /// The runs of a shard, host by host.
    pub fn jobs(&self, shard: Shard) -> Vec<Job> {
        let hosts = (0..self.hosts).filter(|host| host % shard.of == shard.index);
        let mut jobs = Vec::new();
        for host in hosts {
            for arm in &self.arms {
                jobs.extend(self.ratios.iter().map(|ratio| Job { host, arm: arm.clone(), ratio: *ratio }));
            }
        }
        jobs
    }

    /// The VMs of a host.
    pub fn host_vms(&self, number: u32) -> Vec<Vm> {
        // A sequence of its own for each host, whichever shard runs it.
        let mut rng = Rng::new(self.seed ^ Rng::new(u64::from(number) + 1).next());
        (0..self.vms).map(|_| Vm::draw(&mut rng)).collect()
    }

    /// Runs one.
    ///
    /// # Panics
    /// When there is no arm of the name.
    pub fn run(&self, job: &Job) -> Row {
        let vms = self.host_vms(job.host);
        let vcpus: u32 = vms.iter().map(|vm| vm.vcpus).sum();
        let shape = shape(f64::from(vcpus) / job.ratio);
        let arm = Arm::named(&job.arm).expect("arms are looked up when the sweep is made");
        let mut world = host(self.seed ^ u64::from(job.host), shape, arm);
        let guests: Vec<MachineId> = vms.iter().map(|vm| add(&mut world, vm, arm)).collect();
        let warm = self.length_ms * MS / 3;
        world.run(warm);
        let before: Vec<(u64, u64)> = world.vms.iter().map(|vm| account(&world, vm)).collect();
        let seen: Vec<Vec<usize>> =
            guests.iter().map(|m| tasks(&world, *m).iter().map(|task| task.latencies.len()).collect()).collect();
        let begun = world.now;
        world.run(self.length_ms * MS);
        let span = (world.now - begun) as f64;
        let mut waits: Vec<u32> = Vec::new();
        for (m, seen) in guests.iter().zip(&seen) {
            for (task, seen) in tasks(&world, *m).iter().zip(seen) {
                waits.extend(&task.latencies[*seen..]);
            }
        }
        waits.sort_unstable();
        let at =
            |part: f64| waits.get(((waits.len().max(1) - 1) as f64 * part) as usize).map_or(0.0, |ns| f64::from(*ns));
        let after = world.vms.iter().map(|vm| account(&world, vm));
        let (ran, waited) = after
            .zip(&before)
            .fold((0, 0), |(ran, waited), (after, before)| (ran + after.0 - before.0, waited + after.1 - before.1));
        let pcpus = shape.cpus();
        let wanted: f64 = vms.iter().map(|vm| vm.now * f64::from(vm.vcpus)).sum();
        Row {
            sweep: self.name(),
            host: job.host,
            arm: job.arm.clone(),
            ratio: job.ratio,
            pcpus,
            vcpus,
            wanted: wanted / f64::from(pcpus),
            busy: ran as f64 / span / f64::from(pcpus),
            requests: waits.len() as f64 / (span / 1e9),
            wait_us: [0.5, 0.99, 0.999, 1.0].map(|part| at(part) / 1e3),
            stolen: waited as f64 / span / f64::from(vcpus),
            events: world.events,
            trace: format!("{:016x}", world.trace),
        }
    }
}

/// A host of about so many CPUs, at least two: threads of cores in pairs, up to sixteen cores at a cache.
fn shape(cpus: f64) -> Shape {
    let cores = (cpus / 2.0).round().max(1.0) as u32;
    let llcs = cores.div_ceil(16);
    let each = (f64::from(cores) / f64::from(llcs)).round() as u32;
    Shape { nodes: 1, llcs, cores: each, threads: 2 }
}

/// One guest; each vCPU serves requests that come one after the other, and is busy as the VM is.
fn add(world: &mut World, vm: &Vm, arm: Arm) -> MachineId {
    let m = guest(world, vm.vcpus, arm);
    // A worker computes this part of the time when nothing holds it up.
    let sleep = (vm.request as f64 * (1.0 - vm.now) / vm.now.max(0.001)) as u64;
    let mut steps: Vec<Step> = vec![Compute(Mean(vm.request)), Done];
    if sleep > 0 {
        steps.insert(0, Sleep(Mean(sleep)));
    }
    for _ in 0..vm.vcpus {
        world.add_task(m, World::spec(crate::kernel::Kernel::ROOT, 100, None), &steps, 0);
    }
    m
}

fn tasks(world: &World, m: MachineId) -> &[crate::world::TaskState] {
    &world.machines[m.0 as usize].tasks
}

/// What a VM's threads have had, and waited for, ns.
fn account(world: &World, vm: &crate::world::Vm) -> (u64, u64) {
    let kernel = &world.machines[0].kernel;
    let tasks = vm.vcpus.iter().map(|vcpu| kernel.task(vcpu.task));
    tasks.fold((0, 0), |(ran, waited), task| {
        let still = task.waits_since.map_or(0, |since| world.now - since);
        (ran + task.sum_exec, waited + task.sum_wait + still)
    })
}
