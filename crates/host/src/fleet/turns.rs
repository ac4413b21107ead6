//! Whose turn it is: what the daemon does for one VM is time that it has not for another.
//!
//! The user whose VMs have had the least time is next, and of these the VM that has had the least. So a user gains nothing
//! by starting many VMs, and where all VMs are one user's (libvirt's), none of them keeps the others waiting. Who comes anew
//! begins with as much as he that has had the least: nobody gains by leaving and coming back.

use std::collections::BTreeMap;
use std::time::Duration;

/// Time that users and VMs have had.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// By number of the user.
    users: BTreeMap<u32, Duration>,
    /// By the address of the kernel's struct kvm.
    vms: BTreeMap<u64, Duration>,
}

impl Turns {
    /// These VMs are there, each with its user; what is known of others goes.
    pub(super) fn follow(&mut self, present: impl Iterator<Item = (u64, u32)> + Clone) {
        keep(&mut self.users, present.clone().map(|(_, user)| user));
        keep(&mut self.vms, present.map(|(vm, _)| vm));
    }

    /// Who of these is next.
    pub(super) fn next(&self, waiting: impl Iterator<Item = (u64, u32)>) -> Option<u64> {
        let had = |(vm, user): &(u64, u32)| (self.users.get(user).copied(), self.vms.get(vm).copied(), *vm);
        waiting.min_by_key(had).map(|(vm, _)| vm)
    }

    /// A VM and its user have had so much.
    pub(super) fn charge(&mut self, vm: u64, user: u32, took: Duration) {
        *self.users.entry(user).or_default() += took;
        *self.vms.entry(vm).or_default() += took;
    }
}

fn keep<K: Ord + Copy>(had: &mut BTreeMap<K, Duration>, present: impl Iterator<Item = K>) {
    let least = had.values().min().copied().unwrap_or_default();
    *had = present.map(|key| (key, had.get(&key).copied().unwrap_or(least))).collect();
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Gives each turn to who is next, all of them always waiting; how long each VM has had.
    fn run(turns: &mut Turns, vms: &[(u64, u32)], count: u32) -> BTreeMap<u64, u32> {
        let mut had = BTreeMap::new();
        turns.follow(vms.iter().copied());
        for _ in 0..count {
            let vm = turns.next(vms.iter().copied()).expect("somebody waits");
            let user = vms.iter().find(|(known, _)| *known == vm).expect("one of them").1;
            turns.charge(vm, user, MS);
            *had.entry(vm).or_default() += 1;
        }
        had
    }

    #[test]
    fn many_vms_of_one_user_are_one_vm_of_another() {
        let mut turns = Turns::default();
        let mut vms: Vec<(u64, u32)> = (0..100).map(|vm| (vm, 1000)).collect();
        vms.push((100, 1001));
        let had = run(&mut turns, &vms, 1000);
        assert_eq!(had[&100], 500);
        assert!((0..100).all(|vm| had[&vm] == 5), "{had:?}");
    }

    #[test]
    fn leaving_and_coming_back_gains_nothing() {
        let mut turns = Turns::default();
        run(&mut turns, &[(1, 7), (2, 8)], 100);
        // Ever new VMs of new users: each begins with what the one that stays has had.
        let mut stays = 0;
        for new in 3..103 {
            stays += run(&mut turns, &[(1, 7), (new, new as u32 + 7)], 2).get(&1).copied().unwrap_or(0);
        }
        assert!((95..=105).contains(&stays), "{stays}");
    }
}
