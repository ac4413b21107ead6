//! Where a task goes: the choice at wake-up, after select_task_rq_fair(), and balancing, after load_balance(), but by what is
//! runnable now instead of by averages.

use std::ops::Range;

use super::loads::Loads;
use super::{Kernel, TaskId};
use crate::kernel::mask::CpuMask;
use crate::program::SEC;

/// `sysctl_sched_migration_cost`: a task that ran so short ago is hot in its CPU's caches.
const MIGRATION_COST: u64 = 500_000;
/// How often a CPU balances with its cache's others, and with all (`sd->balance_interval` while busy), ns.
const BALANCE_LLC: u64 = 16_000_000;

/// `imbalance_pct` less 100, of a cache's CPUs or more.
const IMBALANCE: u64 = 17;

/// Whom a task wakes: `p->last_wakee`, `p->wakee_flips`, `p->wakee_flip_decay_ts`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wakees {
    last: Option<TaskId>,
    flips: u32,
    decayed_at: u64,
}

impl Wakees {
    /// `record_wakee()`.
    fn record(&mut self, id: TaskId, now: u64) {
        if now > self.decayed_at + SEC {
            self.flips /= 2;
            self.decayed_at = now;
        }
        if self.last.replace(id) != Some(id) {
            self.flips += 1;
        }
    }

    /// `wake_wide()`: one wakes many and the other some, more than a cache's CPUs take.
    fn wide(a: u32, b: u32, llc_cpus: u32) -> bool {
        let (slave, master) = (a.min(b), a.max(b));
        slave >= llc_cpus && master >= slave.saturating_mul(llc_cpus)
    }
}

impl Kernel {
    pub(super) fn idle(&self, cpu: u32) -> bool {
        let c = self.cpu(cpu);
        self.online.has(cpu) && c.curr.is_none() && c.nr_running == 0 && !c.locked && !c.ttwu_pending
    }

    /// `select_task_rq_fair()` for a wake-up.
    pub(in super::super) fn fair_select(&mut self, id: TaskId, sync: bool) -> u32 {
        let (here, prev) = (self.this_cpu, self.task(id).cpu);
        self.loads();
        let wide = self.record_wakee(id);
        let allowed = &self.task(id).allowed;
        if self.task(id).switches == 0 {
            return self.idlest(allowed).unwrap_or(prev);
        }
        let target = if !wide && allowed.has(here) { self.wake_affine(id, here, prev, sync) } else { prev };
        let target = if allowed.has(target) { target } else { allowed.iter().next().unwrap_or(prev) };
        self.select_idle_sibling(allowed, prev, target)
    }

    /// The code that runs on this CPU wakes a task. Returns whether the two wake so many that they had better not meet.
    fn record_wakee(&mut self, id: TaskId) -> bool {
        let (now, here) = (self.now, self.this_cpu);
        let Some(waker) = self.cpu(here).curr else { return false };
        self.task_mut(waker).fair.wakees.record(id, now);
        let flips = |id: TaskId| self.task(id).fair.wakees.flips;
        Wakees::wide(flips(waker), flips(id), self.topo.llc_cpus(here).len() as u32)
    }

    /// `sched_balance_find_dst_cpu()`: a new task goes to the idlest CPU of all.
    fn idlest(&self, allowed: &CpuMask) -> Option<u32> {
        let loads = self.loads_now();
        if let Some(cpu) = loads.idle.iter_and(allowed).next() {
            return Some(cpu);
        }
        if self.topo.all.within(allowed) && self.topo.all.within(&self.online) {
            return Some(loads.idlest());
        }
        allowed.iter_and(&self.online).min_by_key(|cpu| (self.fair_load(*cpu), *cpu))
    }

    /// `wake_affine()`: the waker's CPU or the one before, as the place to search from.
    fn wake_affine(&self, id: TaskId, here: u32, prev: u32, sync: bool) -> u32 {
        let near = self.topo.llc_of(here) == self.topo.llc_of(prev);
        if self.idle(here) && near {
            return if self.idle(prev) { prev } else { here };
        }
        if sync && self.cpu(here).nr_running == 1 {
            return here;
        }
        if self.idle(prev) {
            return prev;
        }
        // wake_affine_weight().
        let load = |cpu: u32| self.fair_queue(cpu).load.at(self.now);
        let own = self.task(id).fair.load.at(self.now);
        let waker = self.cpu(here).curr.filter(|_| sync).map_or(0, |task| self.task(task).fair.load.at(self.now));
        let Some(load_here) = load(here).checked_sub(waker) else { return here };
        let load_prev = load(prev).saturating_sub(own);
        if (load_here + own) * 100 < load_prev * (100 + IMBALANCE / 2) + u64::from(sync) { here } else { prev }
    }

