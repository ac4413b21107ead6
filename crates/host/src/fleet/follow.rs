//! The table of VMs follows what discovery finds.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use entrain_bpf::Error;
use tracing::warn;

use super::Fleet;
use super::let_go::take_pairings;
use crate::affinity;
use crate::channel::Channel;
use crate::discover::FoundVm;
use crate::identity::Identity;
use crate::interface::{self, HOST_VCPUS, HOST_VMS};
use crate::pair::{self, Paired};
use crate::programs::Programs;
use crate::slots::{MemorySlot, Slots};
use crate::vm::{SPEAKER, Vcpu, Vm, about};

/// vCPUs of one user that one look begins to watch: more than a VM of any ordinary size has, and few enough that a user who
/// starts and ends thousands of them makes no look long for the others.
const NEW: usize = 256;

/// What one look has done so far.
#[derive(Debug)]
struct Look {
    /// All threads that run a vCPU which is watched.
    threads: BTreeSet<i32>,
    /// New vCPUs, by user.
    new: BTreeMap<u32, usize>,
}

impl Look {
    /// Whether one more vCPU of this user is new in this look, and not in the next.
    fn takes_one_more(&mut self, user: u32) -> bool {
        let new = self.new.entry(user).or_default();
        *new += 1;
        *new <= NEW
    }
}

impl Fleet {
    /// Follows the changes since the last look; `found` is all that is there now, by the address of the kernel's struct kvm.
    pub(crate) fn follow(&mut self, mut found: BTreeMap<u64, FoundVm>) -> Result<(), Error> {
        let gone: Vec<u64> = self
            .vms
            .iter()
            .filter(|(kvm, vm)| found.get(kvm).is_none_or(|f| f.tgid != vm.found.tgid))
            .map(|(k, _)| *k)
            .collect();
        for kvm in gone {
            self.remove_vm(kvm)?;
        }
        // A VM without vCPUs that ran is still being made.
        found.retain(|_, vm| !vm.vcpus.is_empty());
        // All that is to be given back at once: the wait for writes under way is the same for one page and for all.
        let mut leaving = Vec::new();
        for (kvm, now) in &found {
            if let Some(vm) = self.vms.get_mut(kvm) {
                leaving.extend(take_leaving(vm, now));
            }
        }
        pair::release(&self.programs, leaving)?;
        // Of all VMs before any vCPU is watched anew: a thread is one vCPU's at a time.
        for (kvm, now) in &found {
            self.forget_vcpus(*kvm, now)?;
        }
        let threads = self.vms.values().flat_map(|vm| vm.vcpus.values().map(|vcpu| vcpu.tid)).collect();
        let mut look = Look { threads, new: BTreeMap::new() };
        for (kvm, now) in found {
            self.update_vm(kvm, now, &mut look)?;
        }
        let runs: BTreeSet<i32> = self.vms.values().map(|vm| vm.found.tgid).collect();
        self.groups.keep(|tgid| runs.contains(&tgid));
        let now = Instant::now();
        for vm in self.vms.values_mut() {
            vm.group = self.groups.of(&self.root, vm.found.tgid, now);
            vm.cpus = affinity::of_any(vm.vcpus.values().map(|vcpu| vcpu.tid));
        }
        Ok(())
    }

    fn remove_vm(&mut self, kvm: u64) -> Result<(), Error> {
        let Some(mut vm) = self.vms.remove(&kvm) else { return Ok(()) };
        if self.is_first_of(vm.found.tgid) {
            about!(info, vm, "has ended (pid {})", vm.found.tgid);
        }
        for vcpu in std::mem::take(&mut vm.vcpus).into_values() {
            self.programs.untrack(vcpu.index)?;
            self.vcpu_numbers.give_back(vcpu.index);
        }
        self.vm_numbers.give_back(vm.number);
        Ok(())
    }

    fn update_vm(&mut self, kvm: u64, now: FoundVm, look: &mut Look) -> Result<(), Error> {
        if !self.vms.contains_key(&kvm) && !self.add_vm(kvm, &now) {
            return Ok(());
        }
        let vm = self.vms.get_mut(&kvm).expect("added above");
        if vm.found.slots != now.slots {
            follow_memory(&self.programs, vm, &now.slots);
        }
        vm.found = now;
        self.follow_vcpus(kvm, look)
    }

