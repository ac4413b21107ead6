//! Makes a plan smaller as long as it breaks the same rule.

use super::plan::Plan;
use crate::kernel::topology::Shape;

/// All plans that have one thing less, the largest cuts first.
fn smaller(plan: &Plan) -> Vec<Plan> {
    let mut plans = Vec::new();
    let mut with = |change: &mut dyn FnMut(&mut Plan)| {
        let mut less = plan.clone();
        change(&mut less);
        if less != *plan {
            plans.push(less);
        }
    };
    if plan.deeds.len() > 1 {
        with(&mut |plan| plan.deeds.clear());
        with(&mut |plan| plan.deeds.truncate(plan.deeds.len() / 2));
        with(&mut |plan| {
            plan.deeds.drain(..plan.deeds.len() / 2);
        });
    }
    for vm in 0..plan.vms.len() {
        with(&mut |plan| {
            plan.vms.remove(vm);
        });
    }
    for task in 0..plan.tasks.len() {
        with(&mut |plan| {
            plan.tasks.remove(task);
        });
    }
    for deed in 0..plan.deeds.len() {
        with(&mut |plan| {
            plan.deeds.remove(deed);
        });
    }
    for vm in 0..plan.vms.len() {
        for task in 0..plan.vms[vm].tasks.len() {
            with(&mut |plan| {
                plan.vms[vm].tasks.remove(task);
            });
        }
        with(&mut |plan| plan.vms[vm].vcpus = plan.vms[vm].vcpus.div_ceil(2));
        with(&mut |plan| plan.vms[vm].vcpus -= u32::from(plan.vms[vm].vcpus > 1));
        with(&mut |plan| plan.vms[vm].group = 0);
    }
    // The last group alone, so that the others keep their numbers; what lay in it lies in its parent's place.
    if !plan.groups.is_empty() {
        with(&mut |plan| {
            plan.groups.pop();
        });
    }
    // A vCPU that is bound to a CPU of its own keeps it: without, it would wait for reasons of the host's.
    let bound = plan.vms.iter().filter(|vm| vm.pinned).map(|vm| vm.vcpus).max().unwrap_or(0);
    let Shape { nodes, llcs, cores, threads } = plan.shape;
    for shape in [
        Shape { nodes: 1, ..plan.shape },
        Shape { llcs: 1, ..plan.shape },
        Shape { threads: 1, ..plan.shape },
        Shape { nodes, llcs, cores: cores.div_ceil(2), threads },
        Shape { nodes, llcs, cores: cores - u32::from(cores > 1), threads },
    ] {
        if shape.cpus() >= bound {
            with(&mut |plan| plan.shape = shape);
        }
    }
    with(&mut |plan| plan.paired = false);
    with(&mut |plan| plan.end = plan.end / 2 + 1_000_000);
    for task in 0..plan.tasks.len() {
        with(&mut |plan| (plan.tasks[task].group, plan.tasks[task].weight) = (0, 100));
        with(&mut |plan| plan.tasks[task].cpus = None);
    }
    for (vm, of) in plan.vms.iter().enumerate() {
        for task in 0..of.tasks.len() {
            with(&mut |plan| plan.vms[vm].tasks[task].cpus = None);
            with(&mut |plan| plan.vms[vm].tasks[task].weight = 100);
        }
    }
    // Steps last: they are the least of it. A lock is taken and given back together.
    for task in 0..plan.tasks.len() {
        for step in 0..plan.tasks[task].steps.len() {
            with(&mut |plan| {
                plan.tasks[task].steps.remove(step);
            });
        }
    }
    plans.retain(|plan| plan.valid());
    plans
}

/// The smallest plan that was found within so many runs and that still `fails`.
pub fn shrink(plan: &Plan, runs: usize, fails: impl Fn(&Plan) -> bool) -> Plan {
    let (mut best, mut left) = (plan.clone(), runs);
    'again: loop {
        for less in smaller(&best) {
            if left == 0 {
                return best;
            }
            left -= 1;
            if fails(&less) {
                best = less;
                continue 'again;
            }
        }
        return best;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::draw::draw;

    #[test]
    fn what_does_not_matter_is_left_out() {
        let whole = (1..).map(draw).find(|plan| plan.vms.len() > 3 && plan.deeds.len() > 5).expect("some are large");
        // Only the second VM's existence matters.
        let vcpus = whole.vms[1].vcpus;
        let fails = |plan: &Plan| plan.vms.iter().any(|vm| vm.vcpus == vcpus);
        let least = shrink(&whole, 10_000, fails);
        assert_eq!((least.vms.len(), least.tasks.len(), least.deeds.len(), least.groups.len()), (1, 0, 0, 0));
        assert_eq!((least.shape.cpus(), least.vms[0].tasks.len()), (1, 0));
        assert!(fails(&least) && least.size() < whole.size());
    }
}
