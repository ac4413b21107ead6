//! A drawn world, as data: what it is made of can be printed, kept in a file, and made smaller.

use serde::{Deserialize, Serialize};

use crate::kernel::group::GroupId;
use crate::kernel::mask::CpuMask;
use crate::kernel::topology::Shape;
use crate::kernel::{Kernel, Planted, TaskId};
use crate::program::{MS, Step};
use crate::world::{Act, Arch, HOST, MachineId, MachineSpec, Policy, Tunable, VmSpec, World};

/// One world, and what happens to it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// What the world draws from while it runs.
    pub seed: u64,
    /// The host's CPUs.
    pub shape: Shape,
    /// The host's scheduler.
    pub host: Policy,
    /// The guests' scheduler.
    pub guest: Policy,
    /// Whether the guests' agents pair with the host.
    pub paired: bool,
    /// How long it runs, ns.
    pub end: u64,
    /// Operations run at once, and are left at one access in so many to what CPUs share; 0: they are atomic.
    #[serde(default)]
    pub races: u32,
    /// A fault of all machines' kernels, by which the search itself is tested.
    #[serde(default)]
    pub planted: Option<Planted>,
    /// A task may wait so long beside an idle CPU, ns.
    #[serde(default = "idle_bound")]
    pub idle_bound: u64,
    /// The host's cgroups; each one's parent stands before it, and 0 is the root, 1 the first of these.
    pub groups: Vec<PlannedGroup>,
    /// Tasks of the host.
    pub tasks: Vec<PlannedTask>,
    /// The VMs.
    pub vms: Vec<PlannedVm>,
    /// What is done to it.
    pub deeds: Vec<PlannedDeed>,
}

/// Of worlds of all kinds.
pub(super) const fn idle_bound() -> u64 {
    MS
}

/// Bounds from here on leave room for tasks that wait in a guest since they are to start soon: a timer looks after them
/// twice in so long at least.
pub(super) const STAYS_IDLE_BOUND: u64 = 5 * MS;

/// A cgroup.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlannedGroup {
    /// Its parent.
    pub parent: usize,
    /// `cpu.weight`.
    pub weight: u32,
}

/// A task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlannedTask {
    /// Its cgroup; a guest has the root alone.
    pub group: usize,
    /// Its weight, 1..10000.
    pub weight: u32,
    /// Where it may run; `None`: anywhere.
    pub cpus: Option<Vec<u32>>,
    /// A task of the real-time class on this CPU.
    pub realtime: Option<u32>,
    /// When it begins, ns.
    pub start: u64,
    /// What it does, again and again.
    pub steps: Vec<Step>,
}

/// A VM.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlannedVm {
    /// Its vCPUs.
    pub vcpus: u32,
    /// The cgroup of their threads.
    pub group: usize,
    /// Each vCPU has a CPU of the host, where its thread is bound to.
    #[serde(default)]
    pub pinned: bool,
    /// Its architecture.
    pub arch: Arch,
    /// Its tasks.
    pub tasks: Vec<PlannedTask>,
}

/// What is done at a time. Machines, tasks and groups that the plan has not are left alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlannedDeed {
    /// When, ns.
    pub at: u64,
    /// What.
    pub deed: Deed,
}

/// See [`Act`]. Machine 0 is the host, guest `i` is `i + 1`; tasks are numbered as the plan lists them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "as those of Act")]
pub enum Deed {
    Allow { machine: usize, task: usize, cpus: Vec<u32> },
    Weight { machine: usize, task: usize, weight: u32 },
    GroupWeight { group: usize, weight: u32 },
    Move { task: usize, group: usize },
    Fork { machine: usize, weight: u32, steps: Vec<Step> },
    Kill { machine: usize, task: usize },
    Attach { machine: usize },
    Detach { machine: usize },
    Bypass { machine: usize, on: bool },
    Hotplug { machine: usize, cpu: u32, online: bool },
    Lie { vm: usize },
}

