//! A machine of the world: a kernel, the lanes of its CPUs, and what its tasks do.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::rc::Rc;

use super::kernel_mutex::{KernelMutex, KernelTries};
use super::lane::{ENDLESS, Lane};
use super::mutex::{Mutex, Tries};
use super::rcu::Rcu;
use super::{Event, HOST, MachineId, World};
use crate::kernel::group::{GroupId, Max};
use crate::kernel::mask::{CpuMask, MAX_CPUS};
use crate::kernel::topology::{Shape, Topology};
use crate::kernel::{Kernel, State, TaskId, TaskSpec};
use crate::native::{Object, Side};
use crate::program::Step;
use crate::rng::Rng;

/// `ENTRAIN_F_HOST_SCHED` of entrain.h.
pub(super) const HOST_SCHED: u64 = 1 << 7;

/// Which scheduler a machine runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// Entrain's, of the machine's side.
    Entrain,
    /// A model of the kernel's own.
    Eevdf,
    /// scx_simple of the kernel's tools, a check of the simulated kernel.
    Simple,
    /// scx_bpfland of scx, another one; on the host alone.
    Bpfland,
}

impl Policy {
    /// Which of the schedulers that an object holds.
    fn scheduler(self) -> u32 {
        match self {
            Self::Entrain | Self::Eevdf => 0,
            Self::Simple => 1,
            Self::Bpfland => 2,
        }
    }
}

/// What a new machine is like.
#[derive(Clone, Debug)]
pub struct MachineSpec {
    /// Its CPUs.
    pub shape: Shape,
    /// Its scheduler.
    pub policy: Policy,
    /// Tunables of the scheduler, by the names that they have in its source.
    pub tunables: Vec<(&'static str, Tunable)>,
}

/// The value of a tunable: of the type that it has in the source, or what lies behind it is overwritten.
#[derive(Clone, Copy, Debug)]
pub enum Tunable {
    /// A `bool`.
    Switch(bool),
    /// A `__u64`.
    Number(u64),
}

/// What a task is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Its step takes the time that is left of it.
    Works,
    /// Between two steps, or asleep.
    Between,
    /// Spins for a lock.
    SpinsForLock(u32),
    /// Spins until its broadcast is answered by so many more.
    SpinsForAnswers(u32),
    /// Spins at a barrier.
    SpinsAtBarrier(u32),
    /// Spins for a lock of user mode.
    SpinsForMutex(u32),
    /// Spins for a mutex of the kernel, whose owner seems to run.
    SpinsForOwner(u32),
    /// A vCPU: on its way into the guest.
    Enters,
    /// A vCPU: in the guest.
    InGuest,
    /// A vCPU: halted, and polls before it sleeps.
    Polls,
    /// A vCPU: halted and asleep.
    Halted,
}

/// What the world keeps of a task.
pub struct TaskState {
    pub(super) steps: Rc<[Step]>,
    pub(super) at: usize,
    /// Of its step, ns, while it does not run.
    pub(super) left: u64,
    pub(super) mode: Mode,
    pub(super) timer_turn: u32,
    /// When its timer is due, ns.
    pub(super) timer_at: Option<u64>,
    /// It ends when it leaves its CPU.
    pub(super) exits: bool,
    /// It has slept for the semaphore that it took last.
    pub(super) slept: bool,
    /// `preempt_count()`: not preemptible while above 0.
    pub(super) preempt: u32,
    /// The locks of user mode that it holds, and what it has done to take another.
    pub(super) mutexes: Vec<u32>,
    pub(super) tries: Tries,
    pub(super) kernel_tries: KernelTries,
    rng: Rng,
    /// When it was woken, or its timer was due; `None`: it has run since.
    pub(super) woken_at: Option<u64>,
    /// Whether an interrupt has woken it last: both halves of a wake-up run in its context.
    pub(super) woken_in_irq: bool,
    /// Operations done.
    pub ops: u64,
    /// When the one under way began, if it told (`Step::Begin`).
    pub(super) began: Option<u64>,
    /// What those that told took, ns.
    pub timed: u64,
    /// From wake-up to running, ns, one for each wake-up.
    pub latencies: Vec<u32>,
    /// The longest of these, from when until when, ns.
    pub(super) latest: Option<(u64, u64)>,
    pub(super) name: Option<Rc<str>>,
    /// A vCPU's guest and number.
    pub(super) vcpu: Option<(u16, u32)>,
}

