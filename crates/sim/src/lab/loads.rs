//! The lab's loads as programs of steps. How long a step takes is the order of magnitude of what the load's system calls
//! take on a server (docs/fidelity.md: 130 ns for a system call without work); what the sleeping and locking looks like
//! is taken from the loads' own sources (crates/workloads).

use crate::kernel::{Kernel, TaskSpec};
use crate::program::Step::{
    Begin, Compute, CpuMutex, Done, Enlist, Hold, KernelMutex, KernelRelease, Lock, LockQueue, Membarrier, Mutex, Post,
    PostNewest, PostSync, Release, Serve, Served, Sleep, System, Unlock, UnlockQueue, Until, Wait,
};
use crate::program::Time::{self, Fixed, Mean, Within};
use crate::program::{MS, Step, US};
use crate::scenario::{Measured, PROCESS, one_process, tasks};
use crate::world::{Act, HOST, MachineId, World};

/// How long a load runs, ns of simulated time.
pub const LENGTH: u64 = 2_000 * MS;

/// A tick of a clock is on time when it comes at most so late (`entrain-load tick`), ns.
const ON_TIME: u32 = 150_000;

/// A figure of a load, by the name that it has in the lab's results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Its name there.
    pub name: &'static str,
    /// What it is.
    pub kind: MetricKind,
}

/// What a figure is made from: of the tasks that are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// Operations a second; more is better.
    Rate,
    /// So many times the operations, for a second in which operations were under way; more is better.
    Within(u64),
    /// A part, in thousandths, of all waits from wake-up to running; less is better.
    Late(u32),
    /// The part of the wake-ups that came at most 150 µs late; more is better.
    OnTime,
    /// Context switches of the host a second; less is better.
    Switches,
}

impl MetricKind {
    /// Whether more of it is better.
    pub fn more_is_better(self) -> bool {
        !matches!(self, Self::Late(_) | Self::Switches)
    }
}

impl Metric {
    /// Reads it off a world that has run, of the tasks that are measured.
    pub fn read(&self, world: &World, measured: &[Measured]) -> f64 {
        let seconds = world.now as f64 / 1e9;
        let states = || {
            measured.iter().flat_map(|these| {
                these.tasks.iter().map(|task| &world.machines[these.machine.0 as usize].tasks[task.0 as usize])
            })
        };
        let mut late: Vec<u32> = measured.iter().flat_map(|these| these.latencies(world)).collect();
        late.sort_unstable();
        match self.kind {
            MetricKind::Within(each) => {
                let (ops, timed) = states().fold((0, 0), |(ops, timed), state| (ops + state.ops, timed + state.timed));
                (ops * each) as f64 * 1e9 / timed as f64 * measured.len() as f64
            }
            MetricKind::Rate => states().map(|state| state.ops).sum::<u64>() as f64 / seconds,
            MetricKind::Late(_) | MetricKind::OnTime if late.is_empty() => f64::NAN,
            MetricKind::Late(part) => f64::from(late[(late.len() - 1) * part as usize / 1000]),
            MetricKind::OnTime => late.partition_point(|ns| *ns <= ON_TIME) as f64 / late.len() as f64,
            MetricKind::Switches => world.machines[0].kernel.switches() as f64 / seconds,
        }
    }
}

/// One load.
pub struct Load {
    pub(super) add: fn(&mut World, MachineId, u32) -> Vec<Measured>,
    pub(super) metrics: &'static [Metric],
}

const fn metric(name: &'static str, kind: MetricKind) -> Metric {
    Metric { name, kind }
}

