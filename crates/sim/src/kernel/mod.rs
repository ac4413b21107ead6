//! One simulated kernel: tasks, CPUs, cgroups, and the scheduling class that orders them.
//!
//! A kernel knows nothing of how time passes. Whoever drives it (`crate::machine`) sets `now` and `this_cpu`, calls in,
//! and takes what is to happen later or elsewhere from `out`. Operations are atomic, as under the run-queue lock; where
//! the real kernel drops that lock between two steps, the steps are two calls here.

mod change;
mod check;
mod clock;
pub mod counts;
mod fair;
pub mod group;
mod hotplug;
pub mod looks;
pub mod mask;
mod race;
mod rt;
mod run;
mod scx;
mod task;
pub mod topology;
mod waiting;

use crate::native::TaskPtr;
pub use clock::Clock;
use group::{Group, GroupId};
pub(crate) use race::{Pause, Racing};
use scx::Scx;
pub use task::{State, Task, TaskId, TaskSpec};
use topology::Topology;

pub use scx::Planted;
pub use scx::watchdog::Stall;

/// What a kernel asks its driver for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// `resched_curr()`: the CPU is to call the scheduler, by an interrupt if it is another than `this_cpu`.
    Resched {
        /// That CPU.
        cpu: u32,
    },
    /// `bpf_timer_start()`: a BPF timer is due at a time, ns, on a CPU.
    BpfTimer {
        /// The object's number of the timer.
        timer: u32,
        /// Time, ns.
        at: u64,
        /// Where it was started.
        cpu: u32,
    },
    /// EEVDF: the timer of a group's limit is due at a time, ns.
    FairBandwidth {
        /// That group.
        group: GroupId,
        /// Time, ns.
        at: u64,
    },
}

/// One CPU's run queue.
#[derive(Default)]
pub struct Cpu {
    /// The task that runs; `None`: the idle task.
    pub curr: Option<TaskId>,
    /// The current task is about to sleep: the next call of the scheduler takes it off the queue.
    pub sleeps: bool,
    /// `TIF_NEED_RESCHED` of what runs.
    pub need_resched: bool,
    /// `TIF_NEED_RESCHED_LAZY`.
    resched_lazy: bool,
    /// `rq->ttwu_pending`: tasks that were woken for it are on their way (`World::activate`).
    pub ttwu_pending: bool,
    /// What `scx_bpf_now()` says on this CPU, where its run queue's clock has been left valid: another CPU that takes a
    /// task from here updates it, and drops the lock without `rq_unpin_lock()`, which would invalidate it. Until somebody
    /// locks this run queue as usual.
    pub frozen: Option<u64>,
    /// The next task is chosen and not switched to yet: the run-queue lock is held.
    pub locked: bool,
    /// Runnable tasks, the current one included: `rq->nr_running`.
    pub nr_running: u32,
    /// Time that the hypervisor has withheld, ns.
    pub steal: u64,
    /// When the CPU went idle; meaningless while it is not.
    pub idle_since: u64,
    /// Runnable real-time tasks, the one that runs included.
    rt_queue: std::collections::VecDeque<TaskId>,
    /// The one that runs may not stay here: the stopper takes it off.
    evicts: bool,
    /// ext: `SCX_RQ_IN_DISPATCH`.
    in_dispatch: bool,
    /// ext: `rq->next_class` is the idle class.
    next_idle: bool,
    /// ext: a dispatch has given up the run queue's lock for that of another.
    pub(crate) crosses: bool,
    /// ext: `SCX_RQ_ROOT_IDLE_RENOTIFY`.
    renotify: bool,
    /// The class of its tasks has changed between its choice and the switch.
    chooses_anew: bool,
    /// ext: where `cpumask_any_and_distribute()` went on last.
    distribute: u32,
    /// ext: kicks that wait for the run-queue lock.
    kicks: Vec<(u32, u64)>,
    /// ext: its local queue is to be looked through when the run-queue lock is free.
    reenq_local: bool,
}

