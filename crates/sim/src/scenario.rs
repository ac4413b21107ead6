//! Named worlds with loads, and which of their tasks are measured.

use crate::kernel::Kernel;
use crate::kernel::group::GroupId;
use crate::kernel::topology::Shape;
use crate::kernel::{TaskId, TaskSpec};
use crate::program::Step::{
    Broadcast, Compute, Done, Hold, Lock, Post, PostSync, Sleep, Synchronize, Unlock, Until, Wait,
};
use crate::program::Time::{Fixed, Mean, Within};
use crate::program::{MS, SEC, Step, US};
use crate::world::{Arch, HOST, MachineId, MachineSpec, Policy, Tunable, VmSpec, World};

/// Who schedules what.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct Arm {
    /// On the host.
    pub host: Policy,
    /// In the guests.
    pub guest: Policy,
    /// Whether the guests' agents pair with the host.
    pub paired: bool,
    /// Tunables of Entrain's scheduler on the host.
    #[serde(skip)]
    pub tunables: &'static [(&'static str, Tunable)],
}

impl Arm {
    /// All kernels as they come.
    pub const STOCK: Self = Self { host: Policy::Eevdf, guest: Policy::Eevdf, paired: false, tunables: &[] };
    /// Entrain on the host, guests that know nothing of it.
    pub const HOST: Self = Self { host: Policy::Entrain, guest: Policy::Eevdf, paired: false, tunables: &[] };
    /// Entrain on the host, guests whose agents tell it what their kernels do.
    pub const REGISTERED: Self = Self { host: Policy::Entrain, guest: Policy::Eevdf, paired: true, tunables: &[] };
    /// Entrain on both sides.
    pub const BOTH: Self = Self { host: Policy::Entrain, guest: Policy::Entrain, paired: true, tunables: &[] };

    /// Entrain in the guests alone, without a word of the host.
    pub const GUEST: Self = Self { host: Policy::Eevdf, guest: Policy::Entrain, paired: false, tunables: &[] };

    /// scx_simple on the host: a check of the simulated kernel by a scheduler that is published.
    pub const SIMPLE: Self = Self { host: Policy::Simple, guest: Policy::Eevdf, paired: false, tunables: &[] };

    /// scx_bpfland on the host: another check, by a scheduler that has more of the kernel do its work.
    pub const BPFLAND: Self = Self { host: Policy::Bpfland, guest: Policy::Eevdf, paired: false, tunables: &[] };

    /// The names of the arms that are run when none is named; `registered` and the peers' are more.
    pub const NAMES: [&str; 4] = ["stock", "host", "guest", "both"];

    /// The arm of a name.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "stock" => Some(Self::STOCK),
            "host" => Some(Self::HOST),
            "registered" => Some(Self::REGISTERED),
            "both" => Some(Self::BOTH),
            "guest" => Some(Self::GUEST),
            "simple" => Some(Self::SIMPLE),
            "bpfland" => Some(Self::BPFLAND),
            _ => None,
        }
    }
}

/// Tasks that do the same, measured together.
pub struct Measured {
    /// What they are.
    pub name: String,
    /// Where they run.
    pub machine: MachineId,
    /// Which they are.
    pub tasks: Vec<TaskId>,
}

impl Measured {
    /// What they waited from wake-up to running, ns, sorted.
    pub fn latencies(&self, world: &World) -> Vec<u32> {
        let states = &world.machines[self.machine.0 as usize].tasks;
        let mut all: Vec<u32> =
            self.tasks.iter().flat_map(|task| states[task.0 as usize].latencies.iter().copied()).collect();
        all.sort_unstable();
        all
    }
}

/// A world that is ready to run.
pub struct Setup {
    /// The world.
    pub world: World,
    /// How long it runs, ns.
    pub end: u64,
    /// What is measured.
    pub measured: Vec<Measured>,
}

/// A named world.
pub struct Scenario {
    /// Its name.
    pub name: &'static str,
    /// What it is.
    pub about: &'static str,
    make: fn(u64, Arm) -> Setup,
}