    /// False: there is no room for another.
    fn add_vm(&mut self, kvm: u64, now: &FoundVm) -> bool {
        let of_user = self.vms.values().filter(|vm| vm.found.user == now.user).count();
        let Some(number) = self.vm_numbers.allows(0, of_user).then(|| self.vm_numbers.take()).flatten() else {
            self.say_full("VMs", HOST_VMS);
            return false;
        };
        let (root, pid) = (self.root.clone(), now.tgid);
        let told = self.eyes.ask(now.user, move || Identity::of(&root, pid));
        let identity = told.unwrap_or_else(|| Identity::unknown(pid));
        let key = key(&identity, pid, |key| self.vms.values().any(|vm| vm.key == key));
        let mut vm = Vm::new(number, identity, key, FoundVm { tgid: now.tgid, user: now.user, ..FoundVm::default() });
        vm.scan.restart(self.remembered.take(pid));
        if !self.programs.pairs() {
            vm.channel = Channel::Unsupported;
        }
        if self.is_first_of(pid) {
            about!(info, vm, "found (pid {pid}, {}), {} vCPUs", vm.key, now.vcpus.len());
        }
        self.vms.insert(kvm, vm);
        true
    }

    /// Whether no VM of this process is known. The log says when a process's first VM is found and when its last has ended: a
    /// process may have, and end, as many as it likes.
    fn is_first_of(&self, pid: i32) -> bool {
        !self.vms.values().any(|vm| vm.found.tgid == pid)
    }

    /// Stops watching the vCPUs that have left their threads.
    fn forget_vcpus(&mut self, kvm: u64, now: &FoundVm) -> Result<(), Error> {
        let Some(vm) = self.vms.get_mut(&kvm) else { return Ok(()) };
        for id in changed_vcpus(vm, now) {
            let vcpu = vm.vcpus.remove(&id).expect("one of its vCPUs");
            about!(debug, vm, "vCPU {id} has left its thread {}", vcpu.tid);
            self.programs.untrack(vcpu.index)?;
            self.vcpu_numbers.give_back(vcpu.index);
            if vm.channel == Channel::Paired {
                vm.channel = Channel::Partial;
            }
        }
        Ok(())
    }

    /// Watches the vCPUs that are new. A VMM may run several vCPUs in one thread by turns, which leads to one entry and holds
    /// one pairing: the others are watched once the first has left it.
    fn follow_vcpus(&mut self, kvm: u64, look: &mut Look) -> Result<(), Error> {
        let user = self.vms[&kvm].found.user;
        let mut of_user = self.vms.values().filter(|vm| vm.found.user == user).map(|vm| vm.vcpus.len()).sum::<usize>();
        let vm = self.vms.get_mut(&kvm).expect("the caller's");
        let mut others = false;
        let mut full = false;
        for (id, found) in &vm.found.vcpus {
            if vm.vcpus.contains_key(id) || look.threads.contains(&found.tid) {
                continue;
            }
            if !look.takes_one_more(user) {
                break;
            }
            let allowed = self.vcpu_numbers.allows(vm.vcpus.len(), of_user);
            let Some(index) = allowed.then(|| self.vcpu_numbers.take()).flatten() else {
                full = true;
                continue;
            };
            let entry = interface::Vcpu {
                vm: vm.number,
                tid: found.tid,
                tgid: vm.found.tgid,
                kvm_vcpu: found.kvm_vcpu,
                speaks: u32::from(*id == SPEAKER),
                ..Default::default()
            };
            self.programs.vcpus.set(index as usize, entry);
            if self.programs.track(index, found.tid)? {
                look.threads.insert(found.tid);
                vm.vcpus.insert(*id, Vcpu { index, tid: found.tid, kvm_vcpu: found.kvm_vcpu, paired: None, ran: None });
                of_user += 1;
                others = true;
            } else {
                self.vcpu_numbers.give_back(index);
            }
        }
        // A vCPU that was plugged in is looked for among the pages that are known.
        if others && vm.channel == Channel::Paired {
            vm.channel = Channel::Partial;
        }
        if full {
            self.say_full("vCPUs", HOST_VCPUS);
        }
        Ok(())
    }

    fn say_full(&mut self, what: &str, most: usize) {
        if !std::mem::replace(&mut self.full, true) {
            warn!(
                "this host has more {what}, or one user or process has more of them, than fit into a table of {most}: \
                 the others are left alone"
            );
        }
    }
}

/// What a VM is called in metrics: its UUID, which it keeps when it is started anew or migrates. A VMM's user chooses that,
/// so whoever comes second with one (a copy on the same host, a guest of another namespace that KubeVirt gave the same, a
/// tenant who means harm) is told apart by its process, and so is a VM without one.
fn key(identity: &Identity, pid: i32, taken: impl Fn(&str) -> bool) -> String {
    if let Some(uuid) = identity.uuid.as_ref().filter(|uuid| !taken(uuid)) {
        return uuid.clone();
    }
    let first = format!("{}@{pid}", identity.uuid.as_ref().unwrap_or(&identity.name));
    // A process may have several VMs.
    let others = (2u32..).map(|nth| format!("{first}.{nth}"));
    std::iter::once(first.clone()).chain(others).find(|key| !taken(key)).unwrap_or_default()
}

