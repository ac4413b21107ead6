//! The class of BPF schedulers, after kernel/sched/ext/ of Linux 7.3. Functions have the names that they have there.
//!
//! Not modelled: the way out of a scheduler that has failed (its machine stops and says why), sub-schedulers, rescue, core
//! scheduling.

mod call;
mod dispatch;
mod dsq;
mod enable;
mod enqueue;
mod idle;
mod immed;
mod kfuncs;
mod planted;
pub(super) mod watchdog;

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::mask::CpuMask;
use super::{Kernel, TaskId};
use crate::native::{CgroupPtr, Context, Object, Ops, TaskArgs, TaskFields, TaskPtr};
use dsq::{Dsq, DsqIndex};
use enqueue::{Direct, OpsState};
pub use planted::Planted;

/// `SCX_SLICE_DFL`: what a task gets that the scheduler gave nothing, ns.
const SLICE_DFL: u64 = 20_000_000;
/// `SCX_SLICE_INF`.
const SLICE_INF: u64 = u64::MAX;
/// `SCX_DSP_DFL_MAX_BATCH`.
const DISPATCH_BATCH: usize = 32;
/// `SCX_DSP_MAX_LOOPS`.
const DISPATCH_LOOPS: u32 = 32;

/// Flags of enum scx_enq_flags that the kernel acts on.
pub(super) mod enq {
    pub(crate) const WAKEUP: u64 = 1;
    pub(crate) const RESTORE: u64 = 2;
    pub(crate) const HEAD: u64 = 0x10000;
    pub(crate) const CPU_SELECTED: u64 = 0x20000;
    pub(crate) const PREEMPT: u64 = 1 << 32;
    pub(crate) const IMMED: u64 = 1 << 33;
    pub(crate) const REENQ: u64 = 1 << 40;
    pub(crate) const LAST: u64 = 1 << 41;
}

/// `SCX_TASK_QUEUED` of p->scx.flags.
const TASK_QUEUED: u32 = 1;
/// `SCX_OPS_ENQ_LAST`.
const OPS_ENQ_LAST: u64 = 1 << 1;
/// `SCX_OPS_KEEP_BUILTIN_IDLE`.
const OPS_KEEP_BUILTIN_IDLE: u64 = 1;
/// `SCX_OPS_ALLOW_QUEUED_WAKEUP`.
const OPS_ALLOW_QUEUED_WAKEUP: u64 = 1 << 5;
/// `SCX_OPS_BUILTIN_IDLE_PER_NODE`.
const OPS_BUILTIN_IDLE_PER_NODE: u64 = 1 << 6;
/// `SCX_OPS_TID_TO_TASK`.
const OPS_TID_TO_TASK: u64 = 1 << 8;

/// What `struct sched_ext_entity` keeps beside what the scheduler sees.
#[derive(Default)]
pub(super) struct ScxTask {
    dsq: Option<DsqIndex>,
    dsq_seq: u32,
    state: OpsState,
    direct: Option<Direct>,
    in_custody: bool,
    /// When it came to a CPU's local queue, where nobody else can take it.
    local_at: Option<u64>,
    /// `SCX_TASK_IMMED`: where it cannot run at once it is handed to the scheduler again.
    immed: bool,
    /// How often it was since it ran last.
    reenq_cnt: u32,
    /// A slice that was set by somebody who did not hold the run-queue lock.
    slice_oob: Option<u64>,
    /// `p->scx.runnable_at`; `None`: it is not on a runnable list.
    runnable_at: Option<u64>,
    /// The wait goes on across temporary dequeues: `SCX_TASK_RESET_RUNNABLE_AT` is off.
    kept_runnable_at: Option<u64>,
}

/// The state of the class.
#[derive(Default)]
pub(super) struct Scx {
    pub object: Option<Object>,
    ops: Option<Ops>,
    /// `scx_bypassing()`: operations are not asked, each CPU serves its own queue, first come, first served.
    bypass: bool,
    dsqs: Vec<Dsq>,
    by_id: HashMap<u64, DsqIndex, BuildHasherDefault<IdHasher>>,
    idle_cpus: CpuMask,
    idle_smts: CpuMask,
    /// What was asked for of each node, CPUs and cores.
    node_masks: Vec<CpuMask>,
    operation: ScxOperation,
    snapshots: Vec<Option<Vec<TaskId>>>,
    idle_task: Option<TaskPtr>,
    planted: Option<Planted>,
}