    /// `select_idle_sibling()`.
    fn select_idle_sibling(&self, allowed: &CpuMask, prev: u32, target: u32) -> u32 {
        if self.idle(target) {
            return target;
        }
        let near = self.topo.llc_of(prev) == self.topo.llc_of(target);
        if near && allowed.has(prev) && self.idle(prev) {
            return prev;
        }
        // From the target on, and from the cache's first CPU after its last.
        let (idle, llc) = (&self.loads_now().idle, self.topo.llc_cpus(target));
        let may = self.topo.llc(target).and(allowed).and(idle);
        let turned = || may.iter().filter(|cpu| *cpu >= target).chain(may.iter().take_while(|cpu| *cpu < target));
        debug_assert!(turned().all(|cpu| llc.contains(&cpu) && self.idle(cpu)));
        if self.topo.smt()
            && let Some(cpu) = turned().find(|cpu| self.topo.core(*cpu).within(idle))
        {
            return cpu;
        }
        turned().next().unwrap_or(target)
    }

    /// `sched_balance_newidle()`: whether a task was fetched.
    pub(super) fn newidle_balance(&mut self, cpu: u32) -> bool {
        if self.cpu(cpu).ttwu_pending {
            return false;
        }
        let (llc, all) = (self.topo.llc_cpus(cpu), 0..self.topo.cpus());
        self.pull(cpu, llc, 1, true) || (self.topo.nr_llcs() > 1 && self.pull(cpu, all, 1, true))
    }

    /// `sched_balance_domains()` of a busy CPU.
    pub(super) fn periodic_balance(&mut self, cpu: u32) {
        // nohz_balancer_kick(): a CPU that idles has no tick, and is told to look.
        let idle = if self.cpu(cpu).nr_running > 1 { self.loads().idle.iter().next() } else { None };
        if let Some(idle) = idle {
            self.resched(idle);
        }
        if self.now < self.fair_queue(cpu).balance_at {
            return;
        }
        self.fair_queue_mut(cpu).balance_at = self.now + BALANCE_LLC;
        let (llc, all) = (self.topo.llc_cpus(cpu), 0..self.topo.cpus());
        let _ = self.pull(cpu, llc, 2, false) || (self.topo.nr_llcs() > 1 && self.pull(cpu, all, 2, false));
    }

    /// The index of loads as it was brought up to date last.
    fn loads_now(&self) -> &Loads {
        &self.fair.as_ref().expect("the machine runs EEVDF").loads
    }

    /// The weights of all that want to run on a CPU.
    pub(super) fn fair_load(&self, cpu: u32) -> u64 {
        self.fair_entities(cpu).map(|se| se.weight).sum()
    }

    /// What the index of loads says, by a look at each CPU: debug builds compare the two.
    fn busiest_of_each(&self, mut from: Range<u32>, but: u32) -> Option<u32> {
        let gives =
            |other: &u32| *other != but && !self.fair_queue(*other).tasks.is_empty() && !self.cpu(*other).locked;
        if from.len() > 64 {
            return self.loads_now().busiest(from, but);
        }
        from.by_ref().filter(gives).max_by_key(|other| (self.fair_load(*other), u32::MAX - *other))
    }

    /// `load_balance()`: a task of the most loaded CPU among `from`, where that runs so many more than this one, and
    /// where the move brings the two nearer to each other.
    fn pull(&mut self, cpu: u32, from: Range<u32>, more: u32, idle: bool) -> bool {
        let (own, load) = (self.cpu(cpu).nr_running, self.fair_load(cpu));
        let busiest = self.loads().busiest(from.clone(), cpu);
        debug_assert_eq!(busiest, self.busiest_of_each(from, cpu));
        let more = if idle { more } else { 0 };
        let Some(busiest) = busiest.filter(|other| self.cpu(*other).nr_running >= own + more) else { return false };
        let apart = self.fair_load(busiest).saturating_sub(load);
        // can_migrate_task(), task_hot(): threads of a core share its caches.
        let near = self.topo.core(cpu).has(busiest);
        let cold = |task: &&TaskId| {
            if self.fair_throttled(**task, cpu) {
                return false;
            }
            let task = self.task(**task);
            let nearer = task.fair.weight < apart;
            task.allowed.has(cpu) && (idle || nearer) && (near || self.now - task.fair.ran_until > MIGRATION_COST)
        };
        let tasks = &self.fair_queue(busiest).tasks;
        let Some(id) = tasks.iter().rev().find(cold).copied() else { return false };
        self.fair_dequeue(id, true);
        self.task_mut(id).cpu = cpu;
        self.fair_enqueue(id);
        true
    }
}
