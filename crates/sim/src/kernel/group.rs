//! cgroups as far as schedulers see them: a tree with weights.

use super::Kernel;
use crate::native::CgroupPtr;

/// Number of a cgroup; 0 is the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub u32);

/// One cgroup.
pub struct Group {
    /// Its parent; `None` for the root.
    pub parent: Option<GroupId>,
    /// `cpu.weight`, 1..10000.
    pub weight: u32,
    /// EEVDF: weights of its runnable tasks and of its groups that hold any.
    pub(super) active: u64,
    pub(super) pointer: CgroupPtr,
}

impl Kernel {
    /// Makes a cgroup: `scx_tg_online()`.
    pub fn add_group(&mut self, parent: GroupId, weight: u32) -> GroupId {
        let id = GroupId(self.groups.len() as u32);
        let pointer = self.scx_cgroup_new(Some(parent), weight);
        self.groups.push(Group { parent: Some(parent), weight, active: 0, pointer });
        id
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