impl Load {
    pub(super) const DBENCH: Self = Self { add: dbench, metrics: &[metric("throughput", MetricKind::Rate), SWITCHES] };
    pub(super) const HACKBENCH: Self =
        Self { add: hackbench, metrics: &[metric("messages_per_s", MetricKind::Within(MESSAGES)), SWITCHES] };
    pub(super) const HACKBENCH_THREADS: Self =
        Self { add: hackbench_threads, metrics: &[metric("messages_per_s", MetricKind::Within(MESSAGES)), SWITCHES] };
    pub(super) const PIPES: Self =
        Self { add: pipes, metrics: &[metric("messages_per_s", MetricKind::Rate), SWITCHES] };
    pub(super) const LOCK: Self = Self { add: lock, metrics: &[metric("ops_per_s", MetricKind::Rate), SWITCHES] };
    pub(super) const SHOOTDOWN: Self = Self { add: broadcasts, metrics: &[metric("ops_per_s", MetricKind::Rate)] };
    pub(super) const WAKE: Self = Self { add: wake, metrics: WAKE_UPS };
    pub(super) const WAKE_LONG: Self = Self { add: wake_long, metrics: WAKE_UPS };
    pub(super) const SPIN: Self = Self { add: spin, metrics: &[metric("iterations_per_s", MetricKind::Rate)] };
    pub(super) const TICK: Self = Self { add: tick, metrics: CLOCK };
    pub(super) const TICK_BESIDE: Self = Self { add: tick_beside, metrics: CLOCK };
    pub(super) const CLOCK_BESIDE: Self = Self { add: clock_beside, metrics: CLOCK };
}

const SWITCHES: Metric = metric("context_switches", MetricKind::Switches);

const WAKE_UPS: &[Metric] = &[
    metric("requests_per_s", MetricKind::Rate),
    metric("wake_p50", MetricKind::Late(500)),
    metric("wake_p99", MetricKind::Late(990)),
    SWITCHES,
];

const CLOCK: &[Metric] = &[
    metric("on_time_share", MetricKind::OnTime),
    metric("jitter_p99", MetricKind::Late(990)),
    metric("jitter_max", MetricKind::Late(1000)),
];

/// `dup` and `close`: two system calls, each of which takes the lock of the table of open files. Where nobody else takes it,
/// the lab does 3.9 million a second of them, and three of ten looks at a turn's end find the guest in user mode.
const LOCKER: &[Step] = &[
    Compute(Within(20, 60)),
    System(Within(50, 90)),
    Lock(0),
    Hold(Fixed(20)),
    Unlock(0),
    Compute(Within(20, 60)),
    System(Within(50, 90)),
    Lock(0),
    Hold(Fixed(20)),
    Unlock(0),
    Done,
];

fn lock(world: &mut World, m: MachineId, threads: u32) -> Vec<Measured> {
    vec![one_process(world, m, "lock", threads, LOCKER)]
}

/// Reads and writes of some KiB, and now and then the directory's and the superblock's locks for an inode.
fn dbench(world: &mut World, m: MachineId, threads: u32) -> Vec<Measured> {
    let client = [
        Compute(Mean(6 * US)),
        Lock(0),
        Hold(Mean(400)),
        Unlock(0),
        Compute(Mean(10 * US)),
        Lock(1),
        Hold(Mean(800)),
        Unlock(1),
        Done,
    ];
    vec![tasks(world, m, "dbench", threads, &client)]
}

/// Messages without an end: pairs of a sender and a receiver with a pipe that holds eight messages; each read and write takes the pipe's lock.
fn pipes(world: &mut World, m: MachineId, _threads: u32) -> Vec<Measured> {
    const HELD: usize = 8;
    let mut receivers = Vec::new();
    for pair in 0..10 {
        let (free, full) = (10 + 2 * pair, 11 + 2 * pair);
        // What is done inside the pipe's lock is most of a read or write: the message is copied there.
        let copy = [KernelMutex(pair), Hold(Mean(250)), KernelRelease(pair), Compute(Mean(100))];
        let send = [&[Wait(free)], &copy[..], &[Post(full)]].concat();
        let take = [&[Wait(full)], &copy[..], &[Done]].concat();
        let receive: Vec<_> = std::iter::repeat_n(Post(free), HELD).chain(take.repeat(HELD)).collect();
        tasks(world, m, "sender", 1, &send);
        receivers.extend(tasks(world, m, "receiver", 1, &receive).tasks);
    }
    vec![Measured { name: "messages".to_owned(), machine: m, tasks: receivers }]
}

/// Groups of hackbench, senders and receivers of each, and messages from each of these to each of those in a round: what
/// `entrain-load run hackbench --threads 4 --loops 100` asks for.
const GROUPS: u32 = 2;
const FDS: u32 = 8;
const LOOPS: usize = 100;
const MESSAGES: u64 = (GROUPS * FDS * FDS) as u64 * LOOPS as u64;

