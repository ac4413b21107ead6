//! cpu.max under EEVDF, after cfs_bandwidth in fair.c: a group's pool, slices of it on each CPU, tasks of a CPU without
//! any taken off its queue until the period's timer has brought some.
//!
//! Models, not ports: a task is taken off at the next choice of a CPU, not on its way to user mode; the slack timer runs
//! whenever time comes back.

use super::super::group::GroupId;
use super::super::mask::CpuMask;
use super::super::{Effect, Kernel, TaskId, task::State};

/// `sysctl_sched_cfs_bandwidth_slice`, and `cfs_bandwidth_slack_period`.
const SLICE: i64 = 5_000_000;
/// `min_cfs_rq_runtime`.
const KEPT: i64 = 1_000_000;

/// `struct cfs_bandwidth`, and `struct cfs_rq` as far as limits go, by CPU.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct FairBandwidth {
    runtime: i64,
    period_ends: u64,
    /// The timer is under way for this time; 0: it is not.
    timer: u64,
    /// `runtime_remaining`.
    remaining: Vec<i64>,
    throttled: CpuMask,
}

impl Kernel {
    fn bandwidth(&mut self, group: GroupId) -> &mut FairBandwidth {
        &mut self.groups[group.0 as usize].bandwidth
    }

    /// `tg_set_cfs_bandwidth()`.
    pub(in super::super) fn fair_set_bandwidth(&mut self, group: GroupId) {
        let (cpus, now) = (self.topo.cpus(), self.now);
        let max = self.groups[group.0 as usize].max;
        let b = self.bandwidth(group);
        b.remaining = vec![1; cpus as usize];
        if let Some(max) = max {
            b.runtime = (b.runtime + max.quota as i64).min((max.quota + max.burst) as i64);
            b.period_ends = now + max.period;
        }
        for cpu in 0..cpus {
            self.unthrottle_cfs_rq(group, cpu);
        }
        if let Some(max) = max {
            self.start_cfs_bandwidth(group, now + max.period);
        }
    }

    fn start_cfs_bandwidth(&mut self, group: GroupId, at: u64) {
        let b = self.bandwidth(group);
        if b.timer == 0 || at < b.timer {
            b.timer = at;
            self.out.push(Effect::FairBandwidth { group, at });
        }
    }

    /// `__refill_cfs_bandwidth_runtime()`, for all periods that have ended.
    fn refill(&mut self, group: GroupId) {
        let now = self.now;
        let Some(max) = self.groups[group.0 as usize].max else { return };
        let b = self.bandwidth(group);
        while b.period_ends <= now {
            b.period_ends += max.period;
            b.runtime = (b.runtime + max.quota as i64).min((max.quota + max.burst) as i64);
        }
    }

    /// `account_cfs_rq_runtime()` for all groups of the current task.
    pub(super) fn account_cfs_rq_runtime(&mut self, cpu: u32, curr: TaskId, ran: u64) {
        let groups: Vec<_> = self.limited_groups(curr).collect();
        for group in groups {
            self.refill(group);
            let b = self.bandwidth(group);
            let left = &mut b.remaining[cpu as usize];
            *left -= ran as i64;
            if *left > 0 || b.throttled.has(cpu) {
                continue;
            }
            // __assign_cfs_rq_runtime().
            let got = (SLICE - *left).min(b.runtime).max(0);
            b.runtime -= got;
            *left += got;
            if *left <= 0 {
                b.throttled.set(cpu, true);
                let ends = b.period_ends;
                self.start_cfs_bandwidth(group, ends);
                self.resched(cpu);
            }
        }
    }

    /// `throttled_hierarchy()`.
    pub(in super::super) fn fair_throttled(&self, id: TaskId, cpu: u32) -> bool {
        self.limited_groups(id).any(|group| self.groups[group.0 as usize].bandwidth.throttled.has(cpu))
    }

    /// Off the queue, runnable all the same.
    pub(in super::super) fn fair_limbo(&mut self, id: TaskId, cpu: u32) {
        self.fair_queue_mut(cpu).limbo.push(id);
        self.account_wait(id, true);
    }

    /// Takes off a CPU's queue whoever has no time left there: `throttle_cfs_rq_work()`.
    pub(super) fn fair_throttle(&mut self, cpu: u32) {
        let curr = self.cpu(cpu).curr.filter(|task| self.task(*task).fair.active > 0);
        let all = self.fair_queue(cpu).tasks.iter().copied().chain(curr);
        let throttled: Vec<_> = all.filter(|id| self.fair_throttled(*id, cpu)).collect();
        for id in throttled {
            let since = self.task(id).waits_since;
            self.fair_dequeue(id, false);
            self.fair_limbo(id, cpu);
            if since.is_some() {
                self.task_mut(id).waits_since = since;
            }
        }
    }

    /// `unthrottle_cfs_rq()`.
    fn unthrottle_cfs_rq(&mut self, group: GroupId, cpu: u32) {
        if !self.bandwidth(group).throttled.take(cpu) {
            return;
        }
        let limbo = std::mem::take(&mut self.fair_queue_mut(cpu).limbo);
        let (back, still): (Vec<_>, Vec<_>) = limbo.into_iter().partition(|id| !self.fair_throttled(*id, cpu));
        self.fair_queue_mut(cpu).limbo = still;
        for id in back {
            debug_assert_eq!(self.task(id).state, State::Runnable);
            self.fair_enqueue(id);
            self.fair_wakeup_preempt(cpu, id);
            if self.cpu(cpu).next_idle {
                self.cpu_mut(cpu).next_idle = false;
                self.resched(cpu);
            }
        }
    }

    /// `sched_cfs_period_timer()` and `sched_cfs_slack_timer()`, with `distribute_cfs_runtime()`.
    pub fn fair_bandwidth_timer(&mut self, group: GroupId, at: u64) {
        if self.bandwidth(group).timer != at || self.groups[group.0 as usize].max.is_none() {
            return;
        }
        self.bandwidth(group).timer = 0;
        self.refill(group);
        for cpu in self.bandwidth(group).throttled.clone().iter() {
            let b = self.bandwidth(group);
            if b.runtime <= 0 {
                continue;
            }
            let got = (1 - b.remaining[cpu as usize]).min(b.runtime);
            b.runtime -= got;
            b.remaining[cpu as usize] += got;
            if b.remaining[cpu as usize] > 0 {
                self.unthrottle_cfs_rq(group, cpu);
            }
        }
        let b = self.bandwidth(group);
        if !b.throttled.is_empty() {
            let ends = b.period_ends;
            self.start_cfs_bandwidth(group, ends);
        }
    }

    /// `return_cfs_rq_runtime()`: the task has left the queue; was it the last of its group there?
    pub(super) fn return_cfs_rq_runtime(&mut self, cpu: u32, id: TaskId) {
        let groups: Vec<_> = self.limited_groups(id).collect();
        for group in groups {
            let curr = self.cpu(cpu).curr.filter(|task| self.task(*task).fair.active > 0);
            let mut here = self.fair_queue(cpu).tasks.iter().copied().chain(curr);
            if here.any(|other| self.limited_groups(other).any(|of| of == group)) {
                continue;
            }
            let now = self.now;
            let b = self.bandwidth(group);
            let slack = b.remaining[cpu as usize] - KEPT;
            if slack <= 0 {
                continue;
            }
            b.runtime += slack;
            b.remaining[cpu as usize] -= slack;
            if b.runtime > SLICE && !b.throttled.is_empty() {
                self.start_cfs_bandwidth(group, now + SLICE as u64);
            }
        }
    }
}