impl TaskState {
    /// The step that it is at.
    pub(super) fn step(&self) -> Step {
        self.steps[self.at % self.steps.len()]
    }

    /// Whether it is in user mode when it runs, or returns to it; a vCPU's thread is not.
    pub(super) fn in_user(&self) -> bool {
        let kernel = self.preempt > 0 || self.kernel_tries.is_busy();
        !kernel
            && matches!(
                self.step(),
                Step::Compute(_) | Step::Hold(_) | Step::Mutex(_) | Step::CpuMutex(_) | Step::Barrier(..)
            )
    }
}

/// A spinning lock, first come, first served.
#[derive(Default)]
pub(super) struct Lock {
    pub owner: Option<TaskId>,
    pub waiters: VecDeque<TaskId>,
}

/// A semaphore.
#[derive(Default)]
pub(super) struct Semaphore {
    pub count: u64,
    pub waiters: VecDeque<TaskId>,
}

/// A machine.
pub struct Machine {
    /// Its kernel.
    pub kernel: Kernel,
    pub(super) lanes: Vec<Lane>,
    /// By number.
    pub tasks: Vec<TaskState>,
    pub(super) locks: BTreeMap<u32, Lock>,
    pub(super) mutexes: BTreeMap<u32, Mutex>,
    pub(super) kernel_mutexes: BTreeMap<u32, KernelMutex>,
    pub(super) semaphores: BTreeMap<u32, Semaphore>,
    /// Who stands on the list of each desk.
    pub(super) desks: BTreeMap<u32, VecDeque<TaskId>>,
    pub(super) rcu: Rcu,
    /// Who waits at each barrier.
    pub(super) barriers: BTreeMap<u32, Vec<TaskId>>,
    pub(super) bpf_timers: HashMap<u32, u32>,
    /// Wake-ups that wait for a run-queue lock, by CPU: task, whether the class chose the CPU, the waker's CPU.
    pub(super) locked_out: Vec<Vec<(TaskId, bool, u32)>>,
    /// `rq->wake_list` of each CPU: task, whether the class chose the CPU, and who woke it.
    pub(super) wake_lists: Vec<Vec<(TaskId, bool, Option<TaskId>)>>,
    /// Wake-ups of tasks that are about to leave their CPU, by CPU: task, the waker's CPU, whether it is to sleep.
    pub(super) on_cpu: Vec<Vec<(TaskId, u32, bool)>>,
    /// The guest kernel's preempt count of each CPU, which the host reads in place.
    pub(super) preempt_words: Box<[u64]>,
}

impl Machine {
    pub(super) fn is_runnable(&self, task: TaskId) -> bool {
        self.kernel.task(task).state == State::Runnable
    }
}

