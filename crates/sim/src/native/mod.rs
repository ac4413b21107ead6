//! The mirror of `native/include/sim.h`: what a scheduler's shared object and the simulated kernel say to each other.

mod calls;
mod image;
mod object;

pub(crate) use calls::CALLS;
pub(crate) use object::{Object, Probes, Side};

use std::ffi::{c_char, c_void};

use crate::kernel::mask::CpuMask;

/// A `struct task_struct` of an object: only ever handed back to it.
pub(crate) type TaskPtr = *mut c_void;
/// A `struct cgroup` of an object.
pub(crate) type CgroupPtr = *mut c_void;

/// `SIM_ABI` of sim.h.
const ABI: u32 = 8;

/// `struct sim_calls`: the machine comes first in each.
#[repr(C)]
pub(crate) struct Calls {
    pub alloc: extern "C" fn(*mut c_void, u64) -> *mut c_void,
    pub select_cpu_dfl: extern "C" fn(*mut c_void, u64, i32, u64, *mut bool) -> i32,
    pub select_cpu_and: extern "C" fn(*mut c_void, u64, i32, u64, *const CpuMask, u64) -> i32,
    pub create_dsq: extern "C" fn(*mut c_void, u64, i32) -> i32,
    pub dsq_insert: extern "C" fn(*mut c_void, u64, u64, u64, u64, u64, bool),
    pub dsq_move_to_local: extern "C" fn(*mut c_void, u64, u64) -> bool,
    pub dsq_nr_queued: extern "C" fn(*mut c_void, u64) -> i32,
    pub dsq_peek: extern "C" fn(*mut c_void, u64) -> TaskPtr,
    pub iter_new: extern "C" fn(*mut c_void, *mut u64, u64, u64) -> i32,
    pub iter_next: extern "C" fn(*mut c_void, *mut u64) -> TaskPtr,
    pub iter_destroy: extern "C" fn(*mut c_void, *mut u64),
    pub dsq_move: extern "C" fn(*mut c_void, *mut u64, u64, u64, u64, bool) -> bool,
    pub tid_to_task: extern "C" fn(*mut c_void, u64) -> TaskPtr,
    pub task_set_slice: extern "C" fn(*mut c_void, u64, u64) -> bool,
    pub kick_cpu: extern "C" fn(*mut c_void, i32, u64),
    pub task_cpu: extern "C" fn(*mut c_void, u64) -> i32,
    pub task_running: extern "C" fn(*mut c_void, u64) -> bool,
    pub cpu_curr: extern "C" fn(*mut c_void, i32) -> TaskPtr,
    pub test_and_clear_cpu_idle: extern "C" fn(*mut c_void, i32) -> bool,
    pub pick_idle_cpu: extern "C" fn(*mut c_void, *const CpuMask, u64) -> i32,
    pub idle_cpumask: extern "C" fn(*mut c_void, i32, bool) -> *const CpuMask,
    pub online_cpumask: extern "C" fn(*mut c_void) -> *const CpuMask,
    pub cpuperf_set: extern "C" fn(*mut c_void, i32, u32),
    pub timer_start: extern "C" fn(*mut c_void, u32, u64, bool),
    pub exit: extern "C" fn(*mut c_void, i64, *const c_char, bool),
    pub task_from_pid: extern "C" fn(*mut c_void, i32) -> TaskPtr,
    pub dsq_reenq: extern "C" fn(*mut c_void, u64, u64),
    pub gap: extern "C" fn(*mut c_void),
}

/// `struct sim_done`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Done {
    pub helpers: u64,
    pub lookups: u64,
    pub atomics: u64,
    pub inlined: u64,
    pub shared: u64,
}

/// `struct sim_context`.
#[repr(C)]
pub(crate) struct Context {
    pub calls: *const Calls,
    pub machine: *mut c_void,
    pub memory: *mut c_void,
    pub now: u64,
    pub rq_clock: u64,
    pub frozen: u64,
    pub done: Done,
    pub cpu: u32,
    pub nr_cpus: u32,
    pub nr_llcs: u32,
    pub nr_nodes: u32,
    pub threads: u32,
    pub arm64: u32,
    pub intel: u32,
    pub abi: u32,
    pub races: u32,
    pub spins: u32,
    pub current: TaskPtr,
    pub subjects: [TaskPtr; 2],
}

