//! Which VMs there are, by KVM's own list: what a look costs is decided by how many VMs there are, and not by what their
//! users open.
//!
//! A first member of the list is found among the open files of all processes; from then on the list's members of the last
//! look are enough, its head among them, which stays when the last VM ends. A VM's memory slots are read when KVM has
//! changed them. No more VMs are looked into than the daemon's table holds, and each user's first before anybody's second.

use std::collections::{BTreeMap, HashMap};

use crate::interface::{FOUND_MEMBER, FOUND_SLOT, FOUND_VM, Found, HOST_VMS, ListArgs, LookArgs, NO_GENERATION};

/// What KVM is asked for; errors are negative numbers of errors.
pub(crate) trait Kernel {
    type Error;

    /// The place in the list of the first VM that an open file leads to; `None`: there is no VM, or it has no place.
    fn first(&mut self) -> Result<Option<u64>, Self::Error>;

    /// The members of the list that the place `args.at` is in, in `args.count` records.
    fn list(&mut self, args: &mut ListArgs) -> Result<Vec<Found>, Self::Error>;

    /// Memory slots and vCPUs of the VM `args.kvm`.
    fn look(&mut self, args: &mut LookArgs) -> Result<Vec<Found>, Self::Error>;
}

/// What is known of it.
#[derive(Debug, Default)]
pub(crate) struct VmList {
    /// Places of its members, first those that are likely to stay.
    members: Vec<u64>,
    /// By the address of the kernel's struct kvm.
    slots: HashMap<u64, Slots>,
}

/// The memory slots of a VM when they were last read.
#[derive(Debug)]
struct Slots {
    tgid: i32,
    generation: u64,
    records: Vec<Found>,
}

/// How a look ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// Everything about all VMs that there are.
    All(Vec<Found>),
    /// The list changed again and again: what is known stays as it is for now.
    Changing,
    /// This kernel keeps it in a way that the programs don't know.
    Unknown,
}

const AGAIN: i32 = -libc::EAGAIN;
const STALE: i32 = -libc::ESTALE;

/// Walks in a look. One fails when a VM ends at the moment at which it is passed, and takes microseconds.
const TRIES: usize = 8;
/// Members that are remembered: one is enough, if it stays.
const MEMBERS: usize = 64;

impl VmList {
    /// One look.
    pub(crate) fn look<K: Kernel>(&mut self, kernel: &mut K) -> Result<Seen, K::Error> {
        for _ in 0..TRIES {
            let Some(&at) = self.members.first() else {
                match kernel.first()? {
                    None => {
                        self.slots.clear();
                        return Ok(Seen::All(Vec::new()));
                    }
                    Some(0) => return Ok(Seen::Unknown),
                    Some(at) => self.members.push(at),
                }
                continue;
            };
            let mut args = ListArgs { at, ..ListArgs::default() };
            let members = kernel.list(&mut args)?;
            match args.error {
                0 => {
                    self.remember(&members);
                    return self.look_into(kernel, members).map(Seen::All);
                }
                // It has ended, or with the last VM KVM was unloaded.
                STALE => drop(self.members.remove(0)),
                AGAIN => {}
                // EOPNOTSUPP.
                _ => return Ok(Seen::Unknown),
            }
        }
        Ok(Seen::Changing)
    }

    /// The head is among those that are no VMs.
    fn remember(&mut self, members: &[Found]) {
        let of_kind = |kind| members.iter().filter(move |record| record.kind == kind).map(|record| record.c);
        self.members = of_kind(FOUND_MEMBER).chain(of_kind(FOUND_VM)).take(MEMBERS).collect();
    }

