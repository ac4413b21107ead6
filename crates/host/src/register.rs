//! What a guest offers, and the pairing with all its vCPUs.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use entrain_channel::page::PAGE_SIZE;
use entrain_channel::validate::{Refusal, ValidatedHeader, validate_directory, validate_sibling};
use entrain_system::monotonic_ns;

use crate::channel::Channel;
use crate::eyes::Eyes;
use crate::memory::ProcessMemory;
use crate::pair::{Maps, PairError, Paired, Verified, layout_number, verify};
use crate::programs::Programs;
use crate::rivals::{Refused, Verdict, judge};
use crate::slots::Slots;
use crate::vm::{Registration, Vm, about};

/// Looks at a page that may be the first of a registration, and pairs with all of them if it is.
pub(crate) fn consider(programs: &Programs, eyes: &mut Eyes, vm: &mut Vm, memory: &Arc<ProcessMemory>, gpa: u64) {
    let (slots, own) = (vm.found.slots.clone(), memory.clone());
    let Some(seen) = eyes.ask(vm.found.user, move || offer(&slots, &own, gpa)) else { return };
    let (verified, pages) = match seen {
        Ok(Some(offer)) => offer,
        Ok(None) => return,
        Err(error) => return refused(vm, gpa, &error),
    };
    if vm.registration.as_ref().is_some_and(|known| known.first.cookie == verified.page.cookie) {
        return;
    }
    if vm.paired() > 0 {
        let now = Instant::now();
        match judge(&mut vm.rival, verified.page.cookie, gpa, vm.silence.since(now), now) {
            Verdict::Wait => return,
            // What is paired belongs to the dead one, and is let go of with the next heartbeat; then this one is looked at.
            Verdict::Replaces => {
                vm.replaced = true;
                return;
            }
            Verdict::Conflict => {
                let refused = Refused::again(vm.refused, now);
                about!(
                    warn,
                    vm,
                    "two registrations live at once, so neither is paired for {} s: two agents run in the guest, or a \
                     process there forges pages",
                    refused.seconds()
                );
                vm.rival = None;
                vm.refused = Some(refused);
                vm.replaced = true;
                return;
            }
        }
    }
    vm.registration = Some(Registration { pages, first: verified.page, next: 0, epoch: monotonic_ns() });
    describe(programs, vm, &verified);
    pair_registered(programs, eyes, vm, memory);
}

/// What stands in the first page of a registration: the page, and where those of all vCPUs are. `None` for the page of
/// another vCPU than 0, which is found through the first.
pub(crate) fn offer(
    slots: &Slots,
    memory: &ProcessMemory,
    gpa: u64,
) -> Result<Option<(Verified, Vec<u64>)>, PairError> {
    let verified = verify(slots, memory, gpa)?;
    if verified.page.vcpu != 0 {
        return Ok(None);
    }
    let in_ram = |gpa, length| slots.find(gpa, length).is_some();
    let pages = validate_directory(&verified.page, &verified.directory, &in_ram)?;
    Ok(Some((verified, pages)))
}

/// The page of vCPU `number` of a registration, at `gpa` by its directory.
pub(crate) fn sibling(
    slots: &Slots,
    memory: &ProcessMemory,
    first: &ValidatedHeader,
    number: u32,
    gpa: u64,
) -> Result<Verified, PairError> {
    let verified = verify(slots, memory, gpa)?;
    validate_sibling(first, number, &verified.page)?;
    Ok(verified)
}

/// The same with its memory mapped: `None` where that is private to the VMM.
type Seen = (Verified, Option<Result<Maps, PairError>>);

fn see(
    slots: &Slots,
    memory: &ProcessMemory,
    first: &ValidatedHeader,
    number: u32,
    gpa: u64,
) -> Result<Seen, PairError> {
    let verified = sibling(slots, memory, first, number, gpa)?;
    let hva = slots.hva(gpa, PAGE_SIZE as u64);
    let region = hva.and_then(|hva| memory.region(hva, PAGE_SIZE as u64).ok()?);
    let shared = region.is_some_and(|region| region.written_file().is_some());
    let maps = shared.then(|| Maps::of(slots, memory, &verified.page));
    Ok((verified, maps))
}

