//! The kernel functions that a scheduler calls: `scx_bpf_*` of kernel/sched/ext/ext.c, without the prefix.

use super::super::counts::Kind;
use super::super::{Effect, Kernel, TaskId};
use super::OPS_TID_TO_TASK;
use super::dsq::{BUILTIN, DirectSlot, Dsq, DsqIndex, LOCAL, LOCAL_ON};
use super::enqueue::Direct;

const ENOENT: i32 = -2;
const EEXIST: i32 = -17;
const EINVAL: i32 = -22;

/// `SCX_DSQ_ITER_REV`: from the last task on.
const ITER_REV: u64 = 1 << 16;
/// `SCX_KICK_IDLE`.
const KICK_IDLE: u64 = 1;
/// `SCX_KICK_PREEMPT`.
const KICK_PREEMPT: u64 = 2;
/// `SCX_KICK_WAIT`.
const KICK_WAIT: u64 = 4;

impl Kernel {
    pub(crate) fn kf_create_dsq(&mut self, id: u64) -> i32 {
        if id & BUILTIN != 0 {
            return EINVAL;
        }
        let index = DsqIndex(self.scx.dsqs.len() as u32);
        if self.scx.by_id.contains_key(&id) {
            return EEXIST;
        }
        self.scx.by_id.insert(id, index);
        self.scx.dsqs.push(Dsq::new(id));
        0
    }

    /// `scx_bpf_dsq_insert()` and `scx_bpf_dsq_insert_vtime()`: takes effect when the operation returns.
    pub(crate) fn kf_dsq_insert(&mut self, id: TaskId, dsq: u64, slice: u64, vtime: Option<u64>, flags: u64) {
        self.vet_enq_flags(dsq, flags);
        let flags = self.known_flags(flags);
        let verdict = Direct { dsq, slice, vtime, flags };
        match self.scx.operation.direct {
            DirectSlot::None => self.dispatch_later(id, verdict),
            for_whom => self.mark_direct_dispatch(for_whom, id, verdict),
        }
    }

    /// `scx_bpf_dsq_move_to_local()`, and `scx_bpf_dsq_move_to_local___v2()` where there are flags.
    pub(crate) fn kf_dsq_move_to_local(&mut self, id: u64, flags: u64) -> bool {
        self.vet_enq_flags(LOCAL, flags);
        let flags = self.known_flags(flags);
        self.flush_dispatch_buf();
        let Some(dsq) = self.find_user_dsq(id) else {
            self.scx_fail(format!("invalid DSQ ID {id:#x}"));
            return false;
        };
        let moved = self.consume_dispatch_q(self.scx.operation.dispatching.cpu, dsq, flags);
        self.scx.operation.dispatching.tasks += u32::from(moved);
        moved
    }

    pub(crate) fn kf_dsq_nr_queued(&self, id: u64) -> i32 {
        let dsq = if id == LOCAL {
            Some(self.local_dsq(self.scx.operation.locked_rq.unwrap_or(self.this_cpu)))
        } else if id & LOCAL_ON == LOCAL_ON {
            Some((id & 0xffff_ffff) as u32).filter(|cpu| *cpu < self.topo.cpus()).map(|cpu| self.local_dsq(cpu))
        } else {
            self.find_user_dsq(id)
        };
        dsq.map_or(ENOENT, |dsq| self.dsq(dsq).tasks.len() as i32)
    }

    pub(crate) fn kf_dsq_peek(&mut self, id: u64) -> Option<TaskId> {
        let found = self.find_user_dsq(id);
        if id & BUILTIN != 0 || found.is_none() {
            self.scx_fail(format!("peek on DSQ {id:#x}, which is built-in or does not exist"));
        }
        self.dsq(found?).tasks.front().copied()
    }