/// vCPUs that are not what they were: gone, or in another thread.
fn changed_vcpus(vm: &Vm, now: &FoundVm) -> Vec<u32> {
    let same = |id: &u32, vcpu: &Vcpu| {
        now.vcpus.get(id).is_some_and(|found| found.tid == vcpu.tid && found.kvm_vcpu == vcpu.kvm_vcpu)
    };
    vm.vcpus.iter().filter(|(id, vcpu)| !same(id, vcpu)).map(|(id, _)| *id).collect()
}

/// The biggest slot is RAM; a display's memory is logged all the time.
fn migrates(now: &Slots) -> bool {
    now.iter().next().is_some_and(MemorySlot::logs_writes)
}

/// Why a VM's pairings cannot outlive a change of its memory, if so.
fn why_memory_ends(vm: &Vm, now: &Slots) -> Option<&'static str> {
    if vm.found.slots == *now {
        return None;
    }
    let mut pages = vm.registration.iter().flat_map(|registration| &registration.pages);
    let moved = pages.any(|&gpa| vm.found.slots.hva(gpa, 4096) != now.hva(gpa, 4096));
    match (migrates(now), moved) {
        (true, _) => Some("its memory is being copied (live migration)"),
        (false, true) => Some("its memory has been laid out anew"),
        _ => None,
    }
}

/// Takes out of a VM the pairings that end with what it is `now`.
fn take_leaving(vm: &mut Vm, now: &FoundVm) -> Vec<Paired> {
    if let Some(why) = why_memory_ends(vm, &now.slots) {
        let held = take_pairings(vm);
        if !held.is_empty() {
            about!(info, vm, "{why}; let go of its pages");
        }
        return held;
    }
    let changed = changed_vcpus(vm, now);
    let changed = vm.vcpus.iter_mut().filter(|(id, _)| changed.contains(id));
    changed.filter_map(|(_, vcpu)| vcpu.paired.take()).collect()
}

/// A VM's memory has been laid out anew, or is being copied: what was paired is not any more, and is searched anew. Where
/// no guest can be paired nobody asks where its memory is.
fn follow_memory(programs: &Programs, vm: &mut Vm, now: &Slots) {
    if vm.channel == Channel::Unsupported {
        return;
    }
    if why_memory_ends(vm, now).is_some() {
        vm.start_over(Channel::Silent);
    }
    if migrates(now) {
        vm.channel = Channel::Migrating;
    } else if vm.channel == Channel::Migrating {
        vm.channel = Channel::Silent;
    }
    let mut entry = programs.vms.get(vm.number as usize);
    entry.slots = Default::default();
    entry.nr_slots = 0;
    for (into, slot) in entry.slots.iter_mut().zip(now.iter()) {
        *into = interface::Slot { gpa: slot.gpa, size: slot.size, hva: slot.hva };
        entry.nr_slots += 1;
    }
    programs.vms.set(vm.number as usize, entry);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Issue 23: a process with thousands of vCPUs, which come and go, made looks long for everybody.
    #[test]
    fn one_look_watches_so_many_new_vcpus_of_a_user_and_no_more() {
        let mut look = Look { threads: BTreeSet::new(), new: BTreeMap::new() };
        assert_eq!((0..4096).filter(|_| look.takes_one_more(1000)).count(), NEW);
        assert!(look.takes_one_more(1001), "another user");
    }

    #[test]
    fn a_uuid_is_the_name_of_whoever_had_it_first() {
        let uuid = "a1b2c3d4-0000-4000-8000-0123456789ab";
        let with = Identity { name: "db".into(), uuid: Some(uuid.into()), ..Identity::default() };
        assert_eq!(key(&with, 7, |_| false), uuid);
        assert_eq!(key(&with, 8, |key| key == uuid), format!("{uuid}@8"));
        assert_eq!(key(&Identity::unknown(9), 9, |_| false), "pid 9@9");
        let two = ["pid 9@9", "pid 9@9.2"];
        assert_eq!(key(&Identity::unknown(9), 9, |key| two.contains(&key)), "pid 9@9.3", "three in one process");
        // A name may look like a UUID, and is not one.
        let named = Identity { name: uuid.into(), ..Identity::default() };
        assert_eq!(key(&named, 7, |_| false), format!("{uuid}@7"));
    }
}
