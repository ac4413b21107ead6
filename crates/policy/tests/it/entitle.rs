//! Entitlement: the textbook properties of weighted max-min fairness, checked against the plain iteration.

use entrain_policy::entitle::{Entitlement, Floor, Vm, demand, entitle, most_minima, raise};
use proptest::prelude::*;

fn vms() -> impl Strategy<Value = Vec<Vm>> {
    let vm = (1u64..=10_000, 0u64..=16 * 1024, 0u64..=16 * 1024)
        .prop_map(|(weight, demand, ceiling)| Vm::new(weight, demand, ceiling));
    prop::collection::vec(vm, 1..24)
}

/// Progressive filling as the textbook has it: satisfy whoever wants less than its part, share the rest, repeat.
fn filling(vms: &[Vm], capacity: u64) -> Vec<f64> {
    let mut shares = vec![None; vms.len()];
    loop {
        let left = capacity as f64 - shares.iter().flatten().sum::<f64>();
        let weight: f64 =
            vms.iter().zip(&shares).filter(|(_, share)| share.is_none()).map(|(vm, _)| vm.weight as f64).sum();
        let mut met = false;
        for (vm, share) in vms.iter().zip(&mut shares) {
            if share.is_none() && vm.demand as f64 <= left.max(0.0) * vm.weight as f64 / weight {
                *share = Some(vm.demand as f64);
                met = true;
            }
        }
        if !met {
            return vms
                .iter()
                .zip(&shares)
                .map(|(vm, share)| share.unwrap_or(left.max(0.0) * vm.weight as f64 / weight))
                .collect();
        }
    }
}

proptest! {
    #[test]
    fn shares_are_those_of_progressive_filling(vms in vms(), capacity in 0u64..64 * 1024) {
        let expected = filling(&vms, capacity);
        let got = entitle(&vms, capacity);
        for (got, expected) in got.iter().zip(&expected) {
            prop_assert!((got.share as f64 - expected).abs() <= 1.0, "{got:?} for {expected}");
        }
        prop_assert!(got.iter().map(|got| got.share).sum::<u64>() <= capacity);
    }

    #[test]
    fn an_entitlement_is_the_share_of_one_that_wants_all(vms in vms(), capacity in 0u64..64 * 1024) {
        let got = entitle(&vms, capacity);
        let weights: u64 = vms.iter().map(|vm| vm.weight).sum();
        for (index, vm) in vms.iter().enumerate() {
            let mut greedy = vms.clone();
            greedy[index] = Vm::new(vm.weight, vm.ceiling, vm.ceiling);
            let Entitlement { share, entitlement } = got[index];
            prop_assert_eq!(entitle(&greedy, capacity)[index].share, entitlement);
            prop_assert!(share <= entitlement && entitlement <= vm.ceiling);
            // Nobody can push it below its part by weight.
            prop_assert!(entitlement >= (capacity * vm.weight / weights).min(vm.ceiling));
        }
    }

    #[test]
    fn a_neighbour_that_wants_more_never_helps(vms in vms(), capacity in 0u64..64 * 1024, more in 1u64..4096) {
        let before = entitle(&vms, capacity);
        let mut greedier = vms.clone();
        greedier[0] = Vm::new(vms[0].weight, vms[0].demand + more, vms[0].ceiling);
        let after = entitle(&greedier, capacity);
        for index in 1..vms.len() {
            prop_assert!(after[index].entitlement <= before[index].entitlement);
        }
    }

    #[test]
    fn demand_is_what_ran_or_is_asked_for(runnable: u64, period: u64, wants: u32) {
        let most = 4096 * 1024;
        let now = demand(runnable, period, wants);
        prop_assert!(now <= most && now >= (u64::from(wants) * 1024).min(most));
        prop_assert_eq!(demand(0, period, 0), 0);
        // Two vCPUs that were runnable all the time.
        prop_assert_eq!(demand(8_000_000, 4_000_000, 1), 2048);
    }
}