    fn look_into<K: Kernel>(&mut self, kernel: &mut K, members: Vec<Found>) -> Result<Vec<Found>, K::Error> {
        let mut records = Vec::new();
        let mut before = std::mem::take(&mut self.slots);
        for vm in fairly(members) {
            let known = before.remove(&vm.kvm).filter(|known| known.tgid == vm.tgid);
            let generation = known.as_ref().map_or(NO_GENERATION, |known| known.generation);
            let mut args = LookArgs { kvm: vm.kvm, tgid: vm.tgid, generation, ..LookArgs::default() };
            let found = kernel.look(&mut args)?;
            // It has ended since.
            if args.error == STALE {
                continue;
            }
            let slots = match known {
                Some(known) if known.generation == args.generation && args.generation != NO_GENERATION => known.records,
                _ => found.iter().filter(|record| record.kind == FOUND_SLOT).copied().collect(),
            };
            records.push(vm);
            records.extend(&slots);
            records.extend(found.into_iter().filter(|record| record.kind != FOUND_SLOT));
            self.slots.insert(vm.kvm, Slots { tgid: vm.tgid, generation: args.generation, records: slots });
        }
        Ok(records)
    }
}

/// The VMs among the members that are looked into: as many as there is room for, and who has many waits for who has few.
fn fairly(members: Vec<Found>) -> Vec<Found> {
    let mut of_user = BTreeMap::<u32, usize>::new();
    let mut vms: Vec<(usize, Found)> = members
        .into_iter()
        .filter(|record| record.kind == FOUND_VM)
        .map(|vm| {
            let nth = of_user.entry(vm.id).or_default();
            *nth += 1;
            (*nth, vm)
        })
        .collect();
    vms.sort_by_key(|(nth, _)| *nth);
    vms.into_iter().take(HOST_VMS).map(|(_, vm)| vm).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interface::FOUND_VCPU;

    const HEAD: u64 = 1;

    /// KVM as it answers, with what it was asked.
    #[derive(Default)]
    struct Fake {
        /// Address, process, user, generation of the slots.
        vms: Vec<(u64, i32, u32, u64)>,
        /// Walks that fail from now on.
        changing: usize,
        walks_over_files: usize,
        slots_read: usize,
    }

    impl Fake {
        fn has(&self, at: u64) -> bool {
            at == HEAD || self.vms.iter().any(|vm| vm.0 + 8 == at)
        }
    }

    impl Kernel for Fake {
        type Error = ();

        fn first(&mut self) -> Result<Option<u64>, ()> {
            self.walks_over_files += 1;
            Ok(self.vms.first().map(|vm| vm.0 + 8))
        }

        fn list(&mut self, args: &mut ListArgs) -> Result<Vec<Found>, ()> {
            let head = Found { kind: FOUND_MEMBER, c: HEAD, ..Found::default() };
            let vm = |vm: &(u64, i32, u32, u64)| Found {
                kind: FOUND_VM,
                kvm: vm.0,
                tgid: vm.1,
                id: vm.2,
                c: vm.0 + 8,
                ..Found::default()
            };
            let all: Vec<Found> = std::iter::once(head).chain(self.vms.iter().map(vm)).collect();
            args.count = all.len() as u32;
            args.error = match (self.has(args.at), self.changing) {
                (false, _) => STALE,
                (true, 0) => 0,
                (true, _) => AGAIN,
            };
            self.changing = self.changing.saturating_sub(1);
            Ok(all)
        }

        fn look(&mut self, args: &mut LookArgs) -> Result<Vec<Found>, ()> {
            let Some(vm) = self.vms.iter().find(|vm| vm.0 == args.kvm && vm.1 == args.tgid) else {
                args.error = STALE;
                return Ok(Vec::new());
            };
            let record = |kind| Found { kind, kvm: vm.0, tgid: vm.1, a: vm.3, ..Found::default() };
            let mut found = Vec::new();
            if args.generation != vm.3 || vm.3 == NO_GENERATION {
                self.slots_read += 1;
                found.push(Found { b: self.slots_read as u64, ..record(FOUND_SLOT) });
            }
            args.generation = vm.3;
            found.push(record(FOUND_VCPU));
            Ok(found)
        }
    }

    fn kinds(seen: Seen) -> (usize, usize, usize) {
        let Seen::All(records) = seen else { panic!("{seen:?}") };
        let count = |kind| records.iter().filter(|record| record.kind == kind).count();
        (count(FOUND_VM), count(FOUND_SLOT), count(FOUND_VCPU))
    }

    /// Issue 23, finding 4: half a million descriptors of one VM were visited once a second.
    #[test]
    fn the_files_are_walked_once_and_what_is_known_is_not_read_again() {
        let mut kernel = Fake { vms: vec![(100, 7, 0, 1), (200, 8, 0, 1)], ..Fake::default() };
        let mut list = VmList::default();
        for _ in 0..1000 {
            assert_eq!(kinds(list.look(&mut kernel).unwrap()), (2, 2, 2));
        }
        assert_eq!((kernel.walks_over_files, kernel.slots_read), (1, 2));
        // Its memory is laid out anew.
        kernel.vms[0].3 = 2;
        assert_eq!(kinds(list.look(&mut kernel).unwrap()), (2, 2, 2));
        assert_eq!(kernel.slots_read, 3);
        // The last VM ends, and others come: the head stays. Another VM at the same address is another.
        kernel.vms.clear();
        assert_eq!(kinds(list.look(&mut kernel).unwrap()), (0, 0, 0));
        kernel.vms.push((100, 9, 0, 2));
        assert_eq!(kinds(list.look(&mut kernel).unwrap()), (1, 1, 1));
        assert_eq!((kernel.walks_over_files, kernel.slots_read), (1, 4));
    }

    #[test]
    fn slots_that_changed_while_they_were_read_are_read_again() {
        let mut kernel = Fake { vms: vec![(100, 7, 0, NO_GENERATION)], ..Fake::default() };
        let mut list = VmList::default();
        for looks in 1..=3 {
            let Seen::All(records) = list.look(&mut kernel).unwrap() else { panic!("all of them") };
            assert_eq!(records.iter().filter(|record| record.kind == FOUND_SLOT && record.b == looks).count(), 1);
            assert_eq!(kernel.slots_read as u64, looks);
        }
    }

    #[test]
    fn without_any_vm_the_files_are_asked() {
        let (mut kernel, mut list) = (Fake::default(), VmList::default());
        for looks in 1..=3 {
            assert_eq!(kinds(list.look(&mut kernel).unwrap()), (0, 0, 0));
            assert_eq!(kernel.walks_over_files, looks);
        }
    }

    #[test]
    fn a_list_that_changes_under_the_walk_is_walked_again_and_never_told_in_part() {
        let mut kernel = Fake { vms: vec![(100, 7, 0, 1)], changing: 3, ..Fake::default() };
        let mut list = VmList::default();
        assert_eq!(kinds(list.look(&mut kernel).unwrap()), (1, 1, 1));
        kernel.changing = 1000;
        assert_eq!(list.look(&mut kernel).unwrap(), Seen::Changing);
        assert_eq!(kernel.changing, 1000 - TRIES);
    }

    #[test]
    fn who_has_many_vms_waits_for_who_has_one() {
        let mut vms: Vec<_> = (0..3000).map(|nth| (1000 + nth * 16, 7, 1000, 1)).collect();
        vms.push((5, 8, 1001, 1));
        let mut kernel = Fake { vms, ..Fake::default() };
        let Seen::All(records) = VmList::default().look(&mut kernel).unwrap() else { panic!("all of them") };
        let looked_into: Vec<_> = records.iter().filter(|record| record.kind == FOUND_VM).collect();
        assert_eq!(looked_into.len(), HOST_VMS);
        assert!(looked_into.iter().take(2).any(|vm| vm.id == 1001));
        assert_eq!(kernel.slots_read, HOST_VMS, "no more than there is room for");
    }

    #[test]
    fn kvm_that_was_unloaded_and_loaded_again_has_another_head() {
        let mut kernel = Fake { vms: vec![(100, 7, 0, 1)], ..Fake::default() };
        let mut list = VmList { members: vec![77, 78], ..VmList::default() };
        assert_eq!(kinds(list.look(&mut kernel).unwrap()), (1, 1, 1));
        assert_eq!(kernel.walks_over_files, 1);
    }
}
