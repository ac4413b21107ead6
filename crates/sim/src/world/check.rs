//! What must hold at every moment.

use super::{MachineId, World};
use crate::kernel::TaskId;

/// Something that must hold did not.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Violation {
    /// When, ns.
    pub at: u64,
    /// When what ends in it began, ns: a wait, for instance.
    pub since: u64,
    /// The machine: 0 is the host.
    pub machine: u16,
    /// Which rule: `idle`, `behind`, `wait`, `watchdog`, `failed`, `share`, `queue`, `budget`.
    pub rule: &'static str,
    /// In words.
    pub what: String,
}

/// The rules and their bounds.
#[derive(Clone, Debug)]
pub struct Checks {
    /// A task may wait so long while a CPU that it may use idles, ns: `idle`, or `behind` where another one was sent to
    /// the same CPU and came first.
    pub idle_bound: u64,
    /// A runnable task may wait so long, ns.
    pub wait_bound: u64,
    /// Whether the first violation ends the run.
    pub stop: bool,
    /// Whether the host is held to `idle_bound`.
    pub host: bool,
    /// Whether the guests are held to `idle_bound`, too.
    pub guests: bool,
    /// Whether queues and budgets are looked at, now and then.
    pub queues: bool,
    /// Violations so far; the first hundred.
    pub found: Vec<Violation>,
    /// How many there were of each rule.
    pub counts: std::collections::BTreeMap<&'static str, u64>,
    /// The longest that a task waited beside an idle CPU, ns.
    pub longest_idle: u64,
    /// The same in a scheduler's queue alone, by rule `idle`, ns.
    pub longest_queued: u64,
}

impl Default for Checks {
    fn default() -> Self {
        Self {
            idle_bound: 20_000,
            wait_bound: 2_000_000_000,
            stop: false,
            host: true,
            guests: false,
            queues: false,
            found: Vec::new(),
            counts: Default::default(),
            longest_idle: 0,
            longest_queued: 0,
        }
    }
}

impl Checks {
    pub(super) fn stops(&self) -> bool {
        self.stop && !self.counts.is_empty()
    }

    /// How often a task waited for too long while a CPU idled, wherever it waited.
    pub fn beside_idle(&self) -> u64 {
        ["idle", "behind"].iter().filter_map(|rule| self.counts.get(rule)).sum()
    }

    pub(super) fn add(&mut self, at: u64, machine: MachineId, rule: &'static str, what: impl FnOnce() -> String) {
        self.add_since((at, at), machine, rule, what);
    }

    /// What began, and was seen, at these times.
    fn add_since(
        &mut self,
        (since, at): (u64, u64),
        machine: MachineId,
        rule: &'static str,
        what: impl FnOnce() -> String,
    ) {
        *self.counts.entry(rule).or_default() += 1;
        if self.found.len() < 100 {
            self.found.push(Violation { at, since, machine: machine.0, rule, what: what() });
        }
    }
}

impl Checks {
    /// Somebody missed its share.
    pub(crate) fn share(&mut self, at: u64, what: impl FnOnce() -> String) {
        self.add(at, super::HOST, "share", what);
    }
}

/// How many events pass between two looks at the queues.
const LOOKS: u64 = 64;

impl World {
    /// The rules of queues and budgets.
    pub(super) fn check_queues(&mut self) {
        if !self.checks.queues || !self.events.is_multiple_of(LOOKS) {
            return;
        }
        for m in 0..self.machines.len() {
            if let Some(what) = self.machines[m].kernel.check_queues() {
                self.checks.add(self.now, MachineId(m as u16), "queue", || what);
            }
        }
        if self.events.is_multiple_of(LOOKS * LOOKS) {
            self.machines[0].kernel.now = self.now;
            if let Some(what) = self.machines[0].kernel.check_budgets() {
                self.checks.add(self.now, super::HOST, "budget", || what);
            }
        }
    }

    /// Whether the rule of idle CPUs holds for a machine.
    fn idle_rule(&self, m: MachineId) -> bool {
        if m.0 == 0 { self.checks.host } else { self.checks.guests }
    }

