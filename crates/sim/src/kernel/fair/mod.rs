//! A model of the kernel's own scheduler, EEVDF, after kernel/sched/fair.c of Linux 7.3: eligible tasks by virtual
//! deadline, lag kept across sleeps, run to parity, wake-up preemption, buddies of directed yields. As in 7.3 each CPU
//! has one flat queue, in which a task weighs its part of its groups' weights.
//!
//! Models, not ports: delayed dequeue (a sleeper's negative lag decays as its queue goes on), group shares (by the sums
//! of runnable weights, not by PELT's averages), balancing (by weights and counts of tasks, see `place`). Not modelled: NUMA
//! balancing, cache-aware placement, capacity, hrtick.

mod bandwidth;
mod loads;
mod pelt;
mod place;

pub(super) use bandwidth::FairBandwidth;

use super::group::GroupId;
use super::looks::looked;
use super::{Kernel, TaskId};
use crate::costs::TICK_PERIOD;
use loads::{Loads, Standing};
use pelt::Average;
use place::Wakees;

/// `NICE_0_LOAD`, for `cpu.weight` 100; in units of 1/1024 of that weight, so that parts of groups do not vanish.
const NICE_0: u64 = 100 << 10;

/// One task.
#[derive(Clone, Debug, Default)]
pub(super) struct FairTask {
    vruntime: i64,
    deadline: i64,
    vlag: i64,
    vprot: i64,
    /// `deadline` is relative to `vruntime`: kept while it is off the queue.
    relative: bool,
    /// Its part of the machine: `se->h_load.weight`.
    weight: u64,
    /// The weight that its group counts it with; 0: it is not runnable.
    active: u64,
    /// Where its queue's average stood when it left, and which queue that was.
    left_at: (u32, i64),
    /// When it last left a CPU, ns: what is hot in that CPU's caches.
    ran_until: u64,
    /// `se->avg.load_avg`, and the CPU whose queue it is a part of; `None`: it has never been runnable.
    load: Average,
    load_cpu: Option<u32>,
    wakees: Wakees,
}

/// One CPU's queue: tasks that wait; the current one is not in it.
#[derive(Clone, Debug, Default)]
pub(super) struct FairQueue {
    tasks: Vec<TaskId>,
    /// `cfs_rq->next`.
    buddy: Option<TaskId>,
    /// Where its average stood last: what an empty queue goes on from.
    zero: i64,
    balance_at: u64,
    /// `cfs_rq->avg.load_avg`: of those that were runnable here last, whether or not they sleep now.
    load: Average,
    /// Tasks whose groups have no time left here: `cfs_rq->throttled_limbo_list` of all of them.
    limbo: Vec<TaskId>,
}

/// The class.
#[derive(Debug, Default)]
pub(super) struct Fair {
    queues: Vec<FairQueue>,
    loads: Loads,
    slice: i64,
}

impl FairTask {
    /// The lag of one that sleeps: where it is negative, it would have stayed on its queue until that queue's average had
    /// come as far (delayed dequeue).
    fn lag_asleep(&self, cpu: u32, average: i64) -> i64 {
        match self.vlag {
            lag if lag >= 0 => lag,
            lag if self.left_at.0 == cpu => (lag + (average - self.left_at.1).max(0)).min(0),
            _ => 0,
        }
    }
}

impl super::Task {
    /// Runnable, and off its queue until its group has time again.
    pub(super) fn is_in_limbo(&self) -> bool {
        self.fair.active == 0
    }
}

impl Fair {
    /// `sysctl_sched_base_slice`: 0.7 ms times 1 + log2 of the CPUs, of which 8 count.
    pub(super) fn new(cpus: u32) -> Self {
        let factor = 1 + i64::from(cpus.clamp(1, 8).ilog2());
        Self { queues: vec![FairQueue::default(); cpus as usize], loads: Loads::new(cpus), slice: 700_000 * factor }
    }
}

impl Kernel {
    fn fair_queue(&self, cpu: u32) -> &FairQueue {
        &self.fair.as_ref().expect("the machine runs EEVDF").queues[cpu as usize]
    }

    fn fair_queue_mut(&mut self, cpu: u32) -> &mut FairQueue {
        &mut self.fair.as_mut().expect("the machine runs EEVDF").queues[cpu as usize]
    }

    /// As [`Kernel::scx_queued_twice`].
    pub(super) fn fair_queued_twice(&self) -> Option<String> {
        let queues = &self.fair.as_ref()?.queues;
        let mut seen = vec![false; self.tasks.len()];
        let mut all = queues.iter().flat_map(|queue| queue.tasks.iter().chain(&queue.limbo));
        let twice = all.find(|id| std::mem::replace(&mut seen[id.0 as usize], true))?;
        Some(format!("{twice:?} is in two queues"))
    }