impl World {
    /// Adds a machine: first the host, then guests (`add_vm`).
    pub(super) fn add_machine(&mut self, spec: &MachineSpec) -> MachineId {
        let id = MachineId(self.machines.len() as u16);
        let topo = Topology::new(spec.shape);
        let cpus = topo.cpus();
        assert!(cpus as usize <= MAX_CPUS, "a simulated machine has at most {MAX_CPUS} CPUs");
        let side = if id == HOST { Side::Host } else { Side::Guest };
        assert!(side == Side::Host || spec.policy != Policy::Bpfland, "the guests' object has no scx_bpfland");
        let object = Object::load(side, spec.policy.scheduler(), spec.shape).expect("memory for a scheduler");
        let policy = self.policy_for(id, spec.policy, &object, cpus);
        match side {
            Side::Host => {
                object.set("nr_cpus", cpus);
                // SAFETY: the function has this type in native/host.c.
                let place: unsafe extern "C" fn(u32, u32) = unsafe { object.function("sim_topology") };
                // Caches beyond the table's end share its last place, as the daemon has them do.
                let last: u32 = object.get::<u32>("sim_max_llcs") - 1;
                // SAFETY: CPUs are named in order, as it expects.
                (0..cpus).for_each(|cpu| unsafe { place(cpu, topo.llc_of(cpu).min(last)) });
                // SAFETY: the function has this type in native/host.c.
                let arrange: unsafe extern "C" fn(u32) = unsafe { object.function("sim_arrange") };
                // SAFETY: all CPUs have their places.
                unsafe { arrange(0) };
            }
            Side::Guest => {
                object.set("nr_vcpus", cpus);
                object.set("nr_words", cpus.div_ceil(64));
                object.set("nr_llcs", topo.nr_llcs());
                // SAFETY: the function has this type in native/guest.c.
                let place: unsafe extern "C" fn(u32, u32) = unsafe { object.function("sim_topology") };
                // SAFETY: the numbers are those of possible CPUs, as far as the table goes.
                (0..cpus.min(object.get("sim_max_cpus"))).for_each(|cpu| unsafe { place(cpu, topo.llc_of(cpu)) });
                object.set("nr_online", cpus);
            }
        }
        for (name, value) in &spec.tunables {
            match *value {
                Tunable::Switch(on) => object.set(name, on),
                Tunable::Number(number) => object.set(name, number),
            }
        }
        if side == Side::Host && policy == Policy::Entrain {
            object.set("extra_features", HOST_SCHED);
        }
        let mut kernel = Kernel::new(topo, object, policy == Policy::Eevdf);
        kernel.costs = self.costs;
        self.machines.push(Machine {
            kernel,
            lanes: (0..cpus).map(|_| Lane::new(id == HOST)).collect(),
            tasks: Vec::new(),
            locks: BTreeMap::new(),
            mutexes: BTreeMap::new(),
            kernel_mutexes: BTreeMap::new(),
            semaphores: BTreeMap::new(),
            desks: BTreeMap::new(),
            rcu: Rcu::default(),
            barriers: BTreeMap::new(),
            bpf_timers: HashMap::new(),
            locked_out: vec![Vec::new(); cpus as usize],
            wake_lists: vec![Vec::new(); cpus as usize],
            on_cpu: vec![Vec::new(); cpus as usize],
            preempt_words: vec![0; cpus as usize].into_boxed_slice(),
        });
        id
    }

    /// Who schedules a machine: Entrain's schedulers have tables of so many CPUs, and no place for more.
    fn policy_for(&mut self, id: MachineId, wanted: Policy, object: &Object, cpus: u32) -> Policy {
        let most: u32 = object.get("sim_max_cpus");
        if wanted == Policy::Eevdf || cpus <= most {
            return wanted;
        }
        let whose = if id == HOST { "the host".to_owned() } else { format!("guest {}", id.0 - 1) };
        self.notes.push(format!("{whose} has {cpus} CPUs, Entrain's scheduler takes {most}: EEVDF schedules it"));
        Policy::Eevdf
    }

    /// Adds the host.
    ///
    /// # Panics
    /// When there is one already, or when it has more than [`crate::kernel::mask::MAX_CPUS`] CPUs.
    pub fn add_host(&mut self, spec: &MachineSpec) {
        assert!(self.machines.is_empty(), "a world has one host");
        self.add_machine(spec);
    }