    /// `bpf_iter_scx_dsq_new()`. The cursor holds: 1 + the queue, the newest insertion seen, 1 + a snapshot, the next,
    /// and the flags.
    pub(crate) fn kf_iter_new(&mut self, it: &mut [u64; 6], id: u64, flags: u64) -> i32 {
        *it = [0; 6];
        self.iterations += 1;
        if flags & !ITER_REV != 0 {
            return EINVAL;
        }
        let Some(dsq) = self.find_user_dsq(id) else { return ENOENT };
        it[0] = u64::from(dsq.0) + 1;
        it[4] = flags & ITER_REV;
        it[1] = self.dsq(dsq).seq.into();
        0
    }

    pub(crate) fn kf_iter_next(&mut self, it: &mut [u64; 6]) -> Option<TaskId> {
        let dsq = DsqIndex(it[0].checked_sub(1)? as u32);
        if it[2] == 0 {
            let mut tasks: Vec<_> = self.dsq(dsq).tasks.iter().copied().collect();
            if it[4] != 0 {
                tasks.reverse();
            }
            let slot = self.scx.snapshots.iter().position(Option::is_none).unwrap_or(self.scx.snapshots.len());
            if slot == self.scx.snapshots.len() {
                self.scx.snapshots.push(None);
            }
            self.scx.snapshots[slot] = Some(tasks);
            it[2] = slot as u64 + 1;
        }
        loop {
            let id = *self.scx.snapshots[it[2] as usize - 1].as_ref()?.get(it[3] as usize)?;
            it[3] += 1;
            if !self.cursor_lost_task(it, dsq, id) {
                return Some(id);
            }
        }
    }

    pub(crate) fn kf_iter_destroy(&mut self, it: &mut [u64; 6]) {
        if it[2] != 0 {
            self.scx.snapshots[it[2] as usize - 1] = None;
        }
        *it = [0; 6];
    }

    /// `nldsq_cursor_lost_task()`: it has left the queue, or was queued anew, since the iterator began.
    fn cursor_lost_task(&self, it: &[u64; 6], dsq: DsqIndex, id: TaskId) -> bool {
        let task = &self.task(id).scx;
        task.dsq != Some(dsq) || u64::from(task.dsq_seq) > it[1]
    }

    /// `scx_bpf_dsq_move()` and `scx_bpf_dsq_move_vtime()`, whose virtual time stands in the cursor.
    pub(crate) fn kf_dsq_move(&mut self, it: &mut [u64; 6], id: TaskId, to: u64, flags: u64, by_vtime: bool) -> bool {
        let Some(from) = it[0].checked_sub(1) else { return false };
        if self.cursor_lost_task(it, DsqIndex(from as u32), id) {
            return false;
        }
        self.vet_enq_flags(to, flags);
        let here = self.scx.operation.locked_rq.unwrap_or(self.this_cpu);
        let mut dst = self.find_dsq_for_dispatch(here, to);
        if self.is_local(dst) && dst.0 != self.task(id).cpu && !self.task_can_run_on_remote_rq(id, dst.0) {
            self.scx_fail(format!("SCX_DSQ_LOCAL[_ON] target CPU {} not allowed for {id:?}", dst.0));
            dst = self.global_dsq();
        }
        let home = self.task(id).cpu;
        let crossed = if self.is_local(dst) && dst.0 != home {
            self.cross(&[home, dst.0])
        } else {
            self.scx.operation.locked_rq != Some(home) && self.cross(&[home])
        };
        if crossed && (self.cursor_lost_task(it, DsqIndex(from as u32), id) || self.task(id).cpu != home) {
            return false;
        }
        self.unlink_from_dsq(id);
        if self.is_local(dst) {
            self.move_to_local_dsq(id, dst.0, flags);
        } else {
            let vtime = by_vtime.then_some(it[4]);
            let with = super::dsq::Insertion { slice: self.slice(id), vtime, flags, apply: by_vtime };
            self.dispatch_enqueue(dst, id, with);
        }
        true
    }

