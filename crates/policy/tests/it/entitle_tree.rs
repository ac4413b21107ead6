//! Entitlement down a tree: flat it is the flat one, and no weight counts beyond its siblings.

use entrain_policy::entitle::{Vm, entitle};
use entrain_policy::entitle_tree::{Above, Leaf, entitle_tree};
use proptest::prelude::*;

const CPU: u64 = 1024;

fn group(id: u64, weight: u64) -> Above {
    Above { id, weight }
}

/// Two tenants of equal weight on four pCPUs, both with four vCPUs that are busy.
#[test]
fn a_tenant_who_raises_the_weight_inside_its_own_group_takes_nothing_from_another() {
    let (tenant, other) = ([group(1, 100)], [group(2, 100)]);
    let leaf = |above, weight| Leaf { vm: Vm::new(weight, 4 * CPU, 4 * CPU), above };
    for weight in [1, 100, 10_000] {
        let got = entitle_tree(&[leaf(&tenant, weight), leaf(&other, 100)], 4 * CPU);
        assert_eq!([got[0].entitlement, got[1].entitlement], [2 * CPU, 2 * CPU], "weight {weight}");
        // Within the group it counts.
        let got = entitle_tree(&[leaf(&tenant, weight), leaf(&tenant, 100), leaf(&other, 100)], 4 * CPU);
        assert_eq!(got[2].entitlement, 2 * CPU);
        assert_eq!(got[0].entitlement, 2 * CPU * weight / (weight + 100));
    }
}

#[test]
fn what_a_group_leaves_goes_to_its_own_first() {
    let (tenant, other) = ([group(1, 100)], [group(2, 100)]);
    let idle = Leaf { vm: Vm::new(10_000, 0, 4 * CPU), above: &tenant };
    let busy = Leaf { vm: Vm::new(1, 4 * CPU, 4 * CPU), above: &tenant };
    let neighbour = Leaf { vm: Vm::new(100, 4 * CPU, 4 * CPU), above: &other };
    let got = entitle_tree(&[idle, busy, neighbour], 4 * CPU);
    assert_eq!([got[1].entitlement, got[2].entitlement], [2 * CPU, 2 * CPU]);
    assert!(got[0].entitlement > 2 * CPU * 9 / 10, "it may take its sibling's back: {got:?}");
}

fn leaves() -> impl Strategy<Value = Vec<(Vm, Vec<Above>)>> {
    let vm = (1u64..=10_000, 0u64..=16 * CPU, 0u64..=16 * CPU)
        .prop_map(|(weight, demand, ceiling)| Vm::new(weight, demand, ceiling));
    // Two levels at most; the weight goes by the group, so that a group has one.
    let path = prop::collection::vec(0u64..3, 0..3).prop_map(|ids| {
        let above = ids.iter().scan(0, |before, id| {
            *before = *before * 10 + id + 1;
            Some(group(*before, *before * 37 % 500 + 1))
        });
        above.collect()
    });
    prop::collection::vec((vm, path), 1..20)
}

proptest! {
    #[test]
    fn without_groups_it_is_the_flat_one(leaves in leaves(), capacity in 0u64..64 * CPU) {
        let vms: Vec<Vm> = leaves.iter().map(|(vm, _)| *vm).collect();
        let flat: Vec<Leaf<'_>> = vms.iter().map(|vm| Leaf { vm: *vm, above: &[] }).collect();
        prop_assert_eq!(entitle_tree(&flat, capacity), entitle(&vms, capacity));
    }

    #[test]
    fn shares_add_up_to_the_host_and_nobody_gets_more_than_it_can_use(
        leaves in leaves(), capacity in 0u64..64 * CPU,
    ) {
        let tree: Vec<Leaf<'_>> = leaves.iter().map(|(vm, above)| Leaf { vm: *vm, above }).collect();
        let got = entitle_tree(&tree, capacity);
        prop_assert!(got.iter().map(|got| got.share).sum::<u64>() <= capacity);
        for (got, leaf) in got.iter().zip(&tree) {
            prop_assert!(got.share <= got.entitlement + 1 && got.entitlement <= leaf.vm.ceiling.min(capacity));
        }
    }

    /// The weights that a tenant may set: those below the groups at the top.
    #[test]
    fn weights_inside_a_group_change_nothing_outside(
        leaves in leaves(), weight in 1u64..=10_000, capacity in 0u64..64 * CPU,
    ) {
        let mut changed = leaves.clone();
        for (vm, above) in &mut changed {
            if above.first().is_some_and(|top| top.id == 1) {
                *vm = Vm::new(weight, vm.demand, vm.ceiling);
                above.iter_mut().skip(1).for_each(|group| group.weight = weight);
            }
        }
        let run = |leaves: &[(Vm, Vec<Above>)]| {
            let tree: Vec<Leaf<'_>> = leaves.iter().map(|(vm, above)| Leaf { vm: *vm, above }).collect();
            entitle_tree(&tree, capacity)
        };
        for ((before, after), (_, above)) in run(&leaves).iter().zip(run(&changed)).zip(&leaves) {
            if above.first().is_none_or(|top| top.id != 1) {
                prop_assert_eq!(*before, after);
            }
        }
    }
}