impl Plan {
    /// Makes the world.
    pub fn build(&self) -> World {
        let mut world = World::new(self.seed);
        world.checks.idle_bound = self.idle_bound;
        let machine = |shape, policy, tunables| MachineSpec { shape, policy, tunables };
        world.add_host(&machine(self.shape, self.host, Vec::new()));
        // Whoever is to start soon behind another one may wait for longer than a strict bound beside an idle CPU.
        let stays = match self.guest {
            Policy::Entrain => vec![("use_stays", Tunable::Switch(self.idle_bound >= STAYS_IDLE_BOUND))],
            _ => Vec::new(),
        };
        let mut groups = vec![Kernel::ROOT];
        for group in &self.groups {
            let parent = groups[group.parent.min(groups.len() - 1)];
            groups.push(world.add_group(HOST, parent, group.weight));
        }
        let group = |index: usize| groups[index.min(groups.len() - 1)];
        let mut tasks = vec![self.tasks.iter().map(|task| task.add(&mut world, HOST, group(task.group))).collect()];
        for vm in &self.vms {
            let m = world.add_vm(&VmSpec {
                guest: machine(Shape::flat(vm.vcpus), self.guest, stays.clone()),
                group: group(vm.group),
                paired: self.paired,
                arch: vm.arch,
                pins: vm
                    .pinned
                    .then(|| (0..vm.vcpus).map(|vcpu| std::iter::once(vcpu % self.shape.cpus()).collect()).collect()),
            });
            tasks.push(vm.tasks.iter().map(|task| task.add(&mut world, m, Kernel::ROOT)).collect::<Vec<_>>());
        }
        for PlannedDeed { at, deed } in &self.deeds {
            if let Some(act) = deed.act(&tasks, &groups) {
                world.act(*at, act);
            }
        }
        if let Some(planted) = self.planted {
            for machine in &mut world.machines {
                machine.kernel.plant(planted);
            }
        }
        if self.races > 0 {
            world.race(self.races);
            // The EEVDF model promises nothing.
            world.checks.host = self.host == Policy::Entrain;
            world.checks.guests = self.guest == Policy::Entrain && self.vms.iter().all(|vm| vm.pinned);
        }
        world
    }

    /// Whether all that it has wants to run all the time, anywhere: then shares are judged.
    pub fn hogs(&self) -> bool {
        let hog = |task: &PlannedTask| {
            task.cpus.is_none()
                && task.realtime.is_none()
                && task.steps.iter().all(|step| matches!(step, Step::Compute(_) | Step::Done))
        };
        let vm = |vm: &PlannedVm| vm.tasks.len() >= vm.vcpus as usize && vm.tasks.iter().all(hog);
        self.deeds.is_empty() && self.tasks.iter().all(hog) && self.vms.iter().all(vm)
    }

    /// Whether each task's program takes time and gives back the locks that it takes.
    pub fn valid(&self) -> bool {
        let count = |steps: &[Step], of: fn(&Step) -> bool| steps.iter().filter(|step| of(step)).count();
        let valid = |task: &PlannedTask| {
            let times = count(&task.steps, |step| {
                matches!(step, Step::Compute(_) | Step::System(_) | Step::Sleep(_) | Step::Until(_))
            });
            let (taken, given) = (
                count(&task.steps, |s| matches!(s, Step::Lock(_))),
                count(&task.steps, |s| matches!(s, Step::Unlock(_))),
            );
            times > 0 && taken == given
        };
        self.tasks.iter().chain(self.vms.iter().flat_map(|vm| &vm.tasks)).all(valid)
    }

    /// How much there is of it: what a smaller plan has less of.
    pub fn size(&self) -> usize {
        let tasks = self.vms.iter().flat_map(|vm| &vm.tasks).chain(&self.tasks);
        let steps: usize = tasks.map(|task| 2 + task.steps.len() + usize::from(task.cpus.is_some())).sum();
        let vcpus: u32 = self.vms.iter().map(|vm| 2 + vm.vcpus).sum();
        steps + vcpus as usize + self.deeds.len() + self.groups.len() + self.shape.cpus() as usize
    }

