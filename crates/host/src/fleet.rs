//! All VMs of this host: who is there, and the pairing of each.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use entrain_bpf::Error;
use tracing::{debug, info, warn};

use crate::discover::{FoundVm, group};
use crate::entitlement::{CALM_PERIOD, Claim, Group, Shares};
use crate::interface::{self, GONE_HEADER, GONE_LINK, GONE_WORD, HOST_VCPUS, HOST_VMS};
use crate::memory::{MemorySlot, ProcessMemory};
use crate::pair::{self, Paired};
use crate::programs::Programs;
use crate::vm::{Channel, Vcpu, Vm, name};

/// A guest whose agent has been silent for this long while its vCPUs ran has lost it: reset, panic or kill -9.
const SILENCE: Duration = Duration::from_secs(10);

/// Numbers that are given out and taken back, lowest first.
#[derive(Debug)]
struct Numbers {
    used: Vec<bool>,
}

impl Numbers {
    fn new(count: usize) -> Self {
        Self { used: vec![false; count] }
    }
    fn take(&mut self) -> Option<u32> {
        let free = self.used.iter().position(|used| !used)?;
        self.used[free] = true;
        Some(free as u32)
    }
    fn give_back(&mut self, number: u32) {
        self.used[number as usize] = false;
    }
    /// Highest used number + 1.
    fn end(&self) -> u32 {
        self.used.iter().rposition(|used| *used).map_or(0, |last| last as u32 + 1)
    }
}

/// All VMs.
pub(crate) struct Fleet {
    pub(crate) programs: Programs,
    pub(crate) proc: PathBuf,
    /// By the address of the kernel's struct kvm.
    pub(crate) vms: BTreeMap<u64, Vm>,
    vcpu_numbers: Numbers,
    vm_numbers: Numbers,
    full: bool,
    shares: Shares,
    /// Pairings at the last tick, and the sum of the generations of their VMs' memory slots.
    layouts: (u32, u64),
}

impl Fleet {
    /// `by_group`: as [`Shares::new`].
    pub(crate) fn new(programs: Programs, proc: PathBuf, by_group: bool) -> Self {
        Self {
            programs,
            proc,
            vms: BTreeMap::new(),
            vcpu_numbers: Numbers::new(HOST_VCPUS),
            vm_numbers: Numbers::new(HOST_VMS),
            full: false,
            shares: Shares::new(Instant::now(), by_group),
            layouts: (0, 0),
        }
    }

    /// Looks which VMs there are and follows the changes.
    pub(crate) fn discover(&mut self) -> Result<(), Error> {
        let mut found = group(&self.programs.finder.records()?);
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
        for (kvm, now) in found {
            self.update_vm(kvm, now)?;
        }
        for vm in self.vms.values_mut() {
            vm.group = Group::of(&self.proc, Path::new("/sys/fs/cgroup"), vm.found.tgid);
        }
        Ok(())
    }

    fn remove_vm(&mut self, kvm: u64) -> Result<(), Error> {
        let Some(mut vm) = self.vms.remove(&kvm) else { return Ok(()) };
        info!("{} (pid {}) has ended", vm.name, vm.found.tgid);
        for vcpu in std::mem::take(&mut vm.vcpus).into_values() {
            self.programs.untrack(vcpu.index)?;
            self.vcpu_numbers.give_back(vcpu.index);
        }
        self.vm_numbers.give_back(vm.number);
        Ok(())
    }