    fn base_slice(&self) -> i64 {
        self.fair.as_ref().expect("the machine runs EEVDF").slice
    }

    /// Something has changed of who runs, waits, or is about to on a CPU.
    pub(super) fn fair_touch(&mut self, cpu: u32) {
        if let Some(fair) = &mut self.fair {
            fair.loads.changed.set(cpu, true);
        }
    }

    /// The index of loads, brought up to date.
    fn loads(&mut self) -> &mut Loads {
        let changed = std::mem::take(&mut self.fair.as_mut().expect("the machine runs EEVDF").loads.changed);
        for cpu in changed.iter() {
            let (load, gives) = (self.fair_load(cpu), !self.fair_queue(cpu).tasks.is_empty() && !self.cpu(cpu).locked);
            let is = Standing { load, gives, idle: self.idle(cpu) };
            self.fair.as_mut().expect("seen above").loads.put(cpu, is);
        }
        &mut self.fair.as_mut().expect("seen above").loads
    }

    /// The current task where it is runnable, and those that wait.
    fn fair_entities(&self, cpu: u32) -> impl Iterator<Item = &FairTask> {
        let curr = self.cpu(cpu).curr.filter(|task| self.task(*task).fair.active > 0);
        looked(self.fair_queue(cpu).tasks.len() + 1);
        self.fair_queue(cpu).tasks.iter().copied().chain(curr).map(|task| &self.task(task).fair)
    }

    /// `avg_vruntime()`, and the sum of the weights.
    fn avg_vruntime(&self, cpu: u32) -> (i64, u64) {
        let zero = self.fair_queue(cpu).zero;
        let (mut sum, mut load) = (0_i128, 0_u64);
        for se in self.fair_entities(cpu) {
            sum += i128::from(se.vruntime - zero) * i128::from(se.weight);
            load += se.weight;
        }
        if load == 0 { (zero, 0) } else { (zero + sum.div_euclid(load.into()) as i64, load) }
    }

    fn eligible(&self, cpu: u32, id: TaskId) -> bool {
        self.task(id).fair.vruntime <= self.avg_vruntime(cpu).0
    }

    /// As [`Kernel::clock_of`].
    pub(super) fn fair_clock(&self, cpu: u32, id: TaskId) -> super::Clock {
        let se = &self.task(id).fair;
        super::Clock { ahead: se.vruntime - self.avg_vruntime(cpu).0, left: se.deadline - se.vruntime }
    }

    /// `calc_delta_fair()`.
    fn delta_fair(delta: i64, weight: u64) -> i64 {
        (i128::from(delta) * i128::from(NICE_0) / i128::from(weight.max(1))) as i64
    }

    /// The weight of a task beside all others: its part of its groups' parts.
    fn fair_weight(&self, id: TaskId) -> u64 {
        let task = self.task(id);
        let (mut weight, mut group) = (u64::from(task.weight) << 10, task.group);
        while let Some(parent) = self.groups[group.0 as usize].parent {
            let g = &self.groups[group.0 as usize];
            weight = weight * u64::from(g.weight) / g.active.max(1);
            group = parent;
        }
        weight.max(2)
    }

    /// A task's weight joins its group's sum, or leaves it; with the first and last its group's joins that of the next.
    fn fair_count(&mut self, id: TaskId, joins: bool) {
        let mut delta = u64::from(self.task(id).weight);
        let mut group = self.task(id).group;
        self.task_mut(id).fair.active = if joins { delta } else { 0 };
        while let Some(parent) = self.groups[group.0 as usize].parent {
            let g = &mut self.groups[group.0 as usize];
            let before = g.active;
            g.active = if joins { before + delta } else { before - delta };
            if before != 0 && g.active != 0 {
                return;
            }
            delta = g.weight.into();
            group = parent;
        }
    }