/// One machine's kernel.
pub struct Kernel {
    /// Clock, ns.
    pub now: u64,
    /// The CPU on which kernel code runs.
    pub this_cpu: u32,
    /// Whether that code serves an interrupt.
    pub in_irq: bool,
    /// CPUs and their neighbours.
    pub topo: Topology,
    /// The CPUs that are there now.
    pub online: mask::CpuMask,
    /// The CPUs on which nothing runs.
    pub vacant: mask::CpuMask,
    /// The run queues.
    pub cpus: Vec<Cpu>,
    /// All tasks ever made, by number.
    pub tasks: Vec<Task>,
    /// All cgroups, by number; 0 is the root.
    pub groups: Vec<Group>,
    /// What is to happen later or elsewhere.
    pub out: Vec<Effect>,
    /// Time that kernel code took since the driver looked last, ns.
    pub spent: u64,
    /// BPF code has asked for something that is done as soon as interrupts are on: the CPU interrupts itself for it.
    deferred: bool,
    /// What BPF code costs.
    pub(crate) costs: crate::costs::Costs,
    /// Iterators over queues that the scheduler has begun: each step of one takes the queue's lock.
    pub iterations: u64,
    /// Why the scheduler was left, once it was.
    pub failed: Option<String>,
    /// The scheduler has no word about CPUs that come and go: it is to be loaded anew (`SCX_ECODE_RSN_HOTPLUG`).
    pub reloads: bool,
    /// What the scheduler's code has done.
    pub counts: counts::Counts,
    waiting: waiting::Waiting,
    /// What it races by; null: operations are atomic.
    racing: *mut Racing,
    /// Whose operations hold the run-queue locks, while it races; 0: nobody's.
    holders: Vec<u32>,
    /// Events on other stacks may be amid a borrow of this one: no borrow is the only one (`race`).
    _pinned: std::marker::PhantomPinned,
    scx: Scx,
    /// EEVDF, where that is the machine's scheduler.
    fair: Option<fair::Fair>,
}

impl Kernel {
    /// A task.
    #[inline]
    pub fn task(&self, id: TaskId) -> &Task {
        &self.tasks[id.0 as usize]
    }

    /// How often CPUs have begun to run a task, of all tasks.
    pub fn switches(&self) -> u64 {
        self.tasks.iter().map(|task| task.switches).sum()
    }

    #[inline]
    fn task_mut(&mut self, id: TaskId) -> &mut Task {
        &mut self.tasks[id.0 as usize]
    }

    /// A CPU.
    #[inline]
    pub fn cpu(&self, cpu: u32) -> &Cpu {
        &self.cpus[cpu as usize]
    }

    #[inline]
    fn cpu_mut(&mut self, cpu: u32) -> &mut Cpu {
        &mut self.cpus[cpu as usize]
    }

    /// The scheduler's `struct task_struct` of a task.
    #[inline]
    pub(crate) fn pointer(&self, id: TaskId) -> TaskPtr {
        self.task(id).fields.task
    }

    /// Whether the task runs now.
    pub fn runs(&self, id: TaskId) -> bool {
        self.cpu(self.task(id).cpu).curr == Some(id)
    }

    /// `resched_curr()`.
    fn resched(&mut self, cpu: u32) {
        if !self.cpu(cpu).need_resched {
            self.cpu_mut(cpu).need_resched = true;
            self.out.push(Effect::Resched { cpu });
        }
    }

    /// `resched_curr_lazy()`, as PREEMPT_LAZY has it, which Debian's kernels are built with: nobody is interrupted, what runs
    /// goes on until it leaves the kernel for user mode or for a guest, or until the tick.
    fn resched_lazy(&mut self, cpu: u32) {
        match self.cpu(cpu).curr {
            None => self.resched(cpu),
            Some(_) => self.cpu_mut(cpu).resched_lazy = true,
        }
    }

    /// `exit_to_user_mode_loop()` or `xfer_to_guest_mode_handle_work()`, or the tick: whether the scheduler is to be called now.
    pub fn minds_lazy(&mut self, cpu: u32) -> bool {
        let cpu = self.cpu_mut(cpu);
        cpu.need_resched |= std::mem::take(&mut cpu.resched_lazy);
        cpu.need_resched
    }

    /// The scheduler is called.
    fn clear_resched(&mut self, cpu: u32) {
        let cpu = self.cpu_mut(cpu);
        (cpu.need_resched, cpu.resched_lazy) = (false, false);
    }

    /// The clock that tasks are charged by, without what the hypervisor withheld: `rq_clock_task()`.
    fn clock_task(&self, cpu: u32) -> u64 {
        self.now - self.cpu(cpu).steal
    }
}