    /// `scx_bpf_dsq_reenq()`: takes effect when the run queue is unlocked.
    pub(crate) fn kf_dsq_reenq(&mut self, id: u64) {
        match self.find_user_dsq(id) {
            Some(dsq) if id & BUILTIN == 0 => self.scx.operation.reenqs.push(dsq),
            _ => self.scx_fail(format!("re-enqueue of DSQ {id:#x}, which is built-in or does not exist")),
        }
    }

    pub(crate) fn kf_tid_to_task(&mut self, tid: u64) -> Option<TaskId> {
        if self.scx.ops.is_none_or(|ops| ops.flags & OPS_TID_TO_TASK == 0) {
            self.scx_fail("scx_bpf_tid_to_task() called without SCX_OPS_TID_TO_TASK".into());
            return None;
        }
        let index = tid.checked_sub(1)?;
        self.tasks.get(index as usize).map(|task| task.id)
    }

    pub(crate) fn kf_task_set_slice(&mut self, id: TaskId, slice: u64) -> bool {
        let task = self.task(id);
        match self.scx.operation.locked_rq {
            Some(cpu) if task.cpu == cpu && (task.scx.runnable_at.is_some() || self.runs(id)) => {
                self.set_task_slice(id, slice);
            }
            _ => self.task_mut(id).scx.slice_oob = Some(slice),
        }
        true
    }

    /// `scx_bpf_kick_cpu()`: noted here, done by flush_kicks() as soon as the operation is over.
    pub(crate) fn kf_kick_cpu(&mut self, cpu: i32, flags: u64) {
        if cpu < 0 || cpu as u32 >= self.topo.cpus() {
            return self.scx_fail(format!("invalid CPU {cpu}"));
        }
        if !self.online.has(cpu as u32) {
            return;
        }
        if flags & KICK_IDLE != 0 {
            if flags & (KICK_PREEMPT | KICK_WAIT) != 0 {
                self.scx_fail("PREEMPT/WAIT cannot be used with SCX_KICK_IDLE".into());
            }
            if self.loses_kick() {
                return;
            }
            // can_skip_idle_kick(), where the lock can be had.
            let target = self.cpu(cpu as u32);
            let held = self.scx.operation.locked_rq == Some(cpu as u32) || target.locked;
            if !held && target.curr.is_some() && !target.in_dispatch {
                return;
            }
        }
        self.deferred = true;
        self.scx.operation.kicks.push((cpu as u32, flags));
    }

    /// `kick_cpus_irq_workfn()`.
    pub(super) fn flush_kicks(&mut self) {
        if self.scx.bypass {
            // scx_kick_cpu() does nothing meanwhile.
            return self.scx.operation.kicks.clear();
        }
        for (cpu, flags) in std::mem::take(&mut self.scx.operation.kicks) {
            self.kick(cpu, flags);
        }
    }

    /// `kick_one_cpu()`, `kick_one_cpu_if_idle()`. A CPU between choice and switch gets its kick after the switch.
    pub(in super::super) fn kick(&mut self, cpu: u32, flags: u64) {
        self.wait_rq(cpu);
        if self.cpu(cpu).locked {
            self.cpu_mut(cpu).kicks.push((cpu, flags));
            return;
        }
        if flags & KICK_IDLE != 0 {
            if self.cpu(cpu).curr.is_none() {
                self.resched(cpu);
            }
            return;
        }
        if flags & KICK_PREEMPT != 0
            && let Some(curr) = self.curr_below_rt(cpu)
        {
            self.set_task_slice(curr, 0);
        }
        self.resched(cpu);
    }

    /// `bpf_timer_start()`: out of an operation, where interrupts are off, the kernel puts it off (`defer_timer_wq_op()`).
    pub(crate) fn kf_timer_start(&mut self, timer: u32, ns: u64, _pinned: bool) {
        self.deferred |= self.counts.now() != Kind::Timer;
        self.out.push(Effect::BpfTimer { timer, at: self.now + ns, cpu: self.this_cpu });
    }
}