proptest! {
    #[test]
    fn a_minimum_is_held_against_neighbours_that_want_everything(
        vms in prop::collection::vec((25u64..=400, prop_oneof![Just(0u64), 0..4096u64]), 1..12), capacity in 1024u64..64 * 1024,
    ) {
        let before: Vec<Floor> = vms.iter().map(|&(weight, minimum)| Floor::new(weight, minimum)).collect();
        let mut after = before.clone();
        let fits = raise(&mut after, capacity);
        let sum: u64 = before.iter().map(|vm| vm.minimum).sum();
        prop_assert_eq!(fits, sum <= most_minima(capacity));
        let weights: u64 = after.iter().map(|vm| vm.weight).sum();
        let all: Vec<Vm> = after.iter().map(|vm| Vm::new(vm.weight, capacity, capacity)).collect();
        for (index, got) in entitle(&all, capacity).iter().enumerate() {
            let (was, now) = (before[index], after[index]);
            if fits {
                prop_assert_eq!(was.minimum, now.minimum);
            } else {
                prop_assert_eq!(now.minimum, was.minimum * most_minima(capacity) / sum, "all give way alike");
            }
            prop_assert!(now.weight == was.weight || now.minimum > 0, "who was promised nothing is not raised");
            // Each raised weight is rounded up, which takes a little from the others.
            let rounded = now.minimum * (weights - after.len() as u64) / weights;
            if now.weight < 10_000 {
                prop_assert!(got.entitlement + 1 >= rounded, "{got:?} of {now:?}");
            }
        }
    }

    #[test]
    fn where_minima_are_small_no_weight_changes(weights in prop::collection::vec(1u64..=10_000, 1..12), capacity in 1024u64..64 * 1024) {
        let sum: u64 = weights.iter().sum();
        // Half of what the weight gives anyway.
        let mut vms: Vec<Floor> = weights.iter().map(|&weight| Floor::new(weight, capacity * weight / sum / 2)).collect();
        prop_assert!(raise(&mut vms, capacity));
        prop_assert_eq!(vms.iter().map(|vm| vm.weight).collect::<Vec<_>>(), weights);
    }

    #[test]
    fn any_floor_is_answered(vms in prop::collection::vec((any::<u64>(), any::<u64>()), 0..12), capacity in 0u64..1 << 30) {
        let mut vms: Vec<Floor> = vms.into_iter().map(|(weight, minimum)| Floor::new(weight, minimum)).collect();
        raise(&mut vms, capacity);
        prop_assert!(vms.iter().all(|vm| (1..=10_000).contains(&vm.weight)));
        let most = most_minima(capacity);
        prop_assert!(vms.iter().map(|vm| vm.minimum).sum::<u64>() <= most);
    }
}

#[test]
fn one_of_two_is_promised_three_quarters() {
    let mut vms = [Floor::new(100, 1536), Floor::new(100, 0)];
    assert!(raise(&mut vms, 2048));
    assert_eq!((vms[0].weight, vms[1].weight), (300, 100));
    let mut too_much = [Floor::new(100, 2048), Floor::new(100, 2048)];
    assert!(!raise(&mut too_much, 2048));
    assert_eq!(too_much.map(|vm| (vm.weight, vm.minimum)), [(100, 921), (100, 921)]);
}

#[test]
fn two_guests_of_four_vcpus_on_two_pcpus() {
    let both = [Vm::new(100, 4096, 4096), Vm::new(100, 4096, 4096)];
    assert!(entitle(&both, 2048).iter().all(|got| got.entitlement == 1024 && got.share == 1024));
    // The other is idle: one may have the whole host, the other is still told that half is its own.
    let one = [Vm::new(100, 4096, 4096), Vm::new(100, 0, 4096)];
    let got = entitle(&one, 2048);
    assert_eq!((got[0].entitlement, got[0].share), (2048, 2048));
    assert_eq!((got[1].entitlement, got[1].share), (1024, 0));
    // Double weight, double share.
    let weighted = [Vm::new(200, 4096, 4096), Vm::new(100, 4096, 4096)];
    assert_eq!(entitle(&weighted, 3072).iter().map(|got| got.entitlement).collect::<Vec<_>>(), [2048, 1024]);
}

#[test]
fn no_vms_no_answers() {
    assert!(entitle(&[], 2048).is_empty());
}