    /// Adds a task that repeats `steps` from `start` on, ns.
    pub fn add_task(&mut self, m: MachineId, spec: TaskSpec, steps: &[Step], start: u64) -> TaskId {
        let seed = self.rng.next();
        let machine = &mut self.machines[m.0 as usize];
        machine.kernel.now = self.now;
        let task = machine.kernel.spawn(spec);
        machine.tasks.push(TaskState {
            steps: steps.into(),
            at: 0,
            left: 0,
            mode: Mode::Between,
            timer_turn: 0,
            timer_at: None,
            exits: false,
            slept: false,
            preempt: 0,
            mutexes: Vec::new(),
            tries: Tries::default(),
            kernel_tries: KernelTries::default(),
            rng: Rng::new(seed),
            woken_at: None,
            woken_in_irq: false,
            ops: 0,
            began: None,
            timed: 0,
            latencies: Vec::new(),
            latest: None,
            name: None,
            vcpu: None,
        });
        // One after the other, as their parent makes them.
        self.plan(self.now.max(start) + u64::from(task.0) * 5_000, Event::Start { m, task });
        task
    }

    /// Adds a cgroup to a machine.
    pub fn add_group(&mut self, m: MachineId, parent: GroupId, weight: u32) -> GroupId {
        self.machines[m.0 as usize].kernel.add_group(parent, weight)
    }

    /// Somebody from outside asks a machine's kernel for something, at no cost for its CPUs.
    fn ask(&mut self, m: MachineId, what: impl FnOnce(&mut Kernel)) {
        self.enter(m, 0);
        let kernel = &mut self.machines[m.0 as usize].kernel;
        let spent = kernel.spent;
        what(kernel);
        kernel.spent = spent;
        self.leave(m, 0);
    }

    /// Writes a cgroup's `cpu.max` and `cpu.max.burst`.
    pub fn set_group_max(&mut self, m: MachineId, group: GroupId, max: Option<Max>) {
        self.ask(m, |kernel| kernel.set_group_max(group, max));
    }

    /// Removes a cgroup in which nobody is any more.
    pub fn remove_group(&mut self, m: MachineId, group: GroupId) {
        self.ask(m, |kernel| kernel.remove_group(group));
    }

    /// Moves a task to another cgroup.
    pub fn move_task(&mut self, m: MachineId, task: TaskId, to: GroupId) {
        self.ask(m, |kernel| kernel.set_group(task, to));
    }

    /// A plain task's description.
    pub fn spec(group: GroupId, weight: u32, cpus: Option<&[u32]>) -> TaskSpec {
        let allowed = cpus.map(|cpus| cpus.iter().copied().collect::<CpuMask>());
        TaskSpec { group, weight, allowed, ..TaskSpec::default() }
    }

    pub(super) fn state(&self, m: MachineId, task: TaskId) -> &TaskState {
        &self.machines[m.0 as usize].tasks[task.0 as usize]
    }

    pub(super) fn state_mut(&mut self, m: MachineId, task: TaskId) -> &mut TaskState {
        &mut self.machines[m.0 as usize].tasks[task.0 as usize]
    }

    pub(super) fn curr(&self, m: MachineId, cpu: u32) -> Option<TaskId> {
        self.machines[m.0 as usize].kernel.cpu(cpu).curr
    }

    /// Whether what runs on the CPU may be taken off.
    pub(super) fn preemptible(&self, m: MachineId, cpu: u32) -> bool {
        self.curr(m, cpu).is_none_or(|task| self.state(m, task).preempt == 0)
    }

    /// `preempt_disable()`, `preempt_enable()` of what runs on the CPU, without the call of the scheduler.
    pub(super) fn preempt_add(&mut self, m: MachineId, cpu: u32, task: TaskId, on: bool) {
        let state = self.state_mut(m, task);
        state.preempt = if on { state.preempt + 1 } else { state.preempt - 1 };
        let count = state.preempt.into();
        self.machines[m.0 as usize].preempt_words[cpu as usize] = count;
    }

    /// Draws how long a step takes.
    pub(super) fn draw(&mut self, m: MachineId, task: TaskId, time: crate::program::Time) -> u64 {
        time.draw(&mut self.state_mut(m, task).rng)
    }

    /// What is left of the current step: endless while it spins or is in the guest.
    pub(super) fn set_left(&mut self, m: MachineId, cpu: u32, left: u64) {
        debug_assert!(left == ENDLESS || left < 1 << 60);
        self.lane_mut(m, cpu).left = left;
    }
}