    /// `update_curr()`.
    pub(super) fn fair_update_curr(&mut self, cpu: u32) {
        let ran = self.update_curr_common(cpu);
        let Some(curr) = self.curr_below_rt(cpu) else { return };
        let slice = self.base_slice();
        let se = &mut self.task_mut(curr).fair;
        se.vruntime += Self::delta_fair(ran as i64, se.weight);
        // While it is changed it is off the queue, as if it did not run: sched_change_begin().
        let consumed = !se.relative && se.vruntime >= se.deadline;
        if consumed {
            se.deadline = se.vruntime + Self::delta_fair(slice, se.weight);
        }
        let protected = se.vruntime < se.vprot;
        self.account_cfs_rq_runtime(cpu, curr, ran);
        if !self.fair_queue(cpu).tasks.is_empty() && (consumed || !protected) && !self.cpu(cpu).sleeps {
            self.fair_queue_mut(cpu).buddy.take_if(|buddy| *buddy == curr);
            self.resched_lazy(cpu);
        }
    }

    /// `enqueue_task_fair()` with `place_entity()`.
    pub(super) fn fair_enqueue(&mut self, id: TaskId) {
        let (cpu, slice) = (self.task(id).cpu, self.base_slice());
        self.fair_update_curr(cpu);
        self.fair_count(id, true);
        let weight = self.fair_weight(id);
        let (average, load) = self.avg_vruntime(cpu);
        let se = &mut self.task_mut(id).fair;
        let first = se.weight == 0;
        se.weight = weight;
        let mut lag = se.lag_asleep(cpu, average);
        if load == 0 {
            lag = 0;
        } else {
            lag += (i128::from(lag) * i128::from(weight) / i128::from(load)) as i64;
        }
        se.vruntime = average - lag;
        if std::mem::take(&mut se.relative) {
            se.deadline += se.vruntime;
        } else {
            let vslice = Self::delta_fair(slice, weight);
            se.deadline = se.vruntime + if first { vslice / 2 } else { vslice };
        }
        self.fair_queue_mut(cpu).tasks.push(id);
        self.attach_load(id, cpu, weight);
        self.cpu_mut(cpu).nr_running += 1;
        self.fair_touch(cpu);
        let (average, _) = self.avg_vruntime(cpu);
        self.fair_queue_mut(cpu).zero = average;
    }

    /// `se->sched_delayed`, of one that sleeps: it is on its queue still, and is woken there (`ttwu_runnable()`).
    pub(super) fn fair_delayed(&self, id: TaskId) -> bool {
        let task = self.task(id);
        // Most owe nothing, whatever their queue's average is.
        if self.fair.is_none() || task.fair.vlag >= 0 {
            return false;
        }
        let (average, load) = self.avg_vruntime(task.cpu);
        load > 0 && !task.new && task.fair.lag_asleep(task.cpu, average) < 0
    }

    /// `dequeue_task_fair()`. `moves`: to another queue, with its deadline.
    pub(super) fn fair_dequeue(&mut self, id: TaskId, moves: bool) {
        let cpu = self.task(id).cpu;
        if self.task(id).fair.active == 0 {
            // dequeue_throttled_task().
            return self.fair_queue_mut(cpu).limbo.retain(|other| *other != id);
        }
        self.fair_update_curr(cpu);
        let (average, _) = self.avg_vruntime(cpu);
        let slice = self.base_slice();
        let se = &mut self.task_mut(id).fair;
        let limit = Self::delta_fair(slice + TICK_PERIOD as i64, se.weight);
        se.vlag = (average - se.vruntime).clamp(-limit, limit);
        se.left_at = (cpu, average);
        if moves {
            se.deadline -= se.vruntime;
            se.relative = true;
        }
        let queue = self.fair_queue_mut(cpu);
        queue.zero = average;
        queue.tasks.retain(|other| *other != id);
        queue.buddy.take_if(|buddy| *buddy == id);
        self.fair_count(id, false);
        self.rest_load(id, cpu);
        self.cpu_mut(cpu).nr_running -= 1;
        self.fair_touch(cpu);
        if !moves {
            self.account_wait(id, false);
            self.return_cfs_rq_runtime(cpu, id);
        }
    }

    /// `pick_eevdf()`. `protect`: the current task stays until parity.
    fn pick_eevdf(&self, cpu: u32, protect: bool) -> Option<TaskId> {
        let queue = self.fair_queue(cpu);
        let curr = self.cpu(cpu).curr.filter(|task| self.task(*task).fair.active > 0);
        if queue.tasks.is_empty() {
            return curr;
        }
        let (average, _) = self.avg_vruntime(cpu);
        let eligible = |task: &TaskId| self.task(*task).fair.vruntime <= average;
        if protect && let Some(buddy) = queue.buddy.filter(eligible) {
            return Some(buddy);
        }
        let curr = curr.filter(eligible);
        if protect && let Some(curr) = curr {
            let se = &self.task(curr).fair;
            if se.vruntime < se.vprot {
                return Some(curr);
            }
        }
        // Of equals the one that waits: the current one is compared last.
        let all = queue.tasks.iter().copied().filter(eligible).chain(curr);
        all.min_by_key(|task| self.task(*task).fair.deadline)
            .or_else(|| queue.tasks.iter().copied().min_by_key(|task| self.task(*task).fair.vruntime))
    }