impl Scenario {
    /// Makes its world for a seed.
    pub fn build(&self, seed: u64, arm: Arm) -> Setup {
        named_tasks((self.make)(seed, arm))
    }
}

/// All scenarios.
pub const SCENARIOS: &[Scenario] = &[
    Scenario { name: "hogs", about: "8 pCPUs, 24 tasks of the host that compute, of three weights", make: hogs },
    Scenario { name: "lock", about: "two 4-vCPU guests on 2 pCPUs, each with 4 tasks at one lock", make: lock },
    Scenario {
        name: "wake",
        about: "two 4-vCPU guests on 2 pCPUs: requests that are handed around, and a hog each",
        make: wake,
    },
    Scenario {
        name: "clock",
        about: "a 2 ms clock on each vCPU of a guest, beside locks, twice, on 2 pCPUs",
        make: clock,
    },
    Scenario {
        name: "shootdown",
        about: "three 4-vCPU guests on 4 pCPUs that broadcast and wait for answers",
        make: shootdown,
    },
    Scenario { name: "rcu", about: "two 4-vCPU guests on 2 pCPUs: grace periods beside locks", make: rcu },
    Scenario {
        name: "crowd",
        about: "50 guests with 2 vCPUs on 16 pCPUs in two caches, each in a cgroup below one",
        make: crowd,
    },
    Scenario {
        name: "calm-wake",
        about: "one 4-vCPU guest alone on 4 pCPUs: requests that are handed around",
        make: calm_wake,
    },
    Scenario { name: "calm-lock", about: "one 4-vCPU guest alone on 4 pCPUs: four tasks at one lock", make: calm_lock },
    Scenario {
        name: "calm-pipes",
        about: "one 4-vCPU guest alone on 4 pCPUs: eight pairs that hand messages to each other, more than vCPUs",
        make: calm_pipes,
    },
    Scenario {
        name: "bench",
        about: "80 threads, 160 vCPUs in 8 guests, 30 s: what the simulator is timed with",
        make: bench,
    },
    Scenario {
        name: "bench-256",
        about: "256 threads, 512 vCPUs in 64 guests, 1 s: how its work grows",
        make: |seed, arm| bench_of(seed, arm, 256),
    },
    Scenario {
        name: "bench-1024",
        about: "the same with 1,024 threads, as many as the host's scheduler takes",
        make: |seed, arm| bench_of(seed, arm, 1024),
    },
    Scenario {
        name: "bench-4096",
        about: "the same with 4,096, beyond what it takes: EEVDF schedules the host",
        make: |seed, arm| bench_of(seed, arm, 4096),
    },
];

/// The scenario of a name.
pub fn named(name: &str) -> Option<&'static Scenario> {
    SCENARIOS.iter().find(|scenario| scenario.name == name)
}

/// A host without guests so far.
pub fn host(seed: u64, shape: Shape, arm: Arm) -> World {
    let mut world = World::new(seed);
    let tunables = if arm.host == Policy::Entrain { arm.tunables.to_vec() } else { Vec::new() };
    world.add_host(&MachineSpec { shape, policy: arm.host, tunables });
    world
}

/// A guest in the root group.
pub fn guest(world: &mut World, vcpus: u32, arm: Arm) -> MachineId {
    guest_in(world, vcpus, arm, Kernel::ROOT)
}

/// A guest in a group of the host.
pub fn guest_in(world: &mut World, vcpus: u32, arm: Arm, group: GroupId) -> MachineId {
    world.add_vm(&VmSpec {
        guest: MachineSpec { shape: Shape::flat(vcpus), policy: arm.guest, tunables: Vec::new() },
        group,
        paired: arm.paired,
        arch: Arch::Arm64,
        pins: None,
    })
}

/// Some tasks alike, each a process of its own.
pub fn tasks(world: &mut World, m: MachineId, name: &str, count: u32, steps: &[Step]) -> Measured {
    alike(world, m, name, count, steps, 0)
}

/// The process of a load that has threads; processes that the kernel numbers come after it.
pub const PROCESS: i32 = 1;

