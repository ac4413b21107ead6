//! Tasks work off their steps.

use std::collections::VecDeque;

use super::lane::ENDLESS;
use super::machine::Mode;
use super::mutex::Tried;
use super::{Event, Irq, MachineId, World};
use crate::kernel::TaskId;
use crate::kernel::mask::CpuMask;
use crate::program::Step;
use crate::trace::{Spin, What};

/// The semaphore that a task sleeps at until it is served; programs number their own from 0 on.
fn own_semaphore(task: TaskId) -> u32 {
    u32::MAX - task.0
}

impl World {
    /// A task was put on a CPU: it goes on where it was.
    pub(super) fn begin(&mut self, m: MachineId, cpu: u32, task: TaskId) {
        let now = self.now;
        let state = self.state_mut(m, task);
        let mode = state.mode;
        if let Some(woken) = state.woken_at.take() {
            state.latencies.push((now - woken).min(u32::MAX.into()) as u32);
            if state.latest.is_none_or(|(from, until)| until - from < now - woken) {
                state.latest = Some((woken, now));
            }
            self.tell(m, cpu, What::Begins { task, late: now - woken });
        }
        match mode {
            Mode::Between => self.next_step(m, cpu, task),
            Mode::Halted => self.unhalt(cpu, task),
            _ => self.resume(m, cpu),
        }
    }

    /// The current task's step is over, or its spinning has come to a mark. The lane is paused.
    pub(super) fn step_over(&mut self, m: MachineId, cpu: u32) {
        let Some(task) = self.curr(m, cpu) else { return };
        match self.state(m, task).mode {
            Mode::SpinsForLock(_) | Mode::SpinsForAnswers(_) | Mode::SpinsAtBarrier(_) => self.spun(m, cpu),
            Mode::SpinsForOwner(_) => self.owner_spun(m, cpu, task),
            Mode::SpinsForMutex(_) => {
                self.state_mut(m, task).tries.spun = true;
                self.next_step(m, cpu, task);
            }
            Mode::Enters => self.guest_enter(cpu, task),
            Mode::Polls => self.sleep_halted(cpu, task),
            Mode::Works => {
                self.state_mut(m, task).at += 1;
                self.next_step(m, cpu, task);
            }
            Mode::Between | Mode::InGuest | Mode::Halted => self.resume(m, cpu),
        }
    }

