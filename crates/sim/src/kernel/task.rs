//! Tasks: what the kernel keeps of each.

use std::ffi::c_void;

use super::Kernel;
use super::fair::FairTask;
use super::group::GroupId;
use super::mask::CpuMask;
use super::scx::ScxTask;
use crate::native::{TaskArgs, TaskFields};

/// Number of a task; never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(pub u32);

/// Where a task stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It waits for something.
    Sleeping,
    /// It was woken, and is on its way to a run queue.
    Waking,
    /// Runnable: it runs or waits for a CPU.
    Runnable,
    /// It has ended.
    Dead,
}

/// What a new task is like.
pub struct TaskSpec {
    /// Its process, 0: a process of its own.
    pub tgid: i32,
    /// As `cpu.weight`, 1..10000; nice 0 is 100.
    pub weight: u32,
    /// Its cgroup.
    pub group: GroupId,
    /// The CPUs that it may run on; `None`: all.
    pub allowed: Option<CpuMask>,
    /// Of the real-time class: it may run on one CPU, the first of `allowed`, and there before all others.
    pub realtime: bool,
    /// KVM's structure, where it is a vCPU's thread.
    pub(crate) kvm_vcpu: *mut c_void,
}

impl Default for TaskSpec {
    fn default() -> Self {
        Self { tgid: 0, weight: 100, group: GroupId(0), allowed: None, realtime: false, kvm_vcpu: std::ptr::null_mut() }
    }
}

/// One task.
pub struct Task {
    /// Its number.
    pub id: TaskId,
    /// Its thread number, as user space sees it; unique.
    pub pid: i32,
    /// Its process.
    pub tgid: i32,
    /// It has never been woken: its first wake-up is `wake_up_new_task()`.
    pub(super) new: bool,
    /// Where it stands.
    pub state: State,
    /// The CPU that it runs on, or whose run queue it is counted on, or was last.
    pub cpu: u32,
    /// The CPUs that it may run on. Boxed: the scheduler keeps its address.
    pub allowed: Box<CpuMask>,
    /// `p->nr_cpus_allowed`.
    pub nr_allowed: u32,
    /// As `cpu.weight`.
    pub weight: u32,
    /// Its cgroup.
    pub group: GroupId,
    /// CPU time had, ns.
    pub sum_exec: u64,
    /// When it was charged last, by `rq_clock_task()`.
    pub(super) exec_start: u64,
    /// Runnable without a CPU since; `None`: it runs or sleeps.
    pub waits_since: Option<u64>,
    /// Time waited for a CPU, ns.
    pub sum_wait: u64,
    /// The longest single wait, ns.
    pub max_wait: u64,
    /// When that ended, ns.
    pub max_wait_end: u64,
    /// Times that it was put on a CPU.
    pub switches: u64,
    /// Times that it began to run at another last-level cache than it ran at last.
    pub llc_moves: u64,
    pub(super) last_llc: Option<u32>,
    pub(super) realtime: bool,
    /// Its class changed between the halves of its wake-up.
    pub(super) changed: bool,
    pub(super) scx: ScxTask,
    pub(super) fair: FairTask,
    pub(crate) fields: TaskFields,
}

/// The first task's thread number; the others follow it.
const FIRST_PID: i32 = 100;

impl Kernel {
    /// The thread with a number.
    pub(crate) fn task_by_pid(&self, pid: i32) -> Option<TaskId> {
        let at = usize::try_from(pid.checked_sub(FIRST_PID)?).ok()?;
        self.tasks.get(at).map(|task| task.id)
    }

    /// `copy_process()` as far as scheduling goes: a new task that sleeps, on CPU 0 or its first.
    pub fn spawn(&mut self, spec: TaskSpec) -> TaskId {
        let id = TaskId(self.tasks.len() as u32);
        let pid = FIRST_PID + id.0 as i32;
        let mut allowed = Box::new(spec.allowed.unwrap_or_else(|| self.topo.all.clone()));
        if spec.realtime {
            *allowed = allowed.iter().take(1).collect();
        }
        let cpu = allowed.iter().next().expect("a task may run somewhere");
        let nr_allowed = allowed.count() as u32;
        let args = TaskArgs {
            id: id.0.into(),
            pid,
            tgid: if spec.tgid == 0 { pid } else { spec.tgid },
            prio: if spec.realtime { 50 } else { 120 },
            nr_cpus_allowed: nr_allowed as i32,
            flags: 0,
            pad: 0,
            allowed: &raw const *allowed,
            kvm_vcpu: spec.kvm_vcpu,
        };
        let fields = self.scx_task_new(&args);
        self.tasks.push(Task {
            id,
            pid,
            tgid: args.tgid,
            new: true,
            state: State::Sleeping,
            cpu,
            allowed,
            nr_allowed,
            weight: spec.weight,
            group: spec.group,
            sum_exec: 0,
            exec_start: 0,
            waits_since: None,
            sum_wait: 0,
            max_wait: 0,
            max_wait_end: 0,
            switches: 0,
            llc_moves: 0,
            last_llc: None,
            realtime: spec.realtime,
            changed: false,
            scx: ScxTask::default(),
            fair: FairTask::default(),
            fields,
        });
        self.scx_enable_task(id);
        id
    }

    /// The task begins to wait for a CPU, or ends to (`None`).
    pub(super) fn account_wait(&mut self, id: TaskId, waits: bool) {
        let now = self.now;
        let task = &mut self.tasks[id.0 as usize];
        if waits {
            if task.waits_since.is_none() {
                task.waits_since = Some(now);
                self.waiting.begin(now, id);
            }
        } else if let Some(since) = task.waits_since.take() {
            task.sum_wait += now - since;
            if now - since > task.max_wait {
                (task.max_wait, task.max_wait_end) = (now - since, now);
            }
        }
    }
}
