//! Sleeping locks of the kernel with optimistic spinning: kernel/locking/mutex.c and osq_lock.c.
//!
//! Who finds one taken spins with preemption disabled while the owner runs, as far as the kernel knows: on arm64 it does
//! not know that a vCPU is off its pCPU (`vcpu_is_preempted()`). Spinners stand in a queue; its head polls the owner by
//! plain loads, which on arm64 do not trap, the others wait as for a spinning lock.

use std::collections::VecDeque;

use super::kvm::Arch;
use super::lane::ENDLESS;
use super::mutex::Tried;
use super::{HOST, MachineId, World};
use crate::kernel::{State, TaskId};
use crate::trace::What;

/// A mutex.
#[derive(Default)]
pub(super) struct KernelMutex {
    owner: Option<TaskId>,
    /// `osq`.
    spinners: VecDeque<TaskId>,
    /// `wait_list`: asleep, or on their way back.
    waiters: VecDeque<TaskId>,
    /// `MUTEX_FLAG_HANDOFF`: the first waiter has come too late once, and is next.
    handoff: bool,
}

/// What a task has to do with mutexes.
#[derive(Clone, Debug, Default)]
pub(super) struct KernelTries {
    /// Those that it owns.
    pub(super) owned: Vec<u32>,
    /// It spins.
    spins: bool,
    /// It is in `wait_list` of the one that it wants.
    waits: bool,
    /// It has spun and was called to the scheduler: it does not spin again, unless it is the first waiter.
    spun: bool,
    /// What it spins for has changed: no trap, only a look.
    looks: bool,
    /// Whom the host was told of as the one that it spins for.
    told: Option<TaskId>,
}

impl KernelTries {
    /// Whether it owns one or waits for one.
    pub(super) fn is_busy(&self) -> bool {
        self.waits || !self.owned.is_empty()
    }
}

impl World {
    /// Tries to take a mutex: at first, as a spinner that looks again, as a waiter that was woken.
    pub(super) fn try_kernel_mutex(&mut self, m: MachineId, cpu: u32, task: TaskId, number: u32) -> Tried {
        let KernelTries { spins, waits, spun, .. } = self.state(m, task).kernel_tries;
        let mutex = self.machines[m.0 as usize].kernel_mutexes.entry(number).or_default();
        let first = mutex.waiters.front() == Some(&task);
        // A spinner behind others waits for its place at the head.
        let polls = !spins || waits || mutex.spinners.front() == Some(&task);
        if mutex.owner == Some(task) || mutex.owner.is_none() && polls {
            mutex.owner = Some(task);
            if waits {
                mutex.handoff &= !first;
                mutex.waiters.retain(|waiter| *waiter != task);
            }
            self.spin_ends(m, cpu, task, number);
            let tries = &mut self.state_mut(m, task).kernel_tries;
            (tries.waits, tries.spun) = (false, false);
            tries.owned.push(number);
            self.tell(m, cpu, What::Takes { task, lock: number });
            return Tried::Taken;
        }
        let owner = mutex.owner;
        if first {
            mutex.handoff = true;
        }
        let may = if waits { first } else { spins || !spun };
        let resched = self.machines[m.0 as usize].kernel.cpu(cpu).need_resched;
        if may && !resched && owner.is_none_or(|owner| self.seems_to_run(m, owner)) {
            if !spins {
                self.preempt_add(m, cpu, task, true);
                self.state_mut(m, task).kernel_tries.spins = true;
                if !waits {
                    let machine = &mut self.machines[m.0 as usize];
                    let spinners = &mut machine.kernel_mutexes.entry(number).or_default().spinners;
                    let last = spinners.back().map_or(0, |last| 1 + machine.kernel.task(*last).cpu);
                    spinners.push_back(task);
                    self.tell_spins(m, cpu, true, false, last);
                }
            }
            self.tell_owner(m, cpu, task, number, owner);
            return Tried::Spins(number);
        }
        self.spin_ends(m, cpu, task, number);
        if may && resched && !waits {
            // schedule_preempt_disabled(): it comes back, and then tries once more before it sleeps.
            self.state_mut(m, task).kernel_tries.spun = true;
            return Tried::Yields;
        }
        if !waits {
            self.machines[m.0 as usize].kernel_mutexes.entry(number).or_default().waiters.push_back(task);
            self.state_mut(m, task).kernel_tries.waits = true;
        }
        Tried::Sleeps
    }

    /// The mark of a spinner: when its hypervisor looks.
    pub(super) fn owner_mark(&self, m: MachineId, task: TaskId, number: u32) -> u64 {
        let head = self.machines[m.0 as usize].kernel_mutexes[&number].spinners.front() == Some(&task);
        let polls = head || self.state(m, task).kernel_tries.waits;
        let arm64 = m != HOST && self.vms[m.0 as usize - 1].arch == Arch::Arm64;
        if polls && arm64 { ENDLESS } else { self.spin_mark(m) }
    }

    pub(super) fn spins_for_owner(&self, m: MachineId, task: TaskId) -> bool {
        self.state(m, task).kernel_tries.spins
    }

    /// `owner_on_cpu()`.
    fn seems_to_run(&self, m: MachineId, owner: TaskId) -> bool {
        let cpu = self.machines[m.0 as usize].kernel.task(owner).cpu;
        let knows = m != HOST && self.vms[m.0 as usize - 1].arch != Arch::Arm64;
        self.curr(m, cpu) == Some(owner) && !(knows && self.vcpu(m, cpu).preempted)
    }

