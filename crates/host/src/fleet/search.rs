//! The search for agents in the guests, and the pairing with those that offer.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use entrain_system::Root;

use super::Fleet;
use crate::channel::Channel;
use crate::classes::Publish;
use crate::eyes::Eyes;
use crate::memory::ProcessMemory;
use crate::programs::Programs;
use crate::register;
use crate::rivals::Refused;
use crate::scan::Scan;
use crate::vm::{Vm, about};

/// How long one VM is looked at before it may be another's turn.
const TURN: Duration = Duration::from_millis(5);

impl Fleet {
    /// Looks for agents and pairs with those that offer, for at most `budget` and what the allowance has left.
    pub(crate) fn pair(&mut self, budget: Duration) {
        let start = Instant::now();
        let deadline = start + budget.min(self.allowance.left(start));
        self.turns.follow(self.vms.iter().map(|(kvm, vm)| (*kvm, vm.found.user)));
        loop {
            let now = Instant::now();
            let (search, eyes) = (self.search, &mut self.eyes);
            let waiting = self.vms.iter().filter(|(_, vm)| search.wants(vm) && eyes.serves(vm.found.user));
            let waiting = waiting.map(|(kvm, vm)| (*kvm, vm.found.user));
            let Some(kvm) = self.turns.next(waiting).filter(|_| now < deadline) else { break };
            let vm = self.vms.get_mut(&kvm).expect("one of them");
            let (programs, eyes, root, until) = (&self.programs, &mut self.eyes, &self.root, deadline.min(now + TURN));
            alone(vm, |vm| turn(programs, eyes, root, vm, search, until));
            self.turns.charge(kvm, vm.found.user, now.elapsed());
        }
        self.allowance.take(start.elapsed());
    }

    /// Whether a VM waits that has not been looked through at all yet, or whose guest has rung.
    pub(crate) fn search_is_urgent(&self) -> bool {
        self.vms.values().any(|vm| self.search.wants(vm) && (!vm.offers.is_empty() || vm.scan.first()))
    }

    /// Writes down for the next daemon where the pages of all VMs are.
    pub(crate) fn remember(&mut self) {
        self.remembered.follow(self.vms.values());
    }

    /// All VMs that are not paired with all their vCPUs are looked at once more.
    pub(crate) fn look_again(&mut self) {
        self.vms.values_mut().for_each(|vm| vm.look = true);
    }

    /// A guest has rung: its page is at `gpa`. False when the VM is not known yet.
    pub(crate) fn doorbell(&mut self, tid: i32, tgid: i32, gpa: u64) -> bool {
        let known = |vm: &&mut Vm| vm.found.tgid == tgid && vm.vcpus.values().any(|vcpu| vcpu.tid == tid);
        let Some(vm) = self.vms.values_mut().find(known) else { return false };
        if vm.channel == Channel::Migrating {
            return true;
        }
        about!(debug, vm, "doorbell for the page at {gpa:#x}");
        vm.offer(gpa);
        true
    }
}

/// How offers are looked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Search {
    /// The guests' memory is not looked through: only doorbells count.
    pub(crate) never: bool,
    /// A guest that rings is sure to be heard.
    pub(crate) bell: bool,
}

impl Search {
    /// Whether there is anything to do for a VM.
    fn wants(self, vm: &Vm) -> bool {
        if vm.publish == Publish::None || vm.refused.is_some_and(|refused| refused.lasts(Instant::now())) {
            return false;
        }
        !vm.offers.is_empty() || vm.registration.is_some() && vm.look && is_open(vm) || self.is_due(vm)
    }

    fn is_due(self, vm: &Vm) -> bool {
        vm.registration.is_none() && is_open(vm) && !self.never && vm.scan.due(self.bell)
    }
}

fn is_open(vm: &Vm) -> bool {
    !matches!(vm.channel, Channel::Paired | Channel::Migrating | Channel::Unsupported)
}

/// Does something for one VM of what its guest and its owner decide. If that panics, which is a fault of this program, it is
/// this VM's doing all the same, and nobody else's loss: its guest is let go of and left alone for a while.
fn alone(vm: &mut Vm, turn: impl FnOnce(&mut Vm)) {
    if catch_unwind(AssertUnwindSafe(|| turn(vm))).is_ok() {
        return;
    }
    let refused = Refused::again(vm.refused, Instant::now());
    about!(
        error,
        vm,
        "its guest's offer made a part of entrain fail, which is a fault of entrain: please report it; left alone for {} s",
        refused.seconds()
    );
    vm.offers.clear();
    vm.rival = None;
    vm.refused = Some(refused);
    match vm.paired() {
        0 => vm.start_over(Channel::Refused),
        // With the next heartbeat.
        _ => vm.replaced = true,
    }
}

/// One VM's turn.
fn turn(programs: &Programs, eyes: &mut Eyes, root: &Root, vm: &mut Vm, search: Search, deadline: Instant) {
    let (user, pid, root) = (vm.found.user, vm.found.tgid, root.clone());
    let opened = eyes.ask(user, move || ProcessMemory::of(&root, pid));
    let memory = match opened.unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into())) {
        Ok(memory) => Arc::new(memory),
        // The VMM is about to end; the next discovery tells.
        Err(error) => {
            about!(debug, vm, "cannot look into its process: {error}");
            vm.offers.clear();
            vm.look = false;
            vm.scan.postpone();
            return;
        }
    };
    while let Some(gpa) = vm.offers.pop_front() {
        register::consider(programs, eyes, vm, &memory, gpa);
        if Instant::now() >= deadline {
            return;
        }
    }
    if vm.registration.is_some() && std::mem::take(&mut vm.look) {
        register::pair_registered(programs, eyes, vm, &memory);
    }
    if vm.registration.is_some() || !search.is_due(vm) {
        return;
    }
    let (mut scan, slots) = (std::mem::replace(&mut vm.scan, Scan::new()), vm.found.slots.clone());
    let went = eyes.ask(user, move || {
        let hits = scan.advance(&slots, &memory, deadline);
        (scan, hits)
    });
    let Some((scan, hits)) = went else { return vm.scan.postpone() };
    vm.scan = scan;
    match hits {
        Ok(hits) => hits.into_iter().for_each(|gpa| vm.offer(gpa)),
        Err(error) => about!(debug, vm, "cannot look through its memory: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discover::FoundVm;
    use crate::identity::Identity;

    /// A guest that finds a fault in what reads its page would end the daemon, and all guests' pairings with it.
    #[test]
    fn who_makes_a_turn_fail_is_left_alone_and_nobody_else() {
        let vm = |number| Vm::new(number, Identity::unknown(7), format!("pid {number}"), FoundVm::default());
        let (mut bad, mut good) = (vm(0), vm(1));
        bad.offer(0x1000);
        good.offer(0x2000);
        let consider = |vm: &mut Vm| assert_ne!(vm.offers.pop_front(), Some(0x1000), "as a fault of ours does");
        let search = Search::default();
        alone(&mut bad, consider);
        alone(&mut good, consider);
        assert!(bad.channel == Channel::Refused && bad.offers.is_empty());
        bad.offer(0x1000);
        assert!(!search.wants(&bad), "not at once again");
        good.offer(0x3000);
        assert!(search.wants(&good));
    }
}