    /// Begins steps until one takes time. The lane is paused; the task is its current one.
    pub(super) fn next_step(&mut self, m: MachineId, cpu: u32, task: TaskId) {
        // Overheads that were put on the task while it was between steps.
        let mut debt = match self.lane(m, cpu).left {
            ENDLESS => 0,
            left => left,
        };
        let now = self.now;
        for _ in 0..10_000 {
            let state = self.state_mut(m, task);
            let step = state.step();
            state.mode = Mode::Between;
            self.set_left(m, cpu, debt);
            match step {
                Step::Compute(time) | Step::System(time) | Step::Hold(time) => {
                    let left = debt + self.draw(m, task, time);
                    self.work(m, cpu, task, left);
                    return self.preempt_point(m, cpu);
                }
                Step::Sleep(time) => {
                    let ns = self.draw(m, task, time);
                    return self.sleep_until(m, cpu, task, self.now + ns);
                }
                Step::Until(period) => return self.sleep_until(m, cpu, task, (self.now / period + 1) * period),
                Step::Wait(semaphore) => {
                    if self.take(m, cpu, task, semaphore) {
                        return;
                    }
                    self.burden(m, cpu, self.costs.syscall);
                }
                Step::Served => {
                    if self.take(m, cpu, task, own_semaphore(task)) {
                        return;
                    }
                }
                Step::Enlist(desk) => {
                    self.machines[m.0 as usize].desks.entry(desk).or_default().push_back(task);
                }
                Step::Serve(desk) => {
                    let first = self.machines[m.0 as usize].desks.get_mut(&desk).and_then(VecDeque::pop_front);
                    self.burden(m, cpu, self.costs.syscall);
                    if first.is_some_and(|first| self.post(m, cpu, own_semaphore(first), step)) {
                        return self.has_woken(m, cpu, task);
                    }
                }
                Step::Post(semaphore) | Step::PostSync(semaphore) | Step::PostNewest(semaphore) => {
                    self.burden(m, cpu, self.costs.syscall);
                    if self.post(m, cpu, semaphore, step) {
                        return self.has_woken(m, cpu, task);
                    }
                }
                Step::Lock(lock) => {
                    if self.lock(m, cpu, task, lock) {
                        return;
                    }
                }
                Step::LockQueue(semaphore, lock) => {
                    let sleepers = self.machines[m.0 as usize].semaphores.get(&semaphore);
                    let wakes = sleepers.is_some_and(|semaphore| !semaphore.waiters.is_empty());
                    let slept = std::mem::take(&mut self.state_mut(m, task).slept);
                    if (wakes || slept) && self.lock(m, cpu, task, lock) {
                        return;
                    }
                }
                Step::Unlock(lock) => self.unlock(m, cpu, task, lock),
                Step::UnlockQueue(lock) => {
                    if self.machines[m.0 as usize].locks.get(&lock).is_some_and(|lock| lock.owner == Some(task)) {
                        self.unlock(m, cpu, task, lock);
                    }
                }
                Step::Mutex(_) | Step::CpuMutex(_) => match self.try_mutex(m, cpu, task, step) {
                    Tried::Taken => {}
                    Tried::Spins(mutex) => {
                        self.state_mut(m, task).mode = Mode::SpinsForMutex(mutex);
                        self.tell(m, cpu, What::Spins { task, on: Spin::Mutex(mutex) });
                        self.set_left(m, cpu, debt + self.costs.mutex_spin);
                        return self.preempt_point(m, cpu);
                    }
                    Tried::Sleeps => return self.block(m, cpu, task),
                    Tried::Yields => unreachable!("only of mutexes of the kernel"),
                },
                Step::KernelMutex(number) => match self.try_kernel_mutex(m, cpu, task, number) {
                    Tried::Taken => {}
                    Tried::Spins(mutex) => {
                        self.state_mut(m, task).mode = Mode::SpinsForOwner(mutex);
                        self.tell(m, cpu, What::Spins { task, on: Spin::Mutex(mutex) });
                        let mark = self.owner_mark(m, task, mutex);
                        self.set_left(m, cpu, mark);
                        return self.resume(m, cpu);
                    }
                    Tried::Sleeps => return self.block(m, cpu, task),
                    Tried::Yields => {
                        self.state_mut(m, task).mode = Mode::Between;
                        return self.schedule(m, cpu);
                    }
                },
                Step::KernelRelease(number) => {
                    if self.release_kernel_mutex(m, cpu, task, number) {
                        return self.has_woken(m, cpu, task);
                    }
                }
                Step::Release => {
                    if self.release_mutex(m, cpu, task) {
                        return self.has_woken(m, cpu, task);
                    }
                }
                Step::Barrier(barrier, parties) => {
                    let waiting = self.machines[m.0 as usize].barriers.entry(barrier).or_default();
                    waiting.push(task);
                    if waiting.len() < parties as usize {
                        return self.spin(m, cpu, task, Mode::SpinsAtBarrier(barrier));
                    }
                    for other in std::mem::take(waiting).into_iter().filter(|other| *other != task) {
                        self.spin_over(m, other);
                    }
                }
                Step::Broadcast | Step::Membarrier => {
                    let kernel = &self.machines[m.0 as usize].kernel;
                    let process = |task: TaskId| kernel.task(task).tgid;
                    let mut others = kernel.online.clone();
                    others.set(cpu, false);
                    if step == Step::Membarrier {
                        let runs = |cpu: &u32| kernel.cpu(*cpu).curr.is_some_and(|curr| process(curr) == process(task));
                        others = others.iter().filter(runs).collect();
                    }
                    if !others.is_empty() {
                        self.preempt_add(m, cpu, task, true);
                        return self.broadcast(m, cpu, task, &others);
                    }
                }
                Step::Synchronize => {
                    self.state_mut(m, task).at += 1;
                    self.synchronize(m, task);
                    return self.block(m, cpu, task);
                }
                Step::Yield => {
                    self.state_mut(m, task).at += 1;
                    self.enter(m, cpu);
                    self.machines[m.0 as usize].kernel.yield_now(cpu);
                    self.leave(m, cpu);
                    return self.schedule(m, cpu);
                }
                Step::Begin => self.state_mut(m, task).began = Some(now),
                Step::Done => {
                    let state = self.state_mut(m, task);
                    state.ops += 1;
                    state.timed += state.began.take().map_or(0, |began| now - began);
                }
                Step::Exit => {
                    self.state_mut(m, task).exits = true;
                    return self.block(m, cpu, task);
                }
                Step::Guest => {
                    self.state_mut(m, task).mode = Mode::Enters;
                    self.set_left(m, cpu, debt + self.costs.entry);
                    return self.preempt_point(m, cpu);
                }
            }
            debt = self.lane(m, cpu).left;
            self.state_mut(m, task).at += 1;
            // preempt_enable(), the return from a system call: points where the scheduler may be called.
            if self.machines[m.0 as usize].kernel.cpu(cpu).need_resched && self.preemptible(m, cpu) {
                return self.schedule(m, cpu);
            }
        }
        panic!("the program of {task:?} takes no time");
    }

    fn work(&mut self, m: MachineId, cpu: u32, task: TaskId, left: u64) {
        self.state_mut(m, task).mode = Mode::Works;
        self.set_left(m, cpu, left);
    }