/// Some threads alike, of [`PROCESS`].
pub fn one_process(world: &mut World, m: MachineId, name: &str, count: u32, steps: &[Step]) -> Measured {
    alike(world, m, name, count, steps, PROCESS)
}

fn alike(world: &mut World, m: MachineId, name: &str, count: u32, steps: &[Step], tgid: i32) -> Measured {
    let spec = || TaskSpec { tgid, ..World::spec(Kernel::ROOT, 100, None) };
    let tasks = (0..count).map(|_| world.add_task(m, spec(), steps, 0)).collect();
    Measured { name: name.to_owned(), machine: m, tasks }
}

/// Names tasks after what is measured of them.
pub(crate) fn named_tasks(mut setup: Setup) -> Setup {
    for Measured { name, machine, tasks } in &setup.measured {
        for (i, task) in tasks.iter().enumerate() {
            setup.world.set_name(*machine, *task, &format!("{name} {i}"));
        }
    }
    setup
}

fn hogs(seed: u64, arm: Arm) -> Setup {
    let mut world = host(seed, Shape::flat(8), arm);
    let measured = [50, 100, 400]
        .into_iter()
        .map(|weight| {
            let spec = || World::spec(Kernel::ROOT, weight, None);
            let tasks = (0..8).map(|_| world.add_task(HOST, spec(), &[Compute(Mean(30 * MS)), Done], 0)).collect();
            Measured { name: format!("weight {weight}"), machine: HOST, tasks }
        })
        .collect();
    Setup { world, end: 10 * SEC, measured }
}

/// Guests alike, each with its own tasks.
fn overcommit(seed: u64, arm: Arm, pcpus: u32, guests: u32, vcpus: u32, loads: &[(&str, u32, &[Step])]) -> Setup {
    let mut world = host(seed, Shape::flat(pcpus), arm);
    let mut measured: Vec<Measured> = Vec::new();
    for g in 0..guests {
        let m = guest(&mut world, vcpus, arm);
        for (name, count, steps) in loads {
            let mut these = tasks(&mut world, m, name, *count, steps);
            these.name = format!("guest {g} {name}");
            measured.push(these);
        }
    }
    Setup { world, end: 4 * SEC, measured }
}

/// A contended lock: 20 µs of work, 2 µs inside.
const LOCKERS: &[Step] = &[Compute(Within(10 * US, 30 * US)), Lock(0), Hold(Fixed(2 * US)), Unlock(0), Done];

fn lock(seed: u64, arm: Arm) -> Setup {
    overcommit(seed, arm, 2, 2, 4, &[("lock", 4, LOCKERS)])
}

fn wake(seed: u64, arm: Arm) -> Setup {
    let client = &[Sleep(Mean(400 * US)), Compute(Fixed(5 * US)), Post(1), Wait(2), Done];
    let server = &[Wait(1), Compute(Mean(20 * US)), PostSync(2)];
    let hog = &[Compute(Fixed(10 * MS))];
    overcommit(seed, arm, 2, 2, 4, &[("client", 1, client), ("server", 1, server), ("hog", 1, hog)])
}

/// One guest that has all the CPU it wants: its scheduler has nothing to gain, and must lose nothing.
fn calm(seed: u64, arm: Arm, loads: &[(&str, u32, &[Step])]) -> Setup {
    let mut setup = overcommit(seed, arm, 4, 1, 4, loads);
    setup.end = 2 * SEC;
    setup
}

fn calm_wake(seed: u64, arm: Arm) -> Setup {
    let client = &[Compute(Mean(10 * US)), Post(1), Wait(2), Done];
    let server = &[Wait(1), Compute(Mean(10 * US)), PostSync(2)];
    calm(seed, arm, &[("client", 2, client), ("server", 4, server)])
}

fn calm_lock(seed: u64, arm: Arm) -> Setup {
    calm(seed, arm, &[("lock", 4, LOCKERS)])
}

