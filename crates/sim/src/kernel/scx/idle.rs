//! Idle CPUs: the built-in masks and the built-in choice among them, after kernel/sched/ext/idle.c.

use super::super::counts::Kind;
use super::super::mask::CpuMask;
use super::super::{Kernel, TaskId};
use super::{OPS_KEEP_BUILTIN_IDLE, Planted};

/// `SCX_PICK_IDLE_CORE`.
const PICK_IDLE_CORE: u64 = 1;
/// `SCX_WAKE_SYNC`.
pub(super) const WAKE_SYNC: u64 = 16;

impl Kernel {
    /// Whether the kernel tracks idle CPUs: `scx_builtin_idle_enabled`.
    fn builtin_idle(&self) -> bool {
        self.scx.ops.is_some_and(|ops| ops.update_idle.is_none() || ops.flags & OPS_KEEP_BUILTIN_IDLE != 0)
    }

    /// `__scx_update_idle()` with `do_notify`: the CPU goes idle or stops to idle.
    pub(in super::super) fn scx_notify_idle(&mut self, cpu: u32, idle: bool) {
        if !self.scx_attached() {
            return;
        }
        self.scx_refresh_idle(cpu, idle);
        if self.scx.bypass {
            return;
        }
        self.cpu_mut(cpu).renotify &= !idle;
        if let Some(update) = self.scx.ops.and_then(|ops| ops.update_idle)
            && !self.has(Planted::UpdateIdle)
        {
            // SAFETY: the operation takes plain numbers.
            self.counted(Kind::Idle, |kernel| kernel.scx_call(Some(cpu), |_, _| unsafe { update(cpu as i32, idle) }));
            self.count(Kind::Idle);
        }
    }

    /// `update_builtin_idle()`.
    pub(in super::super) fn scx_refresh_idle(&mut self, cpu: u32, idle: bool) {
        if !self.builtin_idle() {
            return;
        }
        self.scx.idle_cpus.set(cpu, idle);
        if !self.topo.smt() {
            return;
        }
        let core = self.topo.core(cpu);
        if !idle {
            self.scx.idle_smts.remove(core);
        } else if core.within(&self.scx.idle_cpus) {
            self.scx.idle_smts.add(core);
        }
    }

    /// `scx_idle_test_and_clear_cpu()`.
    pub(super) fn claim_idle(&mut self, cpu: u32) -> bool {
        if self.has(Planted::Claim) {
            return self.scx.idle_cpus.has(cpu);
        }
        if self.topo.smt() {
            self.scx.idle_smts.remove(self.topo.core(cpu));
        }
        self.scx.idle_cpus.take(cpu)
    }

    /// `cpumask_any_and_distribute()`: goes on behind the CPU that it gave last.
    fn any_and_distribute(&mut self, smt: bool, allowed: &CpuMask) -> Option<u32> {
        let idle = if smt { &self.scx.idle_smts } else { &self.scx.idle_cpus };
        let found = idle.next_and_wrap(allowed, self.cpu(self.this_cpu).distribute + 1)?;
        self.cpu_mut(self.this_cpu).distribute = found;
        Some(found)
    }

    /// `pick_idle_cpu_in_node()`.
    pub(super) fn pick_idle(&mut self, allowed: &CpuMask, flags: u64) -> Option<u32> {
        loop {
            let mut found = None;
            if self.topo.smt() {
                found = self.any_and_distribute(true, allowed);
                if found.is_none() && flags & PICK_IDLE_CORE != 0 {
                    return None;
                }
            }
            let cpu = match found {
                Some(cpu) => cpu,
                None => self.any_and_distribute(false, allowed)?,
            };
            if self.claim_idle(cpu) {
                return Some(cpu);
            }
        }
    }

    /// `scx_select_cpu_dfl()`: an idle CPU for a task, claimed.
    pub(super) fn select_cpu_dfl(&mut self, id: TaskId, prev: u32, wake_flags: u64) -> Option<u32> {
        let allowed = (*self.task(id).allowed).clone();
        let prev_allowed = allowed.has(prev);
        // scx_idle_update_selcpu_topology(): each step only where it is narrower than the one after it.
        let (llcs, nodes) = (self.topo.nr_llcs(), self.topo.shape.nodes);
        let llc = (llcs > 1).then(|| allowed.and(self.topo.llc(prev)));
        let node = (nodes > 1 && llcs > nodes).then(|| allowed.and(self.topo.node(prev)));

        if wake_flags & WAKE_SYNC != 0 {
            let here = self.this_cpu;
            let near = self.topo.llc_of(here) == self.topo.llc_of(prev);
            if prev_allowed && near && self.claim_idle(prev) {
                return Some(prev);
            }
            let queued = !self.dsq(self.local_dsq(here)).tasks.is_empty();
            if !queued && !self.scx.idle_cpus.is_empty() && allowed.has(here) {
                self.claim_idle(here);
                return Some(here);
            }
        }
        if self.topo.smt() {
            if prev_allowed && self.scx.idle_smts.has(prev) && self.claim_idle(prev) {
                return Some(prev);
            }
            for cpus in [llc.as_ref(), node.as_ref(), Some(&allowed)].into_iter().flatten() {
                if let Some(cpu) = self.pick_idle(cpus, PICK_IDLE_CORE) {
                    return Some(cpu);
                }
            }
        }
        if prev_allowed && self.claim_idle(prev) {
            return Some(prev);
        }
        if self.topo.smt() {
            let siblings = self.topo.core(prev).and(&allowed);
            for cpu in siblings.iter().filter(|cpu| *cpu != prev) {
                if self.claim_idle(cpu) {
                    return Some(cpu);
                }
            }
        }
        [llc.as_ref(), node.as_ref(), Some(&allowed)].into_iter().flatten().find_map(|cpus| self.pick_idle(cpus, 0))
    }

    /// `select_cpu_from_kfunc()`: the CPU, or a negative error number.
    pub(super) fn select_cpu_from_kfunc(&mut self, id: TaskId, prev: i32, wake_flags: u64) -> i32 {
        const EBUSY: i32 = -16;
        const EINVAL: i32 = -22;
        if prev < 0 || prev as u32 >= self.topo.cpus() {
            self.scx_fail(format!("invalid CPU {prev}"));
            return EINVAL;
        }
        if !self.builtin_idle() {
            self.scx_fail("built-in idle tracking is disabled".into());
            return EBUSY;
        }
        let foreign = match (self.scx.operation.in_select_cpu, self.scx.operation.locked_rq) {
            (Some(task), _) => task != id,
            (None, Some(cpu)) => self.task(id).cpu != cpu,
            (None, None) => false,
        };
        if foreign {
            self.scx_fail(format!("select_cpu kfunc called cross-task on {id:?}"));
            return EINVAL;
        }
        let found = if self.task(id).nr_allowed == 1 {
            let cpu = self.task(id).allowed.iter().next().expect("a task may run somewhere");
            self.claim_idle(cpu).then_some(cpu)
        } else {
            self.select_cpu_dfl(id, prev as u32, wake_flags)
        };
        found.map_or(EBUSY, |cpu| cpu as i32)
    }
}
