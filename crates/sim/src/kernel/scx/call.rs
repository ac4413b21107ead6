//! Calls into the scheduler's object: operations, programs on tracepoints, timers.

use std::ffi::c_void;
use std::ptr::null_mut;

use super::super::counts::{Count, Kind};
use super::super::{Kernel, TaskId};
use crate::costs::Costs;
use crate::native::{Done, Object, Ops, Probes, TaskPtr};

/// `HARDIRQ_OFFSET` of linux/preempt.h.
const HARDIRQ_OFFSET: u64 = 1 << 24;

/// A program whose cost was measured by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Program {
    SelectCpu,
    Enqueue,
    Dispatch,
    Running,
    Stopping,
    Quiescent,
    Tick,
    ObserveSwitch,
    ObserveWakeup,
    Wfx,
    TimerSaved,
}

impl Program {
    /// What a run of it takes, ns; 0: that follows from what it calls.
    fn cost(self, costs: &Costs) -> u64 {
        match self {
            Self::SelectCpu => costs.host_select_cpu,
            Self::Enqueue => costs.host_enqueue,
            Self::Dispatch => costs.host_dispatch,
            Self::Running => costs.host_running,
            Self::Stopping => costs.host_stopping,
            Self::Quiescent => costs.host_quiescent,
            Self::Tick => costs.host_tick,
            Self::ObserveSwitch => costs.observe_switch,
            Self::ObserveWakeup => costs.observe_wakeup,
            Self::Wfx => costs.host_wfx,
            Self::TimerSaved => costs.host_timer,
        }
    }
}

impl Kernel {
    /// The program that is called next.
    pub(super) fn calls(&mut self, program: Program) {
        self.scx.operation.program = Some(program);
    }

    /// `SCX_CALL_OP()`: an operation on no task in particular. `locked` is the CPU whose run queue is locked meanwhile.
    pub(in super::super) fn scx_call<R>(&mut self, locked: Option<u32>, call: impl FnOnce(&Object, &Ops) -> R) -> R {
        self.call_about([null_mut(); 2], locked, call)
    }

    /// `SCX_CALL_OP_TASK()`: an operation on this task, whose CPU's run queue is locked meanwhile.
    pub(in super::super) fn scx_call_task<R>(&mut self, id: TaskId, call: impl FnOnce(&Ops, TaskPtr) -> R) -> R {
        let (task, cpu) = (self.pointer(id), self.task(id).cpu);
        self.call_about([task, null_mut()], Some(cpu), |_, ops| call(ops, task))
    }

    /// How often the scheduler has read a clock that stood still (`Cpu::frozen`).
    pub fn frozen_reads(&self) -> u64 {
        // SAFETY: the context lives as long as the object, which nobody runs now.
        self.scx.object.as_ref().map_or(0, |object| unsafe { (*object.context()).frozen })
    }

    /// `scx_bpf_now()`, with the run queue of `locked` locked and its clock updated.
    fn rq_clock(&self, locked: Option<u32>) -> u64 {
        let frozen = self.cpu(self.this_cpu).frozen.filter(|_| locked != Some(self.this_cpu));
        frozen.unwrap_or(self.now)
    }

    /// Calls the scheduler. `subjects` are the tasks that the operation is on (`kf_tasks`): kfuncs that are for such tasks
    /// alone refuse others.
    pub(super) fn call_about<R>(
        &mut self,
        subjects: [TaskPtr; 2],
        locked: Option<u32>,
        call: impl FnOnce(&Object, &Ops) -> R,
    ) -> R {
        let held = self.hold(locked);
        let current = match self.cpu(self.this_cpu).curr {
            Some(task) => self.pointer(task),
            None => self.idle_pointer(),
        };
        if let Some(task) = self.cpu(self.this_cpu).curr {
            // SAFETY: the field lives as long as the object, which nobody runs now.
            unsafe { *self.task(task).fields.preempt_count = if self.in_irq { HARDIRQ_OFFSET } else { 0 } };
        }
        if let Some(cpu) = locked {
            self.cpu_mut(cpu).frozen = None;
        }
        let outer = std::mem::replace(&mut self.scx.operation.locked_rq, locked);
        let program = self.scx.operation.program.take();
        let machine: *mut Self = self;
        // SAFETY: `machine` is derived from this exclusive borrow, and the borrow is not used until the object has
        // returned; the object's calls back are the only users of `machine` meanwhile. `object` points into it, and no
        // call back moves or drops the object.
        let result = unsafe {
            let object: *const Object = (*machine).scx.object.as_ref().expect("the class has a scheduler");
            let ops = (*object).ops;
            let context = (*object).context();
            // A call back may have led here (enqueue out of a move): the caller's context comes back afterwards.
            let saved =
                ((*context).machine, (*context).rq_clock, (*context).cpu, (*context).current, (*context).subjects);
            (*context).machine = machine.cast::<c_void>();
            (*context).now = (*machine).now;
            (*context).rq_clock = (*machine).rq_clock(locked);
            (*context).cpu = (*machine).this_cpu;
            (*context).current = current;
            (*context).subjects = subjects;
            let result = call(&*object, &ops);
            ((*context).machine, (*context).rq_clock, (*context).cpu, (*context).current, (*context).subjects) = saved;
            let Done { helpers, lookups, atomics, inlined, shared } = std::mem::take(&mut (*context).done);
            let costs = (*machine).costs;
            let host = (*object).probes.is_some();
            let measured = program.filter(|_| host).map_or(0, |program| program.cost(&costs));
            let counted = (helpers + lookups) * costs.helper;
            (*machine).spent += costs.operation + if measured > 0 { measured } else { counted };
            (*machine).counts.add(Count { events: 0, operations: 1, helpers, lookups, atomics, inlined, shared });
            result
        };
        self.scx.operation.locked_rq = outer;
        self.release(locked, held);
        result
    }