    /// `pick_task_fair()`, with a look at other CPUs where there is nothing.
    pub(super) fn fair_pick(&mut self, cpu: u32) -> Option<TaskId> {
        self.fair_update_curr(cpu);
        self.fair_throttle(cpu);
        self.clear_resched(cpu);
        let found = self.pick_eevdf(cpu, true);
        if found.is_some() || !self.newidle_balance(cpu) {
            return found;
        }
        self.pick_eevdf(cpu, true)
    }

    /// `put_prev_task_fair()`: back into the queue, where it is runnable.
    pub(super) fn fair_put_prev(&mut self, id: TaskId) {
        let (cpu, now) = (self.task(id).cpu, self.now);
        self.fair_update_curr(cpu);
        self.task_mut(id).fair.ran_until = now;
        if self.task(id).fair.active > 0 {
            self.fair_queue_mut(cpu).tasks.push(id);
            self.fair_touch(cpu);
            self.account_wait(id, true);
        }
    }

    /// `set_next_task_fair()`: all slices are alike, so that it is protected until its deadline.
    pub(super) fn fair_set_next(&mut self, cpu: u32, id: TaskId) {
        let clock = self.clock_task(cpu);
        let queue = self.fair_queue_mut(cpu);
        queue.tasks.retain(|other| *other != id);
        queue.buddy.take_if(|buddy| *buddy == id);
        let task = self.task_mut(id);
        task.exec_start = clock;
        task.fair.vprot = task.fair.deadline;
        self.fair_touch(cpu);
    }

    /// `wakeup_preempt_fair()`.
    pub(super) fn fair_wakeup_preempt(&mut self, cpu: u32, id: TaskId) {
        let Some(curr) = self.curr_below_rt(cpu) else { return };
        self.fair_update_curr(cpu);
        if self.pick_eevdf(cpu, true) == Some(id) {
            let se = &mut self.task_mut(curr).fair;
            se.vprot = se.vprot.min(se.vruntime);
            return self.resched_lazy(cpu);
        }
        // update_protect_slice().
        let (average, _) = self.avg_vruntime(cpu);
        let slice = self.base_slice();
        let se = &mut self.task_mut(curr).fair;
        se.vprot = se.vprot.min(se.vruntime.min(average) + Self::delta_fair(slice, se.weight));
    }

    /// `task_tick_fair()`.
    pub(super) fn fair_tick(&mut self, cpu: u32) {
        self.fair_update_curr(cpu);
        if let Some(curr) = self.cpu(cpu).curr {
            self.task_mut(curr).fair.weight = self.fair_weight(curr);
            self.fair_touch(cpu);
        }
        let (average, _) = self.avg_vruntime(cpu);
        self.fair_queue_mut(cpu).zero = average;
        self.periodic_balance(cpu);
    }

    /// `yield_task_fair()`.
    pub(super) fn fair_yield(&mut self, cpu: u32) {
        let Some(curr) = self.cpu(cpu).curr else { return };
        if self.cpu(cpu).nr_running == 1 {
            return;
        }
        self.fair_update_curr(cpu);
        if self.eligible(cpu, curr) {
            let slice = self.base_slice();
            let se = &mut self.task_mut(curr).fair;
            se.vruntime = se.deadline;
            se.deadline += Self::delta_fair(slice, se.weight);
        }
    }

    /// `yield_to_task_fair()`.
    pub(super) fn fair_yield_to(&mut self, cpu: u32, to: TaskId) -> bool {
        if self.task(to).fair.active == 0 {
            return false;
        }
        let there = self.task(to).cpu;
        self.fair_queue_mut(there).buddy = Some(to);
        self.fair_yield(cpu);
        true
    }

    /// A group's weight changes: parents count it anew. Tasks that wait follow when they are queued next.
    pub(super) fn fair_reweigh(&mut self, id: GroupId, old: u32) {
        let (group, parent) = (&self.groups[id.0 as usize], self.groups[id.0 as usize].parent);
        let (active, weight) = (group.active, group.weight);
        if let Some(parent) = parent.filter(|parent| active > 0 && parent.0 != 0) {
            let sum = &mut self.groups[parent.0 as usize].active;
            *sum = *sum - u64::from(old) + u64::from(weight);
        }
    }
}
