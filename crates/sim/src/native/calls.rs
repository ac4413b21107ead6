//! The calls that a scheduler makes into the simulated kernel. Each has the name of its kernel function.

use std::ffi::{CStr, c_char, c_void};

use super::object::Memory;
use super::{Calls, TaskPtr};
use crate::kernel::mask::CpuMask;
use crate::kernel::{Kernel, TaskId};

pub(crate) static CALLS: Calls = Calls {
    alloc: Memory::alloc,
    select_cpu_dfl,
    select_cpu_and,
    create_dsq,
    dsq_insert,
    dsq_move_to_local,
    dsq_nr_queued,
    dsq_peek,
    iter_new,
    iter_next,
    iter_destroy,
    dsq_move,
    tid_to_task,
    task_set_slice,
    kick_cpu,
    task_cpu,
    task_running,
    cpu_curr,
    test_and_clear_cpu_idle,
    pick_idle_cpu,
    idle_cpumask,
    online_cpumask,
    cpuperf_set,
    timer_start,
    exit,
    task_from_pid,
    dsq_reenq,
    gap,
};

/// The machine that a call comes from.
fn kernel<'a>(machine: *mut c_void) -> &'a mut Kernel {
    // SAFETY: Kernel::scx_call() has just made this address from its own exclusive borrow, which it does not use before
    // the object returns; the object runs on the calling thread and hands the address on to nobody.
    unsafe { &mut *machine.cast::<Kernel>() }
}

fn id(task: u64) -> TaskId {
    TaskId(task as u32)
}

/// The cursor of an iterator.
fn cursor<'a>(it: *mut u64) -> &'a mut [u64; 6] {
    // SAFETY: `it` is a struct bpf_iter_scx_dsq on the caller's stack, which lives as long as the call.
    unsafe { &mut *it.cast::<[u64; 6]>() }
}

extern "C" fn select_cpu_dfl(m: *mut c_void, task: u64, prev: i32, wake_flags: u64, is_idle: *mut bool) -> i32 {
    let (cpu, idle) = kernel(m).kf_select_cpu_dfl(id(task), prev, wake_flags);
    // SAFETY: the caller gives the address of a bool of its own.
    unsafe { is_idle.write(idle) };
    cpu
}

extern "C" fn select_cpu_and(
    m: *mut c_void,
    task: u64,
    prev: i32,
    wake_flags: u64,
    allowed: *const CpuMask,
    flags: u64,
) -> i32 {
    // SAFETY: the set is a task's or the scheduler's own, and outlives the call. It is copied since a task's may change
    // while others run in between.
    let allowed = unsafe { (*allowed).clone() };
    kernel(m).kf_select_cpu_and(id(task), prev, wake_flags, &allowed, flags)
}

extern "C" fn create_dsq(m: *mut c_void, dsq: u64, _node: i32) -> i32 {
    kernel(m).kf_create_dsq(dsq)
}

extern "C" fn dsq_insert(m: *mut c_void, task: u64, dsq: u64, slice: u64, vtime: u64, flags: u64, by_vtime: bool) {
    kernel(m).kf_dsq_insert(id(task), dsq, slice, by_vtime.then_some(vtime), flags);
}

extern "C" fn dsq_move_to_local(m: *mut c_void, dsq: u64, flags: u64) -> bool {
    kernel(m).kf_dsq_move_to_local(dsq, flags)
}

extern "C" fn dsq_nr_queued(m: *mut c_void, dsq: u64) -> i32 {
    kernel(m).kf_dsq_nr_queued(dsq)
}

extern "C" fn dsq_peek(m: *mut c_void, dsq: u64) -> TaskPtr {
    let k = kernel(m);
    k.kf_dsq_peek(dsq).map_or(std::ptr::null_mut(), |task| k.pointer(task))
}

extern "C" fn iter_new(m: *mut c_void, it: *mut u64, dsq: u64, flags: u64) -> i32 {
    kernel(m).kf_iter_new(cursor(it), dsq, flags)
}

