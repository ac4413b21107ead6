//! Idle CPUs: the built-in masks and the built-in choice among them, after kernel/sched/ext/idle.c.

use super::super::counts::Kind;
use super::super::mask::CpuMask;
use super::super::{Kernel, TaskId};
use super::{OPS_BUILTIN_IDLE_PER_NODE, OPS_KEEP_BUILTIN_IDLE, Planted};

const EBUSY: i32 = -16;
const EINVAL: i32 = -22;

/// `SCX_PICK_IDLE_CORE`.
const PICK_IDLE_CORE: u64 = 1;
/// `SCX_PICK_IDLE_IN_NODE`.
const PICK_IDLE_IN_NODE: u64 = 2;
/// `SCX_WAKE_SYNC`.
pub(super) const WAKE_SYNC: u64 = 16;

impl Kernel {
    /// Whether the kernel tracks idle CPUs: `scx_builtin_idle_enabled`.
    fn builtin_idle(&self) -> bool {
        self.scx.ops.is_some_and(|ops| ops.update_idle.is_none() || ops.flags & OPS_KEEP_BUILTIN_IDLE != 0)
    }

    /// `scx_cpu_node_if_enabled()`: the node whose idle masks a CPU stands in; `None`: there are no masks by node.
    ///
    /// The masks of the nodes are parts of one here, since each CPU stands in that of its node alone.
    fn idle_node(&self, cpu: u32) -> Option<u32> {
        let by_node = self.scx.ops.is_some_and(|ops| ops.flags & OPS_BUILTIN_IDLE_PER_NODE != 0);
        by_node.then(|| self.topo.node_of(cpu))
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

    /// `pick_idle_cpu_in_node()`, of the whole machine.
    fn pick_idle_anywhere(&mut self, allowed: &CpuMask, flags: u64) -> Option<u32> {
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

    /// `scx_pick_idle_cpu()`: of `node` first, then of the others. All are as far from each other here, so that they come
    /// by their numbers.
    pub(super) fn pick_idle(&mut self, allowed: &CpuMask, node: Option<u32>, flags: u64) -> Option<u32> {
        let Some(node) = node else { return self.pick_idle_anywhere(allowed, flags) };
        let others = (0..self.topo.shape.nodes).filter(|other| *other != node && flags & PICK_IDLE_IN_NODE == 0);
        std::iter::once(node).chain(others).find_map(|node| {
            let there = allowed.and(self.topo.node_cpus(node));
            self.pick_idle_anywhere(&there, flags)
        })
    }

    /// `scx_select_cpu_dfl()`: an idle CPU for a task, claimed. `among`: of these alone.
    pub(super) fn select_cpu_dfl(
        &mut self,
        id: TaskId,
        prev: u32,
        wake_flags: u64,
        among: Option<&CpuMask>,
        flags: u64,
    ) -> Option<u32> {
        let mut allowed = (*self.task(id).allowed).clone();
        if let Some(among) = among {
            allowed = allowed.and(among);
        }
        let prev_allowed = allowed.has(prev);
        let home = self.idle_node(prev);
        // scx_idle_update_selcpu_topology(): each step only where it is narrower than the one after it.
        let (llcs, nodes) = (self.topo.nr_llcs(), self.topo.shape.nodes);
        let llc = (llcs > 1).then(|| allowed.and(self.topo.llc(prev)));
        let node = (nodes > 1 && llcs > nodes && home.is_none()).then(|| allowed.and(self.topo.node(prev)));
        let near = [llc.as_ref(), node.as_ref()];

        if wake_flags & WAKE_SYNC != 0 {
            let here = self.this_cpu;
            let shared = self.topo.llc_of(here) == self.topo.llc_of(prev);
            if prev_allowed && shared && self.claim_idle(prev) {
                return Some(prev);
            }
            let queued = !self.dsq(self.local_dsq(here)).tasks.is_empty();
            let there = self.idle_node(here);
            let idles = match there {
                Some(node) => self.scx.idle_cpus.meets(self.topo.node_cpus(node)),
                None => !self.scx.idle_cpus.is_empty(),
            };
            let near_enough = flags & PICK_IDLE_IN_NODE == 0 || there == home;
            if !queued && near_enough && idles && allowed.has(here) {
                self.claim_idle(here);
                return Some(here);
            }
        }
        if self.topo.smt() {
            if prev_allowed && self.scx.idle_smts.has(prev) && self.claim_idle(prev) {
                return Some(prev);
            }
            let found = near.into_iter().flatten().find_map(|cpus| self.pick_idle_anywhere(cpus, PICK_IDLE_CORE));
            if let Some(cpu) = found.or_else(|| self.pick_idle(&allowed, home, flags | PICK_IDLE_CORE)) {
                return Some(cpu);
            }
            if flags & PICK_IDLE_CORE != 0 {
                return None;
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
        let found = near.into_iter().flatten().find_map(|cpus| self.pick_idle_anywhere(cpus, 0));
        found.or_else(|| self.pick_idle(&allowed, home, flags))
    }

    /// `select_cpu_restricted()`: the only CPU that a task may run on, if it is idle.
    fn select_cpu_restricted(&mut self, id: TaskId, prev: u32, among: Option<&CpuMask>, flags: u64) -> Option<u32> {
        let cpu = self.task(id).allowed.iter().next().expect("a task may run somewhere");
        let far = flags & PICK_IDLE_IN_NODE != 0 && self.idle_node(prev) != self.idle_node(cpu);
        (among.is_none_or(|among| among.has(cpu)) && !far && self.claim_idle(cpu)).then_some(cpu)
    }

    /// `select_cpu_from_kfunc()`: the CPU, or a negative error number.
    fn select_cpu_from_kfunc(
        &mut self,
        id: TaskId,
        prev: i32,
        wake_flags: u64,
        among: Option<&CpuMask>,
        flags: u64,
    ) -> i32 {
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
        let prev = prev as u32;
        let found = if self.task(id).nr_allowed == 1 {
            self.select_cpu_restricted(id, prev, among, flags)
        } else {
            self.select_cpu_dfl(id, prev, wake_flags, among, flags)
        };
        found.map_or(EBUSY, |cpu| cpu as i32)
    }

    /// `scx_bpf_select_cpu_dfl()`.
    pub(crate) fn kf_select_cpu_dfl(&mut self, id: TaskId, prev: i32, wake_flags: u64) -> (i32, bool) {
        let cpu = self.select_cpu_from_kfunc(id, prev, wake_flags, None, 0);
        if cpu >= 0 { (cpu, true) } else { (prev, false) }
    }

    /// `__scx_bpf_select_cpu_and()`.
    pub(crate) fn kf_select_cpu_and(
        &mut self,
        id: TaskId,
        prev: i32,
        wake_flags: u64,
        among: &CpuMask,
        flags: u64,
    ) -> i32 {
        self.select_cpu_from_kfunc(id, prev, wake_flags, Some(among), flags)
    }

    /// `scx_bpf_test_and_clear_cpu_idle()`.
    pub(crate) fn kf_test_and_clear_cpu_idle(&mut self, cpu: i32) -> bool {
        if cpu < 0 || cpu as u32 >= self.topo.cpus() {
            self.scx_fail(format!("invalid CPU {cpu}"));
            return false;
        }
        self.claim_idle(cpu as u32)
    }

    /// `scx_bpf_pick_idle_cpu()`.
    pub(crate) fn kf_pick_idle_cpu(&mut self, allowed: &CpuMask, flags: u64) -> i32 {
        if self.idle_node(0).is_some() {
            self.scx_fail("per-node idle tracking is enabled".into());
            return EBUSY;
        }
        self.pick_idle(allowed, None, flags).map_or(EBUSY, |cpu| cpu as i32)
    }

    /// `scx_bpf_get_idle_cpumask()`, `scx_bpf_get_idle_smtmask()`, and both of a node. That of the machine is the mask
    /// itself; that of a node is a copy, as it is now, which stands until the next one of that node is asked for.
    pub(crate) fn kf_idle_cpumask(&mut self, node: Option<u32>, smt: bool) -> *const CpuMask {
        let by_cores = smt && self.topo.smt();
        let Some(node) = node else {
            if self.idle_node(0).is_some() {
                self.scx_fail("SCX_OPS_BUILTIN_IDLE_PER_NODE enabled".into());
            }
            return if by_cores { &raw const self.scx.idle_smts } else { &raw const self.scx.idle_cpus };
        };
        if self.idle_node(0).is_none() || node >= self.topo.shape.nodes {
            self.scx_fail(format!("per-node idle tracking is disabled, or there is no node {node}"));
            return &raw const self.scx.idle_cpus;
        }
        let whole = if by_cores { &self.scx.idle_smts } else { &self.scx.idle_cpus };
        let part = whole.and(self.topo.node_cpus(node));
        let masks = &mut self.scx.node_masks;
        // Each has its place from the first question on: the scheduler keeps the address.
        masks.resize_with(2 * self.topo.shape.nodes as usize, CpuMask::none);
        let mask = &mut masks[2 * node as usize + usize::from(smt)];
        *mask = part;
        mask
    }
}