    /// A task begins to run: did a CPU idle while it waited?
    pub(super) fn check_start(&mut self, m: MachineId, task: TaskId, cpu: u32) {
        let kernel = &self.machines[m.0 as usize].kernel;
        // Who may not have more waits while CPUs idle, and as long as its limit says.
        let Some(since) = kernel.task(task).waits_since.filter(|_| !kernel.is_limited(task)) else { return };
        let waited = self.now - since;
        if waited > self.checks.wait_bound {
            self.checks.add(self.now, m, "wait", || format!("{task:?} waited {waited} ns for CPU {cpu}"));
        }
        if !self.idle_rule(m) || waited <= self.checks.idle_bound {
            return;
        }
        let mut longest = None;
        for other in kernel.task(task).allowed.iter_and(&kernel.vacant) {
            if other != cpu && kernel.online.has(other) {
                let idle_since = kernel.cpu(other).idle_since;
                if longest.is_none_or(|(longest, _)| idle_since < longest) {
                    longest = Some((idle_since, other));
                }
                if idle_since <= since {
                    // None can be worse: a machine of which much idles is not looked through.
                    break;
                }
            }
        }
        if let Some((idle_since, other)) = longest {
            self.checked_idle(m, task, other, since.max(idle_since));
        }
    }

    /// A CPU stops to idle: did a task wait for it?
    pub(super) fn check_busy(&mut self, m: MachineId, cpu: u32) {
        if !self.idle_rule(m) {
            return;
        }
        let kernel = &self.machines[m.0 as usize].kernel;
        let idle_since = kernel.cpu(cpu).idle_since;
        if self.now - idle_since <= self.checks.idle_bound {
            return;
        }
        if let Some((since, task)) = self.machines[m.0 as usize].kernel.longest_waiting(cpu) {
            self.checked_idle(m, task, cpu, since.max(idle_since));
        }
    }

    /// A task has waited while a CPU idled, both since then: for a scheduler's queue, from which that CPU might have taken
    /// it, and behind another task in a CPU's local queue, where only that CPU has it.
    fn checked_idle(&mut self, m: MachineId, task: TaskId, cpu: u32, since: u64) {
        let now = self.now;
        let local_at = self.machines[m.0 as usize].kernel.task(task).scx_local_at();
        let local = local_at.map_or(now, |at| at.clamp(since, now));
        self.checks.longest_idle = self.checks.longest_idle.max(now - since);
        self.checks.longest_queued = self.checks.longest_queued.max(local - since);
        for (rule, from, until) in [("idle", since, local), ("behind", local, now)] {
            if until - from > self.checks.idle_bound {
                let what = || format!("{task:?} waited {} ns while CPU {cpu} idled", until - from);
                self.checks.add_since((from, until), m, rule, what);
            }
        }
    }

    /// At the end of a run: those who still wait.
    pub(super) fn check_end(&mut self) {
        for m in 0..self.machines.len() {
            let id = MachineId(m as u16);
            for cpu in 0..self.machines[m].kernel.topo.cpus() {
                let kernel = &self.machines[m].kernel;
                if kernel.cpu(cpu).curr.is_none() && kernel.online.has(cpu) {
                    self.check_busy(id, cpu);
                }
            }
            let kernel = &self.machines[m].kernel;
            let waits: Vec<_> = kernel
                .tasks
                .iter()
                .filter(|task| !kernel.is_limited(task.id))
                .filter_map(|task| task.waits_since.map(|since| (task.id, self.now - since)))
                .filter(|(_, waited)| *waited > self.checks.wait_bound)
                .collect();
            for (task, waited) in waits {
                self.checks.add(self.now, id, "wait", || format!("{task:?} still waits after {waited} ns"));
            }
            if let Some(why) = self.machines[m].kernel.failed.clone() {
                self.checks.add(self.now, id, "failed", || why);
            }
        }
    }

    /// The kernel's own watchdog.
    pub(super) fn watchdog(&mut self) {
        for m in 0..self.machines.len() {
            let now = self.now;
            self.machines[m].kernel.now = now;
            if let Some(stall) = self.machines[m].kernel.check_timeouts() {
                self.checks.add(now, MachineId(m as u16), "watchdog", || {
                    format!("{:?} failed to run for {} ms", stall.task, stall.waited / 1_000_000)
                });
            }
        }
    }
}