    fn update_vm(&mut self, kvm: u64, now: FoundVm) -> Result<(), Error> {
        if !self.vms.contains_key(&kvm) {
            let Some(number) = self.vm_numbers.take() else {
                self.say_full("VMs", HOST_VMS);
                return Ok(());
            };
            let vm = Vm::new(number, name(&self.proc, now.tgid), FoundVm { tgid: now.tgid, ..FoundVm::default() });
            info!("found {} (pid {}): {} vCPUs", vm.name, now.tgid, now.vcpus.len());
            self.vms.insert(kvm, vm);
        }
        let vm = self.vms.get_mut(&kvm).expect("inserted above");
        if vm.found.slots != now.slots {
            // The biggest slot is RAM; a display's memory is logged all the time.
            let migrates = now.slots.iter().next().is_some_and(MemorySlot::logs_writes);
            let moved = |vm: &Vm| {
                let Some(registration) = &vm.registration else { return false };
                registration.pages.iter().any(|&gpa| vm.found.slots.hva(gpa, 4096) != now.slots.hva(gpa, 4096))
            };
            let held = release_all(vm);
            let why = match (migrates, moved(vm)) {
                (true, _) => Some("its memory is being copied (live migration)"),
                (false, true) => Some("its memory has been laid out anew"),
                _ => None,
            };
            if let Some(why) = why {
                if !held.is_empty() {
                    info!("{}: {why}; let go of its pages", vm.name);
                }
                pair::release(&self.programs, held)?;
                // What was paired is not any more; searched anew.
                vm.start_over(Channel::Silent);
            } else {
                restore(vm, held);
            }
            if migrates {
                vm.channel = Channel::Migrating;
            } else if vm.channel == Channel::Migrating {
                vm.channel = Channel::Silent;
            }
            let mut entry = self.programs.vms.get(vm.number as usize);
            entry.slots = Default::default();
            entry.nr_slots = 0;
            for (into, slot) in entry.slots.iter_mut().zip(now.slots.iter()) {
                *into = interface::Slot { gpa: slot.gpa, size: slot.size, hva: slot.hva };
                entry.nr_slots += 1;
            }
            self.programs.vms.set(vm.number as usize, entry);
        }
        vm.found = now;
        let changed: Vec<u32> = vm
            .vcpus
            .iter()
            .filter(|(id, vcpu)| {
                vm.found.vcpus.get(id).is_none_or(|f| f.tid != vcpu.tid || f.kvm_vcpu != vcpu.kvm_vcpu)
            })
            .map(|(id, _)| *id)
            .collect();
        let mut others = !changed.is_empty();
        for id in changed {
            let vcpu = vm.vcpus.remove(&id).expect("listed above");
            debug!("{}: vCPU {id} has left its thread {}", vm.name, vcpu.tid);
            pair::release(&self.programs, vcpu.paired.into_iter().map(|paired| (vcpu.index, paired)).collect())?;
            self.programs.untrack(vcpu.index)?;
            self.vcpu_numbers.give_back(vcpu.index);
        }
        for (id, found) in &vm.found.vcpus {
            if vm.vcpus.contains_key(id) {
                continue;
            }
            let Some(index) = self.vcpu_numbers.take() else {
                self.full = true;
                continue;
            };
            let entry = interface::Vcpu {
                vm: vm.number,
                tid: found.tid,
                tgid: vm.found.tgid,
                kvm_vcpu: found.kvm_vcpu,
                ..Default::default()
            };
            self.programs.vcpus.set(index as usize, entry);
            if self.programs.track(index, found.tid)? {
                vm.vcpus.insert(*id, Vcpu { index, tid: found.tid, kvm_vcpu: found.kvm_vcpu, paired: None });
                others = true;
            } else {
                self.vcpu_numbers.give_back(index);
            }
        }
        // A vCPU that was plugged in is looked for among the pages that are known.
        if others && vm.channel == Channel::Paired {
            vm.channel = Channel::Partial;
        }
        Ok(())
    }

    fn say_full(&mut self, what: &str, most: usize) {
        if !std::mem::replace(&mut self.full, true) {
            warn!("this host has more {what} than the {most} that Entrain can hold: the others are left alone");
        }
    }

    /// How long to wait between two calls of [`Self::share_cpus`]: less where paired VMs compete.
    pub(crate) fn share_period(&self) -> Duration {
        let listens = self.vms.values().any(|vm| vm.paired() > 0);
        if listens { self.shares.period() } else { CALM_PERIOD }
    }

    /// Tells each VM what it can have of the pCPUs that are online now; this also keeps the guests' words fresh.
    pub(crate) fn share_cpus(&mut self) -> Result<(), Error> {
        if self.vms.is_empty() {
            return Ok(());
        }
        self.programs.tick_pages(self.vcpu_numbers.end())?;
        // Offline CPUs have no capacity (`set_cpus`).
        let table = &self.programs.pcpus;
        let pcpus = (0..table.entries()).filter(|cpu| table.get(*cpu).capacity > 0).count() as u32;
        let now = monotonic_ns();
        let claims: Vec<Claim> = self
            .vms
            .iter()
            .map(|(&kvm, vm)| {
                let entries = vm.vcpus.iter().map(|(id, vcpu)| (*id, self.programs.vcpus.get(vcpu.index as usize)));
                let mut claim = Claim { vm: kvm, vcpus: vm.vcpus.len() as u32, group: vm.group, busy: 0, wants: 0 };
                for (id, entry) in entries {
                    claim.busy += busy_ns(&entry, now);
                    // vCPU 0 speaks for the guest; without guest words it says 0.
                    if id == 0 && vm.channel == Channel::Paired {
                        claim.wants = entry.wants.min(u64::from(claim.vcpus)) as u32;
                    }
                }
                claim
            })
            .collect();
        let mut changed = false;
        for (vm, share) in self.vms.values_mut().zip(self.shares.update(Instant::now(), pcpus, &claims)) {
            changed |= vm.entitlement != share;
            vm.entitlement = share;
            for vcpu in vm.vcpus.values() {
                let entry = self.programs.vcpus.at(vcpu.index as usize);
                // SAFETY: an aligned field inside the table that the daemon alone writes.
                unsafe { (&raw mut (*entry).entitlement).write_volatile(share) };
            }
        }
        if changed {
            self.programs.tick_pages(self.vcpu_numbers.end())?;
        }
        if self.shares.waits_for_idle() {
            self.programs.want_idle();
        }
        Ok(())
    }