/// What belongs to one operation, and is put aside while another's runs.
#[derive(Default)]
pub(super) struct ScxOperation {
    /// `direct_dispatch_task` of the CPU that runs kernel code.
    direct: dsq::DirectSlot,
    /// The CPU whose run queue is locked: `scx_locked_rq()`.
    locked_rq: Option<u32>,
    in_select_cpu: Option<TaskId>,
    /// The program that is about to be called, where its cost is known by itself.
    program: Option<call::Program>,
    dispatching: dispatch::Buffer,
    /// Inserts into other CPUs' local queues that wait until the run queue can be unlocked.
    deferred: Vec<TaskId>,
    /// Queues whose tasks are to be handed to the scheduler again.
    reenqs: Vec<DsqIndex>,
    /// CPUs whose local queues are to be looked through for tasks that cannot run at once.
    reenq_locals: Vec<u32>,
    kicks: Vec<(u32, u64)>,
}

/// Identifiers of DSQs are small numbers with a few high bits.
#[derive(Default)]
struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _bytes: &[u8]) {
        unreachable!("only numbers are hashed")
    }

    fn write_u64(&mut self, id: u64) {
        self.0 = (id ^ (id >> 29)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// Period, quota and burst as operations are told them, µs: `cpu.max` of a group without a limit is that of the root.
fn in_us(max: Option<super::group::Max>) -> (u64, u64, u64) {
    let us = |ns: u64| ns / 1000;
    max.map_or((100_000, u64::MAX, 0), |max| (us(max.period), us(max.quota), us(max.burst)))
}

impl super::Task {
    /// The CPU in whose local queue it is.
    pub(super) fn scx_dsq(&self) -> Option<u32> {
        self.scx.dsq.map(|dsq| dsq.0)
    }

    /// Since when it has waited, or run, in a CPU's local queue.
    pub(crate) fn scx_local_at(&self) -> Option<u64> {
        self.scx.local_at
    }
}

impl Kernel {
    /// Loads an object into a kernel that has no tasks yet.
    pub(super) fn scx_load(&mut self, object: Object) {
        self.scx.object = Some(object);
        let mut fields = std::mem::MaybeUninit::<TaskFields>::uninit();
        let args = TaskArgs {
            id: u64::from(u32::MAX),
            pid: 0,
            tgid: 0,
            prio: 120,
            nr_cpus_allowed: 1,
            flags: 0,
            pad: 0,
            allowed: std::ptr::null(),
            kvm_vcpu: std::ptr::null_mut(),
        };
        let new = self.scx.object.as_ref().expect("just set").task_new;
        // SAFETY: the function fills all fields.
        self.scx.idle_task = Some(unsafe {
            new(&raw const args, fields.as_mut_ptr());
            fields.assume_init().task
        });
        let root = self.scx_cgroup_new(None, 100);
        self.groups[0].pointer = root;
    }

    /// The operations of the class's scheduler.
    pub(super) fn scx_ops(&self) -> Option<Ops> {
        self.scx.ops
    }

    /// `set_cpus_allowed_common()`: the mask itself is the kernel's.
    pub(super) fn scx_task_allow(&mut self, id: TaskId, nr_allowed: u32) {
        let task = self.pointer(id);
        self.scx_call(None, |object, _| {
            // SAFETY: the function has this type in native/include/runtime.h; the task is the object's.
            unsafe {
                let allow: unsafe extern "C" fn(TaskPtr, i32) = object.function("sim_task_allow");
                allow(task, nr_allowed as i32);
            }
        });
    }

    /// Whether the class has a scheduler.
    pub(crate) fn scx_attached(&self) -> bool {
        self.scx.ops.is_some()
    }

    /// The CPU whose run queue the operation that runs has locked.
    pub(super) fn scx_locked(&self) -> Option<u32> {
        self.scx.operation.locked_rq
    }

    /// Where the object keeps the moment.
    pub(super) fn scx_context(&self) -> *mut Context {
        self.scx.object.as_ref().expect("every machine has an object").context()
    }

    pub(super) fn scx_save(&mut self) -> ScxOperation {
        std::mem::take(&mut self.scx.operation)
    }

    pub(super) fn scx_restore(&mut self, operation: ScxOperation) {
        self.scx.operation = operation;
    }

    /// Puts a fault into the machine's kernel from here on.
    pub fn plant(&mut self, planted: Planted) {
        self.scx.planted = Some(planted);
    }

    /// Whether operations are bypassed.
    pub(crate) fn scx_bypassing(&self) -> bool {
        self.scx.bypass
    }

    /// The scheduler's idle task.
    pub(crate) fn idle_pointer(&self) -> TaskPtr {
        self.scx.idle_task.unwrap_or(std::ptr::null_mut())
    }

    /// `scx_allow_ttwu_queue()`: whether a task may be handed to its CPU by an interrupt, so that that CPU queues it.
    pub(super) fn scx_allow_ttwu_queue(&self, id: TaskId) -> bool {
        self.scx.ops.is_none_or(|ops| ops.flags & OPS_ALLOW_QUEUED_WAKEUP != 0) || self.is_rt(id)
    }

    pub(super) fn scx_task_new(&mut self, args: &TaskArgs) -> TaskFields {
        let Some(object) = &self.scx.object else { return TaskFields::none() };
        let mut fields = TaskFields::none();
        // SAFETY: the function fills the fields; `args` lives as long as the call.
        unsafe { (object.task_new)(args, &raw mut fields) };
        fields
    }

    /// `scx_init_task()` and `scx_enable_task()`.
    pub(super) fn scx_enable_task(&mut self, id: TaskId) {
        if self.scx.object.is_none() {
            return;
        }
        let (task, group, weight) = (self.pointer(id), self.group_pointer(id), self.task(id).weight);
        // SAFETY: the pointers are this object's own.
        unsafe {
            *self.task(id).fields.weight = weight;
            (self.scx.object.as_ref().expect("checked").task_group)(task, group);
        }
        if !self.scx_attached() {
            return;
        }
        self.scx_init_task(id);
        if !self.is_rt(id) {
            self.scx_enable_ops(id);
        }
    }

    /// `__scx_init_task()`.
    fn scx_init_task(&mut self, id: TaskId) {
        let task = self.pointer(id);
        // SAFETY: the pointer is the object's.
        let error = self.scx_call(None, |object, _| unsafe { (object.init_task)(task) });
        if error != 0 {
            self.scx_fail(format!("ops.init_task() returned {error}"));
        }
    }

    /// `__scx_enable_task()`.
    fn scx_enable_ops(&mut self, id: TaskId) {
        let weight = self.task(id).weight;
        // SAFETY: the pointer is the object's.
        self.scx_call_task(id, |ops, task| unsafe {
            if let Some(enable) = ops.enable {
                enable(task);
            }
            if let Some(set_weight) = ops.set_weight {
                set_weight(task, weight);
            }
        });
    }

    /// `set_cpus_allowed_scx()`.
    pub(super) fn scx_set_cpumask(&mut self, id: TaskId) {
        let (task, count) = (self.pointer(id), self.task(id).nr_allowed as i32);
        let mask: *const CpuMask = &raw const *self.task(id).allowed;
        let Some(object) = &self.scx.object else { return };
        // SAFETY: the pointer is the object's.
        unsafe { (object.task_allow)(task, count) };
        if !self.scx_attached() || self.is_rt(id) {
            return;
        }
        self.scx_call_task(id, |ops, task| {
            if let Some(set) = ops.set_cpumask {
                // SAFETY: both pointers live longer than the call.
                unsafe { set(task, mask) }
            }
        });
    }

    /// `reweight_task_scx()`.
    pub(super) fn scx_reweight(&mut self, id: TaskId) {
        if self.scx.object.is_none() {
            return;
        }
        let weight = self.task(id).weight;
        // SAFETY: the field lives as long as the object.
        unsafe { *self.task(id).fields.weight = weight };
        if !self.scx_attached() || self.is_rt(id) {
            return;
        }
        self.scx_call_task(id, |ops, task| {
            if let Some(set) = ops.set_weight {
                // SAFETY: the pointer is the object's.
                unsafe { set(task, weight) }
            }
        });
    }

    /// `scx_cgroup_move_task()`.
    pub(super) fn scx_move_group(&mut self, id: TaskId, from: super::group::GroupId) {
        let Some(object) = &self.scx.object else { return };
        let (task, from, to) = (self.pointer(id), self.groups[from.0 as usize].pointer, self.group_pointer(id));
        // SAFETY: the pointers are the object's.
        unsafe { (object.task_group)(task, to) };
        if !self.scx_attached() || from == to {
            return;
        }
        self.scx_call_task(id, |ops, task| {
            if let Some(moved) = ops.cgroup_move {
                // SAFETY: as above.
                unsafe { moved(task, from, to) }
            }
        });
    }

    /// `sched_ext_dead()`.
    pub(super) fn scx_dead(&mut self, id: TaskId) {
        if !self.scx_attached() {
            return;
        }
        let (task, cpu) = (self.pointer(id), self.task(id).cpu);
        // SAFETY: the pointer is the object's.
        self.call_about([task, std::ptr::null_mut()], Some(cpu), |object, _| unsafe { (object.exit_task)(task) });
    }

    fn group_pointer(&self, id: TaskId) -> CgroupPtr {
        self.groups[self.task(id).group.0 as usize].pointer
    }

    pub(super) fn scx_cgroup_new(&mut self, parent: Option<super::group::GroupId>, weight: u32) -> CgroupPtr {
        let Some(object) = &self.scx.object else { return std::ptr::null_mut() };
        // SAFETY: groups are made in the order of their numbers, so that the parent's is the object's, too.
        let pointer = unsafe { (object.cgroup_new)(parent.map_or(-1, |p| p.0 as i32)) };
        if self.scx_attached() {
            self.scx_cgroup_init(pointer, weight, None);
        }
        pointer
    }

    /// `ops.cgroup_init()`.
    fn scx_cgroup_init(&mut self, pointer: CgroupPtr, weight: u32, max: Option<super::group::Max>) {
        let (period, quota, burst) = in_us(max);
        // SAFETY: the pointer is the object's.
        let error =
            self.scx_call(None, |object, _| unsafe { (object.cgroup_init)(pointer, weight, period, quota, burst) });
        if error != 0 {
            self.scx_fail(format!("ops.cgroup_init() returned {error}"));
        }
    }

    pub(super) fn scx_cgroup_set_weight(&mut self, pointer: CgroupPtr, weight: u32) {
        if self.scx_attached() {
            self.scx_call(None, |_, ops| {
                if let Some(set) = ops.cgroup_set_weight {
                    // SAFETY: the pointer is the object's.
                    unsafe { set(pointer, weight) }
                }
            });
        }
    }

    /// `scx_group_set_bandwidth()`.
    pub(super) fn scx_cgroup_set_bandwidth(&mut self, pointer: CgroupPtr, max: Option<super::group::Max>) {
        if self.scx_attached() {
            let (period, quota, burst) = in_us(max);
            self.scx_call(None, |_, ops| {
                if let Some(set) = ops.cgroup_set_bandwidth {
                    // SAFETY: the pointer is the object's.
                    unsafe { set(pointer, period, quota, burst) }
                }
            });
        }
    }

    /// `scx_tg_offline()`.
    pub(super) fn scx_cgroup_exit(&mut self, pointer: CgroupPtr) {
        if self.scx_attached() {
            self.scx_call(None, |_, ops| {
                if let Some(exit) = ops.cgroup_exit {
                    // SAFETY: the pointer is the object's.
                    unsafe { exit(pointer) }
                }
            });
        }
    }

    /// `scx_error()`: the scheduler is left. A simulated machine does not go on without it.
    pub(super) fn scx_fail(&mut self, why: String) {
        self.failed.get_or_insert(why);
    }

    /// `scx_bpf_exit_bstr()` and `scx_bpf_error_bstr()`.
    pub(crate) fn scx_exit(&mut self, code: i64, text: &str, error: bool) {
        self.scx_fail(if error { text.to_owned() } else { format!("exit code {code}: {text}") });
    }

    pub(super) fn slice(&self, id: TaskId) -> u64 {
        // SAFETY: a task of an attached class has fields, which live as long as the object.
        unsafe { *self.task(id).fields.slice }
    }

    fn set_slice(&mut self, id: TaskId, slice: u64) {
        // SAFETY: as in slice().
        unsafe { *self.task(id).fields.slice = slice }
    }

    fn vtime(&self, id: TaskId) -> u64 {
        // SAFETY: as in slice().
        unsafe { *self.task(id).fields.vtime }
    }

    fn queued(&self, id: TaskId) -> bool {
        // SAFETY: as in slice().
        unsafe { *self.task(id).fields.flags & TASK_QUEUED != 0 }
    }

    fn set_queued(&mut self, id: TaskId, on: bool) {
        // SAFETY: as in slice().
        unsafe {
            let flags = self.task(id).fields.flags;
            *flags = if on { *flags | TASK_QUEUED } else { *flags & !TASK_QUEUED };
        }
    }
}