extern "C" fn iter_next(m: *mut c_void, it: *mut u64) -> TaskPtr {
    let k = kernel(m);
    k.kf_iter_next(cursor(it)).map_or(std::ptr::null_mut(), |task| k.pointer(task))
}

extern "C" fn iter_destroy(m: *mut c_void, it: *mut u64) {
    kernel(m).kf_iter_destroy(cursor(it));
}

extern "C" fn dsq_move(m: *mut c_void, it: *mut u64, task: u64, dsq: u64, flags: u64, by_vtime: bool) -> bool {
    kernel(m).kf_dsq_move(cursor(it), id(task), dsq, flags, by_vtime)
}

extern "C" fn dsq_reenq(m: *mut c_void, dsq: u64, _flags: u64) {
    kernel(m).kf_dsq_reenq(dsq);
}

extern "C" fn gap(m: *mut c_void) {
    kernel(m).gap();
}

extern "C" fn tid_to_task(m: *mut c_void, tid: u64) -> TaskPtr {
    let k = kernel(m);
    k.kf_tid_to_task(tid).map_or(std::ptr::null_mut(), |task| k.pointer(task))
}

extern "C" fn task_set_slice(m: *mut c_void, task: u64, slice: u64) -> bool {
    kernel(m).kf_task_set_slice(id(task), slice)
}

extern "C" fn kick_cpu(m: *mut c_void, cpu: i32, flags: u64) {
    kernel(m).kf_kick_cpu(cpu, flags);
}

extern "C" fn task_cpu(m: *mut c_void, task: u64) -> i32 {
    kernel(m).task(id(task)).cpu as i32
}

extern "C" fn task_running(m: *mut c_void, task: u64) -> bool {
    let k = kernel(m);
    let cpu = k.task(id(task)).cpu;
    k.cpu(cpu).curr == Some(id(task))
}

extern "C" fn cpu_curr(m: *mut c_void, cpu: i32) -> TaskPtr {
    let k = kernel(m);
    match k.cpus.get(cpu as usize).map(|c| c.curr) {
        None => std::ptr::null_mut(),
        Some(None) => k.idle_pointer(),
        Some(Some(task)) => k.pointer(task),
    }
}

extern "C" fn test_and_clear_cpu_idle(m: *mut c_void, cpu: i32) -> bool {
    kernel(m).kf_test_and_clear_cpu_idle(cpu)
}

extern "C" fn pick_idle_cpu(m: *mut c_void, allowed: *const CpuMask, flags: u64) -> i32 {
    // SAFETY: the mask is a task's, or the kernel's own idle mask; both outlive the call. It is copied since the second
    // changes while it is searched.
    let allowed = unsafe { (*allowed).clone() };
    kernel(m).kf_pick_idle_cpu(&allowed, flags)
}

extern "C" fn idle_cpumask(m: *mut c_void, node: i32, smt: bool) -> *const CpuMask {
    kernel(m).kf_idle_cpumask(u32::try_from(node).ok(), smt)
}

extern "C" fn online_cpumask(m: *mut c_void) -> *const CpuMask {
    &raw const kernel(m).online
}

/// All CPUs are alike and at their highest level: there is nobody to tell.
extern "C" fn cpuperf_set(_m: *mut c_void, _cpu: i32, _perf: u32) {}

extern "C" fn timer_start(m: *mut c_void, timer: u32, ns: u64, pinned: bool) {
    kernel(m).kf_timer_start(timer, ns, pinned);
}

extern "C" fn exit(m: *mut c_void, code: i64, text: *const c_char, error: bool) {
    // SAFETY: the format is a string literal of the scheduler's.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    kernel(m).scx_exit(code, &text, error);
}

extern "C" fn task_from_pid(m: *mut c_void, pid: i32) -> TaskPtr {
    let k = kernel(m);
    k.task_by_pid(pid).map_or(std::ptr::null_mut(), |task| k.pointer(task))
}