    fn sleep_until(&mut self, m: MachineId, cpu: u32, task: TaskId, at: u64) {
        let state = self.state_mut(m, task);
        state.at += 1;
        state.timer_turn += 1;
        state.timer_at = Some(at);
        let turn = state.timer_turn;
        self.plan(at, Event::Sleep { m, task, turn });
        self.block(m, cpu, task);
    }

    /// Takes one from a semaphore, or sleeps until there is one: then returns true.
    fn take(&mut self, m: MachineId, cpu: u32, task: TaskId, semaphore: u32) -> bool {
        let semaphore = self.machines[m.0 as usize].semaphores.entry(semaphore).or_default();
        let sleeps = semaphore.count == 0;
        if sleeps {
            semaphore.waiters.push_back(task);
        } else {
            semaphore.count -= 1;
        }
        let state = self.state_mut(m, task);
        state.slept = sleeps;
        if sleeps {
            state.at += 1;
            self.block(m, cpu, task);
        }
        sleeps
    }

    fn block(&mut self, m: MachineId, cpu: u32, task: TaskId) {
        self.state_mut(m, task).mode = Mode::Between;
        self.set_left(m, cpu, 0);
        self.machines[m.0 as usize].kernel.block(cpu);
        self.schedule(m, cpu);
    }

    /// Gives one to a semaphore, as the step does. Returns whether somebody was woken.
    fn post(&mut self, m: MachineId, cpu: u32, semaphore: u32, step: Step) -> bool {
        let semaphore = self.machines[m.0 as usize].semaphores.entry(semaphore).or_default();
        let waiter = match step {
            Step::PostNewest(_) => semaphore.waiters.pop_back(),
            _ => semaphore.waiters.pop_front(),
        };
        let Some(waiter) = waiter else {
            semaphore.count += 1;
            return false;
        };
        self.wake(m, cpu, waiter, matches!(step, Step::PostSync(_)));
        true
    }

    /// A task whose step has woken another: it goes on when that one is in its queue.
    fn has_woken(&mut self, m: MachineId, cpu: u32, task: TaskId) {
        let left = self.lane(m, cpu).left + self.costs.wake_window;
        self.work(m, cpu, task, left);
        self.preempt_point(m, cpu);
    }

    /// Takes a spinning lock, or begins to spin for it: then returns true.
    fn lock(&mut self, m: MachineId, cpu: u32, task: TaskId, lock: u32) -> bool {
        self.preempt_add(m, cpu, task, true);
        let state = self.machines[m.0 as usize].locks.entry(lock).or_default();
        if state.owner.is_some() {
            state.waiters.push_back(task);
            self.spin(m, cpu, task, Mode::SpinsForLock(lock));
            return true;
        }
        state.owner = Some(task);
        self.tell(m, cpu, What::Takes { task, lock });
        false
    }

    fn unlock(&mut self, m: MachineId, cpu: u32, task: TaskId, lock: u32) {
        self.tell(m, cpu, What::Gives { lock });
        let state = self.machines[m.0 as usize].locks.entry(lock).or_default();
        state.owner = state.waiters.pop_front();
        if let Some(next) = state.owner {
            self.tell(m, cpu, What::Takes { task: next, lock });
            self.spin_over(m, next);
        }
        self.preempt_add(m, cpu, task, false);
    }

    fn spin(&mut self, m: MachineId, cpu: u32, task: TaskId, mode: Mode) {
        self.state_mut(m, task).mode = mode;
        if let Some(on) = super::record::spins(mode) {
            self.tell(m, cpu, What::Spins { task, on });
        }
        let mark = self.spin_mark(m);
        self.set_left(m, cpu, mark);
        self.resume(m, cpu);
    }

    fn broadcast(&mut self, m: MachineId, cpu: u32, task: TaskId, others: &CpuMask) {
        self.state_mut(m, task).mode = Mode::SpinsForAnswers(others.count() as u32);
        self.tell(m, cpu, What::Spins { task, on: Spin::Answers });
        for other in others.iter() {
            self.send(m, cpu, other, Irq::Call(task));
        }
        let mark = self.spin_mark(m);
        self.set_left(m, cpu, mark);
        self.resume(m, cpu);
    }

    /// What the task spins for has come. If it runs, it goes on; else it will when it runs again.
    pub(super) fn spin_over(&mut self, m: MachineId, task: TaskId) {
        let broadcast = matches!(self.state(m, task).mode, Mode::SpinsForAnswers(_));
        let cpu = self.machines[m.0 as usize].kernel.task(task).cpu;
        let runs = self.curr(m, cpu) == Some(task);
        self.tell(m, cpu, What::SpinOver(task));
        if broadcast {
            self.preempt_add(m, cpu, task, false);
        }
        let handover = self.costs.handover;
        let state = self.state_mut(m, task);
        state.mode = Mode::Works;
        state.left = handover;
        if runs && !matches!(self.lane(m, cpu).segment, super::lane::Segment::Switch(_)) {
            self.pause(m, cpu);
            self.set_left(m, cpu, self.costs.handover);
            self.resume(m, cpu);
        }
    }
}