/// hackbench as the program does it: rounds, each of processes of its own, made one after the other, started all at once,
/// and waited for until the last has ended; this last part alone is timed. Each receiver has a pipe, into which all senders
/// of its group write: it takes up a round's messages, so that nobody waits for room. Every read and write takes the
/// pipe's mutex.
fn hackbench(world: &mut World, m: MachineId, _threads: u32) -> Vec<Measured> {
    // From a trace of the lab: a fork, the new process's own part of it, its end with its address space.
    rounds(world, m, tasks, [80 * US, 19 * US, 45 * US])
}

/// The same with threads of one process, which has no address space to make and to take down for each.
fn hackbench_threads(world: &mut World, m: MachineId, _threads: u32) -> Vec<Measured> {
    rounds(world, m, one_process, [20 * US, 5 * US, 5 * US])
}

fn rounds(
    world: &mut World,
    m: MachineId,
    tasks: fn(&mut World, MachineId, &str, u32, &[Step]) -> Measured,
    [fork, birth, death]: [u64; 3],
) -> Vec<Measured> {
    const MADE: u32 = 1;
    const READY: u32 = 2;
    const START: u32 = 3;
    const ENDED: u32 = 4;
    const FIRST: u32 = 10;
    const QUEUES: u32 = 100;
    let processes = (2 * GROUPS * FDS) as usize;
    let about = |ns: u64| System(Within(ns * 9 / 10, ns * 11 / 10));
    let begin = [Wait(MADE), about(birth), Compute(Fixed(US)), Post(READY), Wait(START)];
    let end = [about(death), Post(ENDED)];
    let copy =
        |pipe: u32| [Compute(Fixed(15)), System(Fixed(15)), KernelMutex(pipe), Hold(Fixed(80)), KernelRelease(pipe)];
    for group in 0..GROUPS {
        let pipes = FIRST + group * FDS..FIRST + (group + 1) * FDS;
        let queue = |pipe: u32| QUEUES + pipe;
        let sent: Vec<Step> = pipes
            .clone()
            .flat_map(|pipe| {
                copy(pipe).into_iter().chain([LockQueue(pipe, queue(pipe)), PostSync(pipe), UnlockQueue(queue(pipe))])
            })
            .collect();
        for pipe in pipes {
            let wait = [Wait(pipe), LockQueue(pipe, queue(pipe)), UnlockQueue(queue(pipe))];
            let taken: Vec<Step> = wait.into_iter().chain(copy(pipe)).collect();
            let take = [&begin[..], &taken.repeat(LOOPS * FDS as usize), &end].concat();
            tasks(world, m, "receiver", 1, &take);
        }
        let send = [&begin[..], &sent.repeat(LOOPS), &end].concat();
        tasks(world, m, "sender", FDS, &send);
    }
    let made = [about(fork), Post(MADE), Compute(Fixed(US))].repeat(processes);
    let ready = [Wait(READY)].repeat(processes);
    // One write to the pipe that all of them poll: they are woken under the lock of its queue.
    let started = [&[Lock(0)][..], &[PostNewest(START)].repeat(processes), &[Unlock(0)]].concat();
    let ended = [Wait(ENDED)].repeat(processes);
    let round = [&[about(500 * US)], &made[..], &ready, &[Begin], &started, &ended, &[Done]].concat();
    vec![tasks(world, m, "messages", 1, &round)]
}

/// Each CPU that runs the process has to answer an interrupt: membarrier(2). Where no other CPU runs it, one is 98 ns in the
/// lab: two guests of one vCPU do 5.1 million a second, in a quarter of the CPU time each.
fn broadcasts(world: &mut World, m: MachineId, threads: u32) -> Vec<Measured> {
    one_process(world, m, "reader", threads - 1, &[Compute(Fixed(MS))]);
    vec![one_process(world, m, "broadcast", 1, &[Compute(Fixed(15)), System(Fixed(80)), Membarrier, Done])]
}

