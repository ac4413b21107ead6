//! How much CPU time each VM can have now.

/// What counts for a VM's entitlement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    /// vCPUs: a VM cannot use more pCPUs than that.
    pub(crate) vcpus: u32,
}

/// The plain share of each VM in 1/1024 pCPU: the same for every VM, and what one cannot use goes to the others.
pub(crate) fn entitlements(pcpus: u32, claims: &[Claim]) -> Vec<u32> {
    let mut order: Vec<usize> = (0..claims.len()).collect();
    order.sort_by_key(|&i| claims[i].vcpus);
    let mut shares = vec![0; claims.len()];
    let mut left = u64::from(pcpus) * 1024;
    // Max-min: the smallest takes what it can use of an equal part, the rest is divided among the bigger ones.
    for (done, &i) in order.iter().enumerate() {
        let equal = left / (claims.len() - done) as u64;
        let share = equal.min(u64::from(claims[i].vcpus) * 1024);
        shares[i] = share as u32;
        left -= share;
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shares(pcpus: u32, vcpus: &[u32]) -> Vec<u32> {
        entitlements(pcpus, &vcpus.iter().map(|&vcpus| Claim { vcpus }).collect::<Vec<_>>())
    }

    #[test]
    fn two_big_vms_halve_the_host_and_a_small_one_takes_what_it_can_use() {
        assert_eq!(shares(2, &[4, 4]), [1024, 1024]);
        assert_eq!(shares(4, &[1, 8, 8]), [1024, 1536, 1536]);
        assert_eq!(shares(8, &[2]), [2048]);
    }

    proptest! {
        #[test]
        fn never_more_than_there_is_nor_than_can_be_used(
            pcpus in 1u32..512, vcpus in prop::collection::vec(1u32..256, 0..50),
        ) {
            let shares = shares(pcpus, &vcpus);
            prop_assert!(shares.iter().map(|&s| u64::from(s)).sum::<u64>() <= u64::from(pcpus) * 1024);
            for (share, vcpus) in shares.iter().zip(&vcpus) {
                prop_assert!(*share <= vcpus * 1024);
            }
        }
    }
}
