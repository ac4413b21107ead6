//! What each VM can have of the pCPUs, told to its guest.

use std::time::{Duration, Instant};

use entrain_bpf::Error;
use entrain_system::{CpuSet, monotonic_ns};

use super::Fleet;
use crate::channel::Channel;
use crate::entitlement::{CALM_PERIOD, Claim};
use crate::interface;
use crate::vm::SPEAKER;

impl Fleet {
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
        let began = Instant::now();
        self.programs.tick_speakers(self.entries())?;
        // Offline CPUs have no capacity (`set_cpus`).
        let table = &self.programs.pcpus;
        let online: CpuSet =
            (0..table.entries()).filter(|cpu| table.get(*cpu).capacity > 0).map(|cpu| cpu as u32).collect();
        let now = monotonic_ns();
        let mut ran = Vec::with_capacity(self.vms.len());
        let claims: Vec<Claim> = self
            .vms
            .iter()
            .map(|(&kvm, vm)| {
                let entries = vm.vcpus.iter().map(|(id, vcpu)| (*id, self.programs.vcpus.get(vcpu.index as usize)));
                let mut claim = Claim {
                    vm: kvm,
                    vcpus: vm.vcpus.len() as u32,
                    group: vm.group.clone(),
                    cpus: vm.cpus.clone(),
                    busy: 0,
                    wants: 0,
                };
                let mut run_ns = 0;
                for (id, entry) in entries {
                    claim.busy += busy_ns(&entry, now);
                    run_ns += entry.run_ns;
                    // vCPU 0 speaks for the guest; without guest words it says 0.
                    if id == SPEAKER && vm.channel == Channel::Paired {
                        claim.wants = entry.wants.min(u64::from(claim.vcpus)) as u32;
                    }
                }
                ran.push((kvm, run_ns));
                claim
            })
            .collect();
        let others = self.others.load(&self.root, began, ran.into_iter());
        let mut changed = false;
        for (vm, share) in self.vms.values_mut().zip(self.shares.update(began, &online, &claims, others)) {
            if vm.entitlement == share {
                continue;
            }
            changed = true;
            vm.entitlement = share;
            for vcpu in vm.vcpus.values() {
                let entry = self.programs.vcpus.at(vcpu.index as usize);
                // SAFETY: an aligned field inside the table that the daemon alone writes.
                unsafe { (&raw mut (*entry).entitlement).write_volatile(share) };
            }
        }
        if changed {
            self.programs.tick_speakers(self.entries())?;
        }
        self.shares.took(began.elapsed());
        Ok(())
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