    /// A pCPU went idle while VMs competed: somebody may have left, so the next looks follow close on one another.
    pub(crate) fn pcpu_idles(&mut self) {
        self.shares.stir();
    }

    /// Looks for agents and pairs with those that offer, for at most `budget`.
    pub(crate) fn pair(&mut self, budget: Duration) {
        let deadline = Instant::now() + budget;
        let kvms: Vec<u64> = self.vms.keys().copied().collect();
        for kvm in kvms {
            let vm = self.vms.get_mut(&kvm).expect("listed above");
            let idle = vm.registration.is_none() && (!vm.scan.due() || Instant::now() >= deadline);
            if idle || matches!(vm.channel, Channel::Paired | Channel::Migrating) {
                continue;
            }
            let memory = match ProcessMemory::read(&self.proc, vm.found.tgid) {
                Ok(memory) => memory,
                // The VMM is about to end; the next discovery tells.
                Err(error) => {
                    debug!("{}: cannot read its memory map: {error}", vm.name);
                    continue;
                }
            };
            if vm.registration.is_some() {
                crate::register::pair_registered(&self.programs, vm, &memory);
                if vm.registration.is_some() {
                    continue;
                }
            }
            match vm.scan.advance(&vm.found.slots, &memory, deadline) {
                Ok(Some(hits)) => {
                    debug!("{}: {} pages with the magic among {} looked at", vm.name, hits.len(), vm.scan.pages);
                    for gpa in hits {
                        crate::register::consider(&self.programs, vm, &memory, gpa);
                    }
                }
                Ok(None) => {}
                Err(error) => debug!("{}: cannot look through its memory: {error}", vm.name),
            }
        }
    }

    /// Whether a VM has not been looked through at all yet.
    pub(crate) fn search_is_urgent(&self) -> bool {
        let open = |vm: &Vm| vm.registration.is_none() && !matches!(vm.channel, Channel::Paired | Channel::Migrating);
        self.vms.values().any(|vm| open(vm) && vm.scan.first())
    }

    /// A guest has rung: its page is at `gpa`. False when the VM is not known yet.
    pub(crate) fn doorbell(&mut self, tid: i32, tgid: i32, gpa: u64) -> bool {
        let known = |vm: &&mut Vm| vm.found.tgid == tgid && vm.vcpus.values().any(|vcpu| vcpu.tid == tid);
        let Some(vm) = self.vms.values_mut().find(known) else { return false };
        if vm.channel == Channel::Migrating {
            return true;
        }
        debug!("{}: doorbell for the page at {gpa:#x}", vm.name);
        if let Ok(memory) = ProcessMemory::read(&self.proc, tgid) {
            crate::register::consider(&self.programs, vm, &memory, gpa);
        }
        true
    }

    /// The host's side of the self-test, for so long.
    pub(crate) fn selftest(&self, time: Duration) -> Result<(), Error> {
        self.programs.selftest(self.vcpu_numbers.end(), time)
    }

    /// Publishes the pCPUs' levels now; a pairing that is found to have ended is let go of at the next [`Self::tick`].
    pub(crate) fn publish_levels(&self) -> Result<(), Error> {
        if self.vms.values().any(|vm| vm.paired() > 0) {
            self.programs.tick(self.vcpu_numbers.end())?;
        }
        Ok(())
    }

