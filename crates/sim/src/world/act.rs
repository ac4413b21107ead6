//! What is done to a world while it runs: affinity, weights, cgroups, new tasks and the end of others, guests that lie.

use super::machine::Mode;
use super::{Event, HOST, MachineId, World};
use crate::kernel::State;
use crate::kernel::TaskId;
use crate::kernel::group::GroupId;
use crate::kernel::mask::CpuMask;
use crate::program::Step;

/// One deed.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "a world has some hundred deeds at most")]
pub enum Act {
    /// `sched_setaffinity()`; CPUs that the machine has not are left out, and a set of none changes nothing.
    Allow(MachineId, TaskId, CpuMask),
    /// A task's weight changes, as by its nice value.
    Weight(MachineId, TaskId, u32),
    /// `cpu.weight` of a cgroup is written.
    GroupWeight(MachineId, GroupId, u32),
    /// A task goes to another cgroup.
    Move(MachineId, TaskId, GroupId),
    /// A new task, of this weight and cgroup, that repeats these steps.
    Fork(MachineId, GroupId, u32, Vec<Step>),
    /// The task ends as soon as it is between two steps that take time.
    Kill(MachineId, TaskId),
    /// The machine's own scheduler is attached, where none is ...
    Attach(MachineId),
    /// ... or detached, where one is: EEVDF goes on.
    Detach(MachineId),
    /// The kernel stands in for the scheduler from here on, or no longer, as around a suspend.
    Bypass(MachineId, bool),
    /// A CPU other than the first goes (false) or comes.
    Hotplug(MachineId, u32, bool),
    /// The guest writes what it likes into all words of its page that are its own, and into its preempt count.
    Lie(MachineId),
}

/// A deed that cannot be done while a run queue is locked is tried again after so long, ns.
const AGAIN: u64 = 1_000;

impl World {
    /// Plans a deed.
    pub fn act(&mut self, at: u64, act: Act) {
        self.acts.push(act);
        let index = self.acts.len() as u32 - 1;
        self.plan(at.max(self.now), Event::Act(index));
    }

    pub(super) fn do_act(&mut self, index: u32) {
        let act = self.acts[index as usize].clone();
        if let Act::Allow(m, task, _) | Act::Weight(m, task, _) | Act::Move(m, task, _) | Act::Kill(m, task) = act {
            let kernel = &self.machines[m.0 as usize].kernel;
            if kernel.task(task).state == State::Dead {
                return;
            }
            if !kernel.changeable(task) {
                return self.plan(self.now + AGAIN, Event::Act(index));
            }
        }
        match act {
            Act::Allow(m, task, mask) => {
                let mask = mask.and(&self.machines[m.0 as usize].kernel.topo.all);
                if !mask.is_empty() {
                    self.change(m, task, |kernel| kernel.set_allowed(task, mask));
                }
            }
            Act::Weight(m, task, weight) => self.change(m, task, |kernel| kernel.set_weight(task, weight)),
            Act::Move(m, task, group) => self.change(m, task, |kernel| kernel.set_group(task, group)),
            Act::GroupWeight(m, group, weight) => {
                self.enter(m, 0);
                self.machines[m.0 as usize].kernel.set_group_weight(group, weight);
                self.leave(m, 0);
            }
            Act::Fork(m, group, weight, steps) => {
                self.add_task(m, Self::spec(group, weight, None), &steps, self.now);
            }
            Act::Kill(m, task) => self.kill(m, task),
            Act::Attach(m) => self.attach(m),
            Act::Detach(m) => self.detach(m),
            Act::Bypass(m, on) => self.bypass(m, on),
            Act::Hotplug(m, cpu, online) => self.hotplug(m, cpu, online),
            Act::Lie(m) => self.lie(m),
        }
    }

    /// Changes a task from outside: whoever runs on its CPU may have to make way.
    fn change(&mut self, m: MachineId, task: TaskId, change: impl FnOnce(&mut crate::kernel::Kernel)) {
        let cpu = self.machines[m.0 as usize].kernel.task(task).cpu;
        let paused = self.pause(m, cpu);
        self.enter(m, cpu);
        change(&mut self.machines[m.0 as usize].kernel);
        self.leave(m, cpu);
        if paused {
            self.preempt_point(m, cpu);
        } else if self.machines[m.0 as usize].kernel.cpu(cpu).need_resched {
            self.pend(m, cpu, super::Irq::Resched, None);
        }
    }

    fn kill(&mut self, m: MachineId, task: TaskId) {
        let machine = &mut self.machines[m.0 as usize];
        let state = &mut machine.tasks[task.0 as usize];
        if state.vcpu.is_some()
            || state.preempt > 0
            || !state.mutexes.is_empty()
            || state.kernel_tries.is_busy()
            || !matches!(state.mode, Mode::Works | Mode::Between)
            || machine.rcu.waits(task)
        {
            return;
        }
        // Whatever it is at ends as it does; then it exits.
        state.steps = [Step::Exit].into();
        state.at = 0;
        if machine.kernel.task(task).state == State::Sleeping {
            state.timer_turn += 1;
            state.timer_at = None;
            for semaphore in machine.semaphores.values_mut() {
                semaphore.waiters.retain(|waiter| *waiter != task);
            }
            self.wake(m, 0, task, false);
        }
    }

    /// The task has left its CPU for the last time.
    pub(super) fn ended(&mut self, m: MachineId, task: TaskId) {
        self.machines[m.0 as usize].kernel.end(task);
    }

    fn lie(&mut self, m: MachineId) {
        if m == HOST || !self.vms[m.0 as usize - 1].paired {
            return;
        }
        for cpu in 0..self.machines[m.0 as usize].kernel.topo.cpus() {
            let seed = self.rng.next();
            let guest = &mut self.machines[m.0 as usize];
            guest.preempt_words[cpu as usize] = if seed & 1 == 0 { seed } else { seed >> 62 };
            guest.kernel.object_call(|object| {
                // SAFETY: the function has this type in native/guest.c; the guest has this CPU.
                unsafe {
                    let lie: unsafe extern "C" fn(u32, u64) = object.function("sim_lie");
                    lie(cpu, seed);
                }
            });
        }
    }
}