/// Tells BPF what the guest said of its kernel.
fn describe(programs: &Programs, vm: &Vm, first: &Verified) {
    let mut entry = programs.vms.get(vm.number as usize);
    entry.preempt_offset = first.header.preempt_offset;
    entry.linear_base = first.header.linear_base;
    entry.linear_size = first.header.linear_size;
    entry.linear_gpa = first.header.linear_gpa;
    programs.vms.set(vm.number as usize, entry);
}

/// Pages that one look reads beyond the vCPUs that are not paired: those of vCPUs that are offline stand between.
const SPARE: usize = 8;

/// Pairs with the pages of the registration that are on offer and not paired yet. The guest claims up to 256 of them; KVM
/// knows how many vCPUs it has, and no more pages than these and [`SPARE`] are read at a time.
pub(crate) fn pair_registered(programs: &Programs, eyes: &mut Eyes, vm: &mut Vm, memory: &Arc<ProcessMemory>) {
    let Some(registration) = vm.registration.clone() else { return };
    let before = vm.paired();
    let mut lost = false;
    let mut read_only = 0;
    let look = look(vm, &registration);
    let mut missing = look.left;
    if let Some(registration) = &mut vm.registration {
        registration.next = look.next;
    }
    for number in look.numbers {
        let gpa = registration.pages[number];
        let (slots, own, first) = (vm.found.slots.clone(), memory.clone(), registration.first);
        let seen = eyes.ask(vm.found.user, move || see(&slots, &own, &first, number as u32, gpa));
        let (verified, maps) = match seen.unwrap_or(Err(PairError::HeldUp)) {
            Ok(seen) => seen,
            // Paired already, or withdrawn.
            Err(PairError::Refused(Refusal::NotOffered(_))) => continue,
            Err(error) => {
                refused(vm, gpa, &error);
                missing += 1;
                lost |= number == 0;
                continue;
            }
        };
        // The agent beside a vCPU that is offline or has not run yet offers as well: pair when KVM has a thread for it.
        let Some(id) = host_vcpu(vm, number, verified.page.hwid) else {
            missing += 1;
            continue;
        };
        let vcpu = &vm.vcpus[&id];
        let (index, tid) = (vcpu.index, vcpu.tid);
        read_preempt(programs, vm, index, &verified, maps.is_some());
        let Some(maps) = maps else {
            read_only += 1;
            continue;
        };
        match maps.and_then(|maps| Paired::new(programs, &maps, &verified, index, tid, registration.epoch)) {
            Ok(paired) => vm.vcpus.get_mut(&id).expect("looked up above").paired = Some(paired),
            Err(error) => {
                refused(vm, gpa, &error);
                missing += 1;
            }
        }
    }
    settle(vm, before, Left { missing, read_only, lost });
}

/// Which pages of a registration one look reads.
#[derive(Debug, PartialEq, Eq)]
struct Look {
    numbers: Vec<usize>,
    /// Where the next look begins.
    next: usize,
    /// Pages that are neither paired nor read.
    left: usize,
}

fn look(vm: &Vm, registration: &Registration) -> Look {
    let paired: HashSet<u64> = vm.vcpus.values().filter_map(|vcpu| Some(vcpu.paired.as_ref()?.gpa())).collect();
    let most = vm.vcpus.len() - vm.paired() + SPARE;
    let count = registration.pages.len();
    let open = (0..count).map(|i| (registration.next + i) % count);
    let mut numbers: Vec<usize> = open.filter(|number| !paired.contains(&registration.pages[*number])).collect();
    let left = numbers.len().saturating_sub(most);
    let next = numbers.get(most).copied().unwrap_or(0);
    numbers.truncate(most);
    Look { numbers, next, left }
}

/// What could not be paired.
struct Left {
    missing: usize,
    read_only: usize,
    /// The first page is another's or nobody's: the guest or its agent has begun anew.
    lost: bool,
}