/// How long messages and requests take is worked out from what one vCPU of stock Linux did in the lab, alone on its host
/// (`entrain-load wake --threads 4 --work 0`, 10, 20, 40; N = 16, 2026-11-27): 1,280 ns a request without work, and 78 for
/// each 1,000 steps, of which `overcommit` has ten.
///
/// Workers post themselves and sleep; a message thread wakes each, as schbench's. Two kinds of locks of user mode: of
/// the list of those who have posted, and of the CPU where a worker does its work.
fn wake(world: &mut World, m: MachineId, threads: u32) -> Vec<Measured> {
    wakes(world, m, threads, Within(700, 860))
}

/// The same where a request is 10 µs of work, as on a server's CPU. Of exactly as much each, two workers fall into step
/// in one of two ways, whoever schedules: 111 or 132 k requests/s with the kernel's own scheduler, and which of them it is
/// turns on 10 ns more or less for a wake-up.
fn wake_long(world: &mut World, m: MachineId, threads: u32) -> Vec<Measured> {
    wakes(world, m, threads, Within(8 * US, 12 * US))
}

fn wakes(world: &mut World, m: MachineId, threads: u32, work: Time) -> Vec<Measured> {
    const DESK: u32 = 0;
    const CPUS: u32 = 8;
    let look = [Mutex(DESK), Hold(Fixed(50)), Release];
    let messages = [&[Wait(1)], &look[..], &[Compute(Fixed(50)), Serve(DESK)]].concat();
    let post = [Mutex(DESK), Enlist(DESK), Hold(Fixed(50)), Release, Post(1), Served];
    let request = [CpuMutex(CPUS), Hold(work), Release, Done];
    let worker = [&post[..], &request].concat();
    one_process(world, m, "messages", 1, &messages);
    vec![one_process(world, m, "worker", threads, &worker)]
}

/// Arithmetic.
fn spin(world: &mut World, m: MachineId, threads: u32) -> Vec<Measured> {
    vec![one_process(world, m, "spin", threads, &[Compute(Fixed(100 * US)), Done])]
}

fn clocks(world: &mut World, m: MachineId, threads: u32) -> Measured {
    let online = world.machines[m.0 as usize].kernel.topo.cpus();
    let clock = |world: &mut World, cpu: u32| {
        world.add_task(
            m,
            TaskSpec { tgid: PROCESS, ..World::spec(Kernel::ROOT, 100, Some(&[cpu % online])) },
            &[Until(2 * MS), Compute(Fixed(5 * US)), Done],
            0,
        )
    };
    let tasks = (0..threads).map(|cpu| clock(world, cpu)).collect();
    Measured { name: "clock".to_owned(), machine: m, tasks }
}

fn tick(world: &mut World, m: MachineId, threads: u32) -> Vec<Measured> {
    vec![clocks(world, m, threads)]
}

fn tick_beside(world: &mut World, m: MachineId, threads: u32) -> Vec<Measured> {
    one_process(world, m, "lock", threads, LOCKER);
    vec![clocks(world, m, threads)]
}

/// A clock in the first guest, and the lock in the others.
fn clock_beside(world: &mut World, m: MachineId, threads: u32) -> Vec<Measured> {
    if m.0 == HOST.0 + 1 {
        return vec![clocks(world, m, threads)];
    }
    one_process(world, m, "lock", threads, LOCKER);
    Vec::new()
}

/// What the lab's host machine does whoever schedules it, the lab's own agent above all: under arms in which vCPUs do not
/// take turns, `tour` counts 430 to 810 switches a second whatever the load is, and a trace the threads that wake up.
pub(super) fn housekeeping(world: &mut World) {
    tasks(world, HOST, "housekeeping", 2, &[Sleep(Mean(6 * MS)), Compute(Fixed(20 * US))]);
}

/// Entrain's daemon, whose threads wake up some 100 times a second.
pub(super) fn daemon(world: &mut World) {
    tasks(world, HOST, "daemon", 1, &[Sleep(Mean(10 * MS)), Compute(Fixed(20 * US))]);
}

/// A thread of the host that computes without end, on each CPU for 50 ms in turn.
pub(super) fn wandering_noise(world: &mut World, pcpus: u32) {
    let hog = tasks(world, HOST, "noise", 1, &[Compute(Fixed(10 * MS))]).tasks[0];
    for turn in 0..LENGTH / (50 * MS) {
        let cpu = turn as u32 % pcpus;
        world.act(turn * 50 * MS + 1, Act::Allow(HOST, hog, std::iter::once(cpu).collect()));
    }
}