/// `struct sim_task_fields`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct TaskFields {
    pub task: TaskPtr,
    pub slice: *mut u64,
    pub vtime: *mut u64,
    pub tid: *mut u64,
    pub flags: *mut u32,
    pub weight: *mut u32,
    pub sum_exec: *mut u64,
    pub nvcsw: *mut u64,
    pub preempt_count: *mut u64,
}

impl TaskFields {
    /// Of a task that no scheduler knows: never followed.
    pub(crate) const fn none() -> Self {
        use std::ptr::null_mut;
        Self {
            task: null_mut(),
            slice: null_mut(),
            vtime: null_mut(),
            tid: null_mut(),
            flags: null_mut(),
            weight: null_mut(),
            sum_exec: null_mut(),
            nvcsw: null_mut(),
            preempt_count: null_mut(),
        }
    }
}

/// `struct sim_task_args`.
#[repr(C)]
pub(crate) struct TaskArgs {
    pub id: u64,
    pub pid: i32,
    pub tgid: i32,
    pub prio: i32,
    pub nr_cpus_allowed: i32,
    pub flags: u32,
    pub pad: u32,
    pub allowed: *const CpuMask,
    pub kvm_vcpu: *mut c_void,
}

/// `struct sim_vcpu_fields`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct VcpuFields {
    pub kvm_vcpu: *mut c_void,
    pub pstate: *mut u64,
    pub pc: *mut u64,
    pub cpl: *mut u8,
    pub rflags: *mut u64,
    pub requests: *mut u64,
    pub irr: *mut u32,
    pub in_spin_loop: *mut bool,
}

/// `struct sim_ops`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Ops {
    pub select_cpu: Option<unsafe extern "C" fn(TaskPtr, i32, u64) -> i32>,
    pub enqueue: Option<unsafe extern "C" fn(TaskPtr, u64)>,
    pub dequeue: Option<unsafe extern "C" fn(TaskPtr, u64)>,
    pub dispatch: Option<unsafe extern "C" fn(i32, TaskPtr)>,
    pub tick: Option<unsafe extern "C" fn(TaskPtr)>,
    pub runnable: Option<unsafe extern "C" fn(TaskPtr, u64)>,
    pub running: Option<unsafe extern "C" fn(TaskPtr)>,
    pub stopping: Option<unsafe extern "C" fn(TaskPtr, bool)>,
    pub quiescent: Option<unsafe extern "C" fn(TaskPtr, u64)>,
    pub yield_to: Option<unsafe extern "C" fn(TaskPtr, TaskPtr) -> bool>,
    pub set_weight: Option<unsafe extern "C" fn(TaskPtr, u32)>,
    pub set_cpumask: Option<unsafe extern "C" fn(TaskPtr, *const CpuMask)>,
    pub update_idle: Option<unsafe extern "C" fn(i32, bool)>,
    pub cpu_online: Option<unsafe extern "C" fn(i32)>,
    pub cpu_offline: Option<unsafe extern "C" fn(i32)>,
    pub enable: Option<unsafe extern "C" fn(TaskPtr)>,
    pub cgroup_set_weight: Option<unsafe extern "C" fn(CgroupPtr, u32)>,
    pub cgroup_exit: Option<unsafe extern "C" fn(CgroupPtr)>,
    pub cgroup_move: Option<unsafe extern "C" fn(TaskPtr, CgroupPtr, CgroupPtr)>,
    pub cgroup_set_bandwidth: Option<unsafe extern "C" fn(CgroupPtr, u64, u64, u64)>,
    pub init: Option<unsafe extern "C" fn() -> i32>,
    pub flags: u64,
    pub timeout_ms: u64,
}