fn settle(vm: &mut Vm, before: usize, left: Left) {
    let Left { missing, read_only, lost } = left;
    let paired = vm.paired();
    if read_only > 0 {
        vm.channel = Channel::ReadOnly;
        if vm.first_time("private") {
            about!(
                warn,
                vm,
                "its RAM is private to the VMM: its preempt count is read, but nothing can be published to it. \
                 Give it shared RAM (QEMU: memory-backend-memfd with share=on)"
            );
        }
    } else if paired == 0 {
        // Withdrawn or lost before it was accepted; the search begins anew.
        if missing == 0 || lost {
            vm.start_over(Channel::Silent);
        }
    } else {
        vm.channel = if missing == 0 { Channel::Paired } else { Channel::Partial };
        if paired > before {
            vm.silence.ends(Instant::now());
            let of = vm.registration.as_ref().map_or(0, |r| r.pages.len());
            about!(info, vm, "paired with {paired} of {of} vCPUs");
        }
    }
}

/// KVM's vcpu_id for a vCPU of the guest: by the hardware number that the guest knows, else by order.
fn host_vcpu(vm: &Vm, number: usize, hwid: Option<u32>) -> Option<u32> {
    let id = match hwid {
        Some(id) => id,
        None => *vm.vcpus.keys().nth(number)?,
    };
    vm.vcpus.get(&id).filter(|vcpu| vcpu.paired.is_none()).map(|_| id)
}

/// Tells BPF how to read the vCPU's preempt count.
fn read_preempt(programs: &Programs, vm: &Vm, index: u32, verified: &Verified, shared: bool) {
    let in_place = if shared { None } else { vm.found.slots.hva(verified.header.preempt_gpa, 4) };
    let entry = programs.vcpus.at(index as usize);
    // SAFETY: aligned fields inside the table that the daemon alone writes.
    unsafe {
        (&raw mut (*entry).preempt_hva).write_volatile(in_place.unwrap_or(0));
        (&raw mut (*entry).preempt_layout).write_volatile(layout_number(&verified.page));
    }
}

/// Says once what is wrong with a guest's offer.
fn refused(vm: &mut Vm, gpa: u64, error: &PairError) {
    match error {
        // What a page looks like after its registration ended, or a copy of it at another address.
        PairError::Refused(Refusal::NotOffered(_) | Refusal::Magic | Refusal::Elsewhere { .. })
        | PairError::TakenBack
        | PairError::Absent { .. }
        | PairError::HeldUp
        | PairError::Ended => about!(debug, vm, "page at {gpa:#x}: {error}"),
        _ => {
            if vm.paired() == 0 {
                vm.channel = Channel::Refused;
            }
            if vm.first_time(&error.to_string()) {
                about!(warn, vm, "not paired: {error}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discover::FoundVm;
    use crate::identity::Identity;
    use crate::untrusted::tests::header;
    use crate::vm::Vcpu;

    /// Issue 23, finding 3: what a guest claims is bounded by what KVM knows of it.
    #[test]
    fn a_claim_of_many_pages_is_read_in_parts_that_go_round() {
        let mut vm = Vm::new(0, Identity::unknown(7), "pid 7".into(), FoundVm::default());
        for id in 0..2 {
            vm.vcpus.insert(id, Vcpu { index: id, tid: 1, kvm_vcpu: 0, paired: None, ran: None });
        }
        let pages: Vec<u64> = (0..256).map(|number| number * 0x1000).collect();
        let mut registration = Registration { pages, first: header(), next: 0, epoch: 0 };
        let mut seen = HashSet::new();
        for _ in 0..26 {
            let now = look(&vm, &registration);
            assert!(now.numbers.len() == 2 + SPARE && now.left == 256 - 2 - SPARE, "{now:?}");
            seen.extend(now.numbers);
            registration.next = now.next;
        }
        assert_eq!(seen.len(), 256, "in time all of them");
        registration.pages.truncate(2);
        assert_eq!(
            look(&vm, &Registration { next: 0, ..registration }),
            Look { numbers: vec![0, 1], next: 0, left: 0 }
        );
    }
}