fn calm_pipes(seed: u64, arm: Arm) -> Setup {
    let sender = &[Compute(Mean(20 * US)), Post(1), Wait(2), Done];
    let receiver = &[Wait(1), Compute(Mean(20 * US)), Post(2)];
    calm(seed, arm, &[("sender", 8, sender), ("receiver", 8, receiver)])
}

fn clock(seed: u64, arm: Arm) -> Setup {
    let mut setup = overcommit(seed, arm, 2, 2, 4, &[("lock", 4, LOCKERS)]);
    for g in 0..2 {
        let m = MachineId(g + 1);
        let clocks = (0..4)
            .map(|cpu| {
                let spec = World::spec(Kernel::ROOT, 100, Some(&[cpu]));
                setup.world.add_task(m, spec, &[Until(2 * MS), Compute(Fixed(5 * US)), Done], 0)
            })
            .collect();
        setup.measured.push(Measured { name: format!("guest {g} clock"), machine: m, tasks: clocks });
    }
    setup
}

fn shootdown(seed: u64, arm: Arm) -> Setup {
    let unmap = &[Compute(Mean(300 * US)), Broadcast, Done];
    overcommit(seed, arm, 4, 3, 4, &[("shootdown", 4, unmap)])
}

fn rcu(seed: u64, arm: Arm) -> Setup {
    let writer = &[Compute(Mean(50 * US)), Synchronize, Done];
    overcommit(seed, arm, 2, 2, 4, &[("lock", 4, LOCKERS), ("writer", 1, writer)])
}

fn crowd(seed: u64, arm: Arm) -> Setup {
    let mut world = host(seed, Shape { nodes: 1, llcs: 2, cores: 8, threads: 1 }, arm);
    let slice = world.add_group(HOST, Kernel::ROOT, 100);
    let mut measured = Vec::new();
    for g in 0..50 {
        let group = world.add_group(HOST, slice, 100);
        let m = world.add_vm(&VmSpec {
            guest: MachineSpec { shape: Shape::flat(2), policy: arm.guest, tunables: Vec::new() },
            group,
            paired: arm.paired,
            arch: Arch::Arm64,
            pins: None,
        });
        let mut these = tasks(&mut world, m, "hog", 2, &[Compute(Mean(MS)), Done]);
        these.name = format!("guest {g}");
        measured.push(these);
    }
    Setup { world, end: 5 * SEC, measured }
}

fn bench(seed: u64, arm: Arm) -> Setup {
    let mut world = host(seed, Shape { nodes: 2, llcs: 1, cores: 20, threads: 2 }, arm);
    let measured = (0..8).flat_map(|_| bench_guest(&mut world, arm, 20, [8, 10, 4])).collect();
    Setup { world, end: 30 * SEC, measured }
}

/// A guest with hogs, sleepers, and tasks at a lock.
fn bench_guest(world: &mut World, arm: Arm, vcpus: u32, [hogs, sleepers, lockers]: [u32; 3]) -> [Measured; 3] {
    let m = guest(world, vcpus, arm);
    let lock = &[Compute(Mean(200 * US)), Lock(0), Hold(Fixed(2 * US)), Unlock(0), Done];
    [
        tasks(world, m, "hog", hogs, &[Compute(Mean(2 * MS)), Done]),
        tasks(world, m, "sleeper", sleepers, &[Sleep(Mean(5 * MS)), Compute(Mean(500 * US)), Done]),
        tasks(world, m, "lock", lockers, lock),
    ]
}

/// What the growth of the simulator's work is seen by: a host of so many threads, a multiple of 128, 16 at each cache, 128 in
/// each node; guests of 8 vCPUs, twice as many vCPUs as threads; one second.
pub fn bench_of(seed: u64, arm: Arm, threads: u32) -> Setup {
    let mut world = host(seed, Shape { nodes: threads / 128, llcs: 8, cores: 8, threads: 2 }, arm);
    let mut measured: Vec<_> = (0..threads / 4).flat_map(|_| bench_guest(&mut world, arm, 8, [3, 4, 2])).collect();
    // Guests are alike: a table of the first ones is enough.
    measured.truncate(6);
    Setup { world, end: SEC, measured }
}
