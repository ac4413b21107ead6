//! The end of pairings: asked for by the guest, lost with it, or because the host leaves.

use std::time::{Duration, Instant};

use entrain_bpf::Error;
use entrain_channel::hosting::Gone;

use super::Fleet;
use crate::channel::Channel;
use crate::classes::Publish;
use crate::pair::{self, Paired};
use crate::programs::Programs;
use crate::vm::{Vm, about};

/// A guest whose agent has been silent for this long while its vCPUs ran has lost it: reset, panic or kill -9.
const SILENCE: Duration = Duration::from_secs(10);

impl Fleet {
    /// Lets go of pages that guests asked for or that are theirs again; `gone`: the heartbeat has found some.
    pub(crate) fn let_go(&mut self, gone: bool) -> Result<(), Error> {
        // All of them at once: the wait for writes under way is the same for one page and for all.
        let mut leaving = Vec::new();
        let mut ended = Vec::new();
        for (kvm, vm) in &mut self.vms {
            let before = leaving.len();
            let lost = gone && drop_gone(&self.programs, vm, &mut leaving);
            if is_silent(&self.programs, vm) {
                about!(info, vm, "its agent has been silent for {} s; let go of its pages", SILENCE.as_secs());
                leaving.extend(take_pairings(vm));
            }
            if std::mem::take(&mut vm.replaced) || vm.publish == Publish::None && vm.paired() > 0 {
                about!(info, vm, "let go of its pages");
                leaving.extend(take_pairings(vm));
            }
            if lost || leaving.len() > before {
                ended.push(*kvm);
            }
        }
        pair::release(&self.programs, leaving)?;
        for kvm in ended {
            let Some(vm) = self.vms.get_mut(&kvm) else { continue };
            if vm.paired() == 0 {
                let refused = vm.refused.is_some_and(|refused| refused.lasts(Instant::now()));
                vm.start_over(if refused { Channel::Refused } else { Channel::Silent });
            } else {
                vm.channel = Channel::Partial;
            }
        }
        Ok(())
    }

    /// Tells BPF what each VM's class lets its guest be told, and lets go of the pages of those that are to know nothing.
    pub(crate) fn publish_by_class(&mut self) -> Result<(), Error> {
        for vm in self.vms.values() {
            let own_only = u32::from(vm.publish != Publish::All);
            for vcpu in vm.vcpus.values() {
                let entry = self.programs.vcpus.at(vcpu.index as usize);
                // SAFETY: an aligned field inside the table that the daemon alone writes.
                unsafe { (&raw mut (*entry).own_only).write_volatile(own_only) };
            }
        }
        if self.vms.values().any(|vm| vm.publish == Publish::None && vm.paired() > 0) {
            self.let_go(false)?;
        }
        Ok(())
    }

    /// Gives every page back, for the end of the daemon. Returns how many guests' pages were told.
    pub(crate) fn release_all(&mut self) -> Result<usize, Error> {
        let pages = self.vms.values_mut().flat_map(take_pairings).collect();
        pair::release(&self.programs, pages)
    }
}

/// Takes all pairings out of a VM.
pub(super) fn take_pairings(vm: &mut Vm) -> Vec<Paired> {
    vm.vcpus.values_mut().filter_map(|vcpu| vcpu.paired.take()).collect()
}

/// Drops the pages of one VM whose pairing has ended from the guest's side, and adds those that its agent asks for to
/// `leaving`. Whether any were dropped.
fn drop_gone(programs: &Programs, vm: &mut Vm, leaving: &mut Vec<Paired>) -> bool {
    let mut asked = Vec::new();
    let mut lost = Vec::new();
    for vcpu in vm.vcpus.values_mut() {
        let entry = programs.vcpus.get(vcpu.index as usize);
        let Some(gone) = vcpu.paired.as_ref().and_then(|paired| paired.gone(entry.gone)) else { continue };
        let Some(paired) = vcpu.paired.take() else { continue };
        if gone == Gone::Link && entry.link == paired.releasing() {
            asked.push(paired);
        } else {
            lost.push(gone);
            paired.drop_pins(programs);
        }
    }
    if !asked.is_empty() {
        about!(info, vm, "its agent wants {} pages back; let go of them", asked.len());
        leaving.extend(asked);
    }
    if let Some(why) = lost.first() {
        let why = match *why {
            Gone::Word => "a word was not what the host had left there",
            Gone::Header => "the page's identity changed",
            Gone::Link => "the guest changed the state of the pairing",
        };
        about!(info, vm, "lost {} pages ({why}): reset, reboot, or an agent that died; wrote nothing more", lost.len());
    }
    !lost.is_empty()
}

/// Whether a paired VM's agent has stopped although its vCPUs ran.
fn is_silent(programs: &Programs, vm: &mut Vm) -> bool {
    if vm.paired() == 0 {
        return false;
    }
    let entries: Vec<_> = vm.vcpus.values().map(|vcpu| programs.vcpus.get(vcpu.index as usize)).collect();
    // One agent beats for all its pages.
    let beat = entries.iter().map(|entry| entry.guest_beat).fold(0, u64::wrapping_add);
    let ran = entries.iter().map(|entry| entry.switches).fold(0, u64::wrapping_add);
    vm.silence.look(beat, ran, Instant::now()) > SILENCE
}
