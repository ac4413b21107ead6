//! cgroups as far as schedulers see them: a tree with weights and limits.

use super::fair::FairBandwidth;
use super::task::State;
use super::{Kernel, TaskId};
use crate::native::CgroupPtr;

/// Number of a cgroup; 0 is the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub u32);

/// A limit of CPU time, ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Max {
    /// So much ...
    pub quota: u64,
    /// ... in each period,
    pub period: u64,
    /// and what is left over is saved up to this.
    pub burst: u64,
}

/// One cgroup.
pub struct Group {
    /// Its parent; `None` for the root.
    pub parent: Option<GroupId>,
    /// `cpu.weight`, 1..10000.
    pub weight: u32,
    /// It has been removed.
    pub(super) gone: bool,
    /// EEVDF: weights of its runnable tasks and of its groups that hold any.
    pub(super) active: u64,
    /// `cpu.max` and `cpu.max.burst`; `None`: no limit.
    pub max: Option<Max>,
    /// EEVDF: what is left of it.
    pub(super) bandwidth: FairBandwidth,
    pub(super) pointer: CgroupPtr,
}

impl Kernel {
    /// Makes a cgroup: `scx_tg_online()`.
    pub fn add_group(&mut self, parent: GroupId, weight: u32) -> GroupId {
        let id = GroupId(self.groups.len() as u32);
        let pointer = self.scx_cgroup_new(Some(parent), weight);
        self.groups.push(Group {
            parent: Some(parent),
            weight,
            gone: false,
            active: 0,
            max: None,
            bandwidth: FairBandwidth::default(),
            pointer,
        });
        id
    }

    /// Writes `cpu.max` and `cpu.max.burst`: `tg_set_bandwidth()`.
    pub fn set_group_max(&mut self, id: GroupId, max: Option<Max>) {
        self.groups[id.0 as usize].max = max;
        if self.fair.is_some() {
            self.fair_set_bandwidth(id);
        }
        let pointer = self.groups[id.0 as usize].pointer;
        self.scx_cgroup_set_bandwidth(pointer, max);
        self.scx_flush();
    }

    /// Removes an empty group: `scx_tg_offline()`.
    pub fn remove_group(&mut self, id: GroupId) {
        assert!(self.tasks.iter().all(|task| task.group != id || task.state == State::Dead), "the group is empty");
        let group = &mut self.groups[id.0 as usize];
        group.gone = true;
        let pointer = group.pointer;
        self.scx_cgroup_exit(pointer);
        self.scx_flush();
    }

    /// Whether the task, or a group that it is in, has a limit.
    pub fn is_limited(&self, id: TaskId) -> bool {
        self.limited_groups(id).next().is_some()
    }

    /// The limited groups that a task is in, from the innermost outwards.
    pub(super) fn limited_groups(&self, id: TaskId) -> impl Iterator<Item = GroupId> {
        let up = |group: &GroupId| self.groups[group.0 as usize].parent;
        std::iter::successors(Some(self.task(id).group), up).filter(|group| self.groups[group.0 as usize].max.is_some())
    }

    /// Writes `cpu.weight`: `scx_group_set_weight()`.
    pub fn set_group_weight(&mut self, id: GroupId, weight: u32) {
        let old = std::mem::replace(&mut self.groups[id.0 as usize].weight, weight);
        if self.fair.is_some() {
            self.fair_reweigh(id, old);
        }
        let pointer = self.groups[id.0 as usize].pointer;
        self.scx_cgroup_set_weight(pointer, weight);
    }
}