    /// In a few words.
    pub fn words(&self) -> String {
        let Shape { nodes, llcs, cores, threads } = self.shape;
        let guests: Vec<_> =
            self.vms.iter().map(|vm| format!("{} vCPUs with {} tasks", vm.vcpus, vm.tasks.len())).collect();
        format!(
            "seed {}: {nodes} nodes with {llcs} caches of {cores} cores of {threads} threads; {:?} on the host, {:?} in \
             guests{}; {} groups, {} tasks; guests of {}; {} deeds{}",
            self.seed,
            self.host,
            self.guest,
            if self.paired { ", paired" } else { "" },
            self.groups.len(),
            self.tasks.len(),
            guests.join(", "),
            self.deeds.len(),
            if self.races > 0 { format!("; races, 1 gap in {}", self.races) } else { String::new() },
        )
    }
}

impl PlannedTask {
    fn add(&self, world: &mut World, m: MachineId, group: GroupId) -> TaskId {
        let cpus = world.machines[m.0 as usize].kernel.topo.all.clone();
        // A plan that was made smaller may name CPUs that are gone.
        let allowed = self.cpus.as_ref().map(|cpus| cpus.iter().copied().collect::<CpuMask>().and(&cpus_of(&cpus[..])));
        let allowed = allowed.map(|mask| mask.and(&cpus)).filter(|mask| !mask.is_empty());
        let mut spec = World::spec(group, self.weight, None);
        spec.allowed = allowed;
        if let Some(cpu) = self.realtime {
            spec.allowed = Some(std::iter::once(cpu % cpus.count() as u32).collect());
            spec.realtime = true;
        }
        world.add_task(m, spec, &self.steps, self.start)
    }
}

fn cpus_of(cpus: &[u32]) -> CpuMask {
    cpus.iter().copied().filter(|cpu| (*cpu as usize) < crate::kernel::mask::MAX_CPUS).collect()
}

impl Deed {
    fn act(&self, tasks: &[Vec<TaskId>], groups: &[GroupId]) -> Option<Act> {
        let id = |machine: usize| MachineId(machine as u16);
        let of = |machine: usize, task: usize| tasks.get(machine)?.get(task).copied();
        Some(match self {
            Self::Allow { machine, task, cpus } => Act::Allow(id(*machine), of(*machine, *task)?, cpus_of(cpus)),
            Self::Weight { machine, task, weight } => Act::Weight(id(*machine), of(*machine, *task)?, *weight),
            Self::GroupWeight { group, weight } => {
                Act::GroupWeight(HOST, *groups.get(*group).filter(|group| group.0 > 0)?, *weight)
            }
            Self::Move { task, group } => Act::Move(HOST, of(0, *task)?, *groups.get(*group)?),
            Self::Fork { machine, weight, steps } => {
                tasks.get(*machine)?;
                Act::Fork(id(*machine), Kernel::ROOT, *weight, steps.clone())
            }
            Self::Kill { machine, task } => Act::Kill(id(*machine), of(*machine, *task)?),
            Self::Attach { machine }
            | Self::Detach { machine }
            | Self::Bypass { machine, .. }
            | Self::Hotplug { machine, .. }
                if tasks.get(*machine).is_none() =>
            {
                return None;
            }
            Self::Attach { machine } => Act::Attach(id(*machine)),
            Self::Detach { machine } => Act::Detach(id(*machine)),
            Self::Bypass { machine, on } => Act::Bypass(id(*machine), *on),
            Self::Hotplug { machine, cpu, online } => Act::Hotplug(id(*machine), *cpu, *online),
            Self::Lie { vm } => {
                tasks.get(vm + 1)?;
                Act::Lie(id(vm + 1))
            }
        })
    }
}