    /// The task spins no more, if it did: whoever stands behind it in the queue has a look.
    fn spin_ends(&mut self, m: MachineId, cpu: u32, task: TaskId, number: u32) {
        if !self.spins_for_owner(m, task) {
            return;
        }
        self.state_mut(m, task).kernel_tries.spins = false;
        self.preempt_add(m, cpu, task, false);
        if self.state_mut(m, task).kernel_tries.told.take().is_some() {
            let waits = self.state(m, task).kernel_tries.waits;
            self.call_spins(m, cpu, "sim_spins_on_owner", [0, 0, u32::from(waits)]);
        }
        let mutex = self.machines[m.0 as usize].kernel_mutexes.entry(number).or_default();
        let Some(place) = mutex.spinners.iter().position(|spinner| *spinner == task) else { return };
        mutex.spinners.remove(place);
        let next = mutex.spinners.front().copied().filter(|_| place == 0);
        self.tell_spins(m, cpu, false, place == 0, 0);
        if let Some(next) = next {
            self.looks_again(m, next);
        }
    }

    /// The agent's programs at the queue of spinners: `spins.bpf.c`. `last`: 1 + the CPU of the last one in it.
    fn tell_spins(&mut self, m: MachineId, cpu: u32, enters: bool, head: bool, last: u32) {
        self.call_spins(m, cpu, "sim_spins", [u32::from(enters), u32::from(head), last]);
    }

    /// The same where one that polls looks for the owner.
    fn tell_owner(&mut self, m: MachineId, cpu: u32, task: TaskId, number: u32, owner: Option<TaskId>) {
        let head = self.machines[m.0 as usize].kernel_mutexes[&number].spinners.front() == Some(&task);
        let KernelTries { waits, told, .. } = self.state(m, task).kernel_tries;
        let Some(owner) = owner.filter(|owner| (head || waits) && told != Some(*owner)) else { return };
        self.state_mut(m, task).kernel_tries.told = Some(owner);
        let on = self.machines[m.0 as usize].kernel.task(owner).cpu;
        self.call_spins(m, cpu, "sim_spins_on_owner", [1, on, u32::from(waits)]);
    }

    fn call_spins(&mut self, m: MachineId, cpu: u32, function: &str, [first, second, third]: [u32; 3]) {
        if m == HOST || !self.vms[m.0 as usize - 1].paired {
            return;
        }
        self.burden(m, cpu, self.costs.operation + self.costs.helper);
        self.machines[m.0 as usize].kernel.object_call(|object| {
            // SAFETY: both functions have this type in native/guest.c; the guest has this CPU.
            unsafe {
                let spins: unsafe extern "C" fn(u32, u32, u32, u32) = object.function(function);
                spins(cpu, first, second, third);
            }
        });
    }

    /// What a spinner polls has changed: it sees that at once, or as soon as it runs.
    pub(super) fn looks_again(&mut self, m: MachineId, task: TaskId) {
        if !self.spins_for_owner(m, task) {
            return;
        }
        let cpu = self.machines[m.0 as usize].kernel.task(task).cpu;
        self.state_mut(m, task).kernel_tries.looks = true;
        self.pause(m, cpu);
        self.set_left(m, cpu, self.costs.handover);
        self.resume(m, cpu);
    }

    /// A spinner's mark has come, or something has changed. The lane is paused.
    pub(super) fn owner_spun(&mut self, m: MachineId, cpu: u32, task: TaskId) {
        if std::mem::take(&mut self.state_mut(m, task).kernel_tries.looks) {
            self.next_step(m, cpu, task);
        } else {
            self.spun(m, cpu);
        }
    }

    /// A task leaves its CPU, or a vCPU its pCPU: those who spin for what the task owns may give up.
    pub(super) fn owner_leaves(&mut self, m: MachineId, task: TaskId) {
        let owned = self.state(m, task).kernel_tries.owned.clone();
        for number in owned {
            self.poll(m, number);
        }
    }

    /// Whoever polls this mutex looks again.
    fn poll(&mut self, m: MachineId, number: u32) {
        let mutex = self.machines[m.0 as usize].kernel_mutexes.entry(number).or_default();
        let polling = [mutex.spinners.front().copied(), mutex.waiters.front().copied()];
        for task in polling.into_iter().flatten() {
            self.looks_again(m, task);
        }
    }

    /// Gives a mutex back: to the first waiter where that came too late before, else to whoever takes it. Returns whether
    /// somebody was woken.
    pub(super) fn release_kernel_mutex(&mut self, m: MachineId, cpu: u32, task: TaskId, number: u32) -> bool {
        let owned = &mut self.state_mut(m, task).kernel_tries.owned;
        let Some(place) = owned.iter().position(|owned| *owned == number) else { return false };
        owned.remove(place);
        self.tell(m, cpu, What::Gives { lock: number });
        let machine = &mut self.machines[m.0 as usize];
        let mutex = machine.kernel_mutexes.entry(number).or_default();
        let first = mutex.waiters.front().copied();
        mutex.owner = first.filter(|_| mutex.handoff);
        let asleep = first.filter(|first| {
            let at = machine.kernel.task(*first);
            let home = machine.kernel.cpu(at.cpu);
            at.state == State::Sleeping || home.sleeps && home.curr == Some(*first)
        });
        self.poll(m, number);
        let Some(asleep) = asleep else { return false };
        self.burden(m, cpu, self.costs.syscall);
        self.wake(m, cpu, asleep, false);
        true
    }
}