    /// Calls functions of the object that are no operations of its scheduler.
    pub(crate) fn object_call<R>(&mut self, call: impl FnOnce(&Object) -> R) -> R {
        let spent = self.spent;
        let result = self.counted(Kind::Other, |kernel| kernel.scx_call(None, |object, _| call(object)));
        self.spent = spent;
        result
    }

    /// Calls programs on tracepoints, where the object has some.
    fn call_probes(&mut self, call: impl FnOnce(&Probes)) {
        self.scx_call(None, |object, _| object.probes.as_ref().map(call));
    }

    /// The tracepoint sched_switch.
    pub(crate) fn probe_switch(&mut self, prev: Option<TaskId>, next: Option<TaskId>, gone: bool) {
        let of = |k: &Self, task: Option<TaskId>| task.map_or(k.idle_pointer(), |task| k.pointer(task));
        let (out, into) = (of(self, prev), of(self, next));
        self.counted(Kind::Switch, |kernel| {
            kernel.calls(Program::ObserveSwitch);
            kernel.call_probes(|probes| {
                // SAFETY: the pointers are the object's.
                unsafe { (probes.switch)(!gone, out, into, u32::from(gone)) };
            });
        });
    }

    /// The tracepoint sched_wakeup.
    pub(crate) fn probe_wakeup(&mut self, task: TaskId) {
        let pointer = self.pointer(task);
        self.counted(Kind::Wake, |kernel| {
            kernel.calls(Program::ObserveWakeup);
            kernel.call_probes(|probes| {
                // SAFETY: the pointer is the object's.
                unsafe { (probes.wakeup)(pointer) };
            });
        });
    }

    /// The tracepoint kvm_wfx_arm64: the current thread's guest waits for an event, at that place of its code.
    pub(crate) fn probe_wfx(&mut self, pc: u64) {
        self.counted(Kind::Yield, |kernel| {
            kernel.calls(Program::Wfx);
            kernel.call_probes(|probes| {
                // SAFETY: the program takes plain numbers.
                unsafe { (probes.wfx)(pc, true) };
            });
            kernel.scx_flush();
        });
    }

    /// The tracepoint kvm_timer_save_state: a vCPU's thread leaves its CPU, and KVM has saved its timer.
    pub(crate) fn probe_timer_saved(&mut self, task: TaskId) {
        let pointer = self.pointer(task);
        self.counted(Kind::Switch, |kernel| {
            kernel.calls(Program::TimerSaved);
            kernel.call_probes(|probes| {
                // SAFETY: the pointer is the object's.
                unsafe { (probes.timer_saved)(pointer) };
            });
            kernel.scx_flush();
        });
    }

    /// What kernel code took, ns, since it was asked last, with the interrupt for what it has put off.
    pub fn take_spent(&mut self) -> u64 {
        if std::mem::take(&mut self.deferred) {
            self.count(Kind::Deferred);
            self.spent += self.costs.irq_work;
        }
        std::mem::take(&mut self.spent)
    }

    /// A BPF timer is due on `this_cpu`.
    pub fn bpf_timer(&mut self, timer: u32) {
        self.count(Kind::Timer);
        self.counted(Kind::Timer, |kernel| {
            // SAFETY: the number is that of a timer that the object has started.
            kernel.scx_call(None, |object, _| unsafe { (object.timer_fire)(timer) });
            kernel.scx_flush();
        });
    }
}
