//! Parts of the host: VMs that are bound to pCPUs compete with those that may use one of the same, and with no others.

use entrain_system::CpuSet;

/// pCPUs, and the VMs that share them, by their place among all.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) cpus: CpuSet,
    pub(super) members: Vec<usize>,
}

/// The parts of the pCPUs that are online. `bound`: what each VM may use, `None`: all. One whose pCPUs are all offline may
/// run anywhere: so the kernel does with its threads.
pub(super) fn of<'a>(online: &CpuSet, bound: impl Iterator<Item = Option<&'a CpuSet>> + Clone) -> Vec<Part> {
    // The common case, without a set for each.
    if bound.clone().any(|cpus| cpus.is_none_or(|cpus| online.is_subset(cpus))) {
        return vec![Part { cpus: online.clone(), members: (0..bound.count()).collect() }];
    }
    let mut parts: Vec<Part> = Vec::new();
    for (member, cpus) in bound.enumerate() {
        let cpus = cpus.map(|cpus| cpus.common(online)).filter(|cpus| !cpus.is_empty());
        let mut part = Part { cpus: cpus.unwrap_or_else(|| online.clone()), members: vec![member] };
        parts.retain_mut(|other| {
            if other.cpus.common(&part.cpus).is_empty() {
                return true;
            }
            part.cpus = part.cpus.union(&other.cpus);
            part.members.append(&mut other.members);
            false
        });
        parts.push(part);
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_use_one_pcpu_of_two_parts_makes_them_one() {
        let online: CpuSet = (0..8).collect();
        let sets: Vec<Option<CpuSet>> = [0..2, 4..6, 5..8].into_iter().map(|cpus| Some(cpus.collect())).collect();
        let parts = of(&online, sets.iter().map(Option::as_ref));
        assert_eq!(parts.len(), 2);
        assert_eq!(parts[0], Part { cpus: (0..2).collect(), members: vec![0] });
        assert_eq!(parts[1].cpus, (4..8).collect());
        let all = [sets, vec![None]].concat();
        let one = of(&online, all.iter().map(Option::as_ref));
        assert_eq!(one, [Part { cpus: online, members: vec![0, 1, 2, 3] }]);
    }
}