    /// Publishes what changes slowly, and lets go of pages that guests asked for or that are theirs again. True: the memory
    /// of a paired VM is being laid out anew, or copied; [`Self::discover`] is not to wait.
    pub(crate) fn tick(&mut self) -> Result<bool, Error> {
        let result = self.programs.tick(self.vcpu_numbers.end())?;
        let before = std::mem::replace(&mut self.layouts, (result.paired, result.layouts));
        // Pairings that came or went change the sum as well.
        let changed = before.0 == result.paired && before.1 != result.layouts;
        for vm in self.vms.values_mut() {
            if result.gone > 0 {
                drop_gone(&self.programs, vm)?;
            }
        }
        let programs = &self.programs;
        let silent: Vec<u64> =
            self.vms.iter_mut().filter_map(|(kvm, vm)| is_silent(programs, vm).then_some(*kvm)).collect();
        for kvm in silent {
            let vm = self.vms.get_mut(&kvm).expect("listed above");
            info!("{}: its agent has been silent for {} s; let go of its pages", vm.name, SILENCE.as_secs());
            pair::release(&self.programs, release_all(vm))?;
            vm.start_over(Channel::Silent);
        }
        Ok(changed)
    }

    /// Gives every page back, for the end of the daemon. Returns how many guests' pages were told.
    pub(crate) fn release_all(&mut self) -> Result<usize, Error> {
        let pages = self.vms.values_mut().flat_map(release_all).collect();
        pair::release(&self.programs, pages)
    }
}

/// Time that a vCPU ran or waited for a pCPU, the present state included, ns.
fn busy_ns(entry: &interface::Vcpu, now: u64) -> u64 {
    use entrain_channel::word::Vcpu;
    let present = if entry.state == Vcpu::Running as u32 || entry.state == Vcpu::Preempted as u32 {
        now.saturating_sub(entry.since)
    } else {
        0
    };
    entry.run_ns + entry.ready_ns + present
}

/// The clock of BPF's times.
fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Takes all pairings out of a VM.
fn release_all(vm: &mut Vm) -> Vec<(u32, Paired)> {
    vm.vcpus.values_mut().filter_map(|vcpu| Some((vcpu.index, vcpu.paired.take()?))).collect()
}

/// Puts them back.
fn restore(vm: &mut Vm, held: Vec<(u32, Paired)>) {
    for (index, paired) in held {
        if let Some(vcpu) = vm.vcpus.values_mut().find(|vcpu| vcpu.index == index) {
            vcpu.paired = Some(paired);
        }
    }
}

/// Lets go of the pages of one VM whose pairing has ended from the guest's side.
fn drop_gone(programs: &Programs, vm: &mut Vm) -> Result<(), Error> {
    let mut asked = Vec::new();
    let mut lost = Vec::new();
    for vcpu in vm.vcpus.values_mut() {
        let entry = programs.vcpus.get(vcpu.index as usize);
        let Some(paired) = vcpu.paired.take_if(|_| entry.gone != 0) else { continue };
        if entry.gone == GONE_LINK && entry.link == paired.releasing() {
            asked.push((vcpu.index, paired));
        } else {
            lost.push(entry.gone);
            paired.drop_pins(programs);
        }
    }
    if asked.is_empty() && lost.is_empty() {
        return Ok(());
    }
    if !asked.is_empty() {
        info!("{}: its agent wants {} pages back; let go of them", vm.name, asked.len());
        pair::release(programs, asked)?;
    }
    if let Some(why) = lost.first() {
        let why = match *why {
            GONE_WORD => "a word was not what the host had left there",
            GONE_HEADER => "the page's identity changed",
            _ => "the guest changed the state of the pairing",
        };
        info!(
            "{}: lost {} pages ({why}): reset, reboot, or an agent that died; wrote nothing more",
            vm.name,
            lost.len()
        );
    }
    if vm.paired() == 0 {
        vm.start_over(Channel::Silent);
    } else {
        vm.channel = Channel::Partial;
    }
    Ok(())
}

/// Whether a paired VM's agent has stopped although its vCPUs ran.
fn is_silent(programs: &Programs, vm: &mut Vm) -> bool {
    if vm.paired() == 0 {
        return false;
    }
    let entries: Vec<_> = vm.vcpus.values().map(|vcpu| programs.vcpus.get(vcpu.index as usize)).collect();
    // One agent beats for all its pages, and a VM that is paused beats as little as it runs.
    let beat = entries.iter().map(|entry| entry.guest_beat).fold(0, u64::wrapping_add);
    let ran = entries.iter().map(|entry| entry.switches).fold(0, u64::wrapping_add);
    if beat != vm.beat.0 {
        vm.beat = (beat, Instant::now());
        vm.ran = ran;
    } else if ran == vm.ran {
        vm.beat.1 = Instant::now();
    }
    vm.beat.1.elapsed() > SILENCE
}
