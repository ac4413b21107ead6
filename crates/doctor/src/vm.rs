//! What each VM has and lacks: its memory, and the agent in it.

use entrain_host::Channel;
use entrain_host::status::Status as Daemon;

use crate::finding::Finding;
use crate::remedy;
use crate::running::{Backing, RunningVm};

/// What each VM has and lacks.
pub(crate) fn examine(vm: &RunningVm, daemon: Option<&Daemon>) -> Vec<Finding> {
    let mut findings = vec![memory(vm)];
    findings.extend(daemon.and_then(|daemon| agent(vm, daemon)));
    findings.into_iter().map(|finding| finding.of(vm.pid)).collect()
}

fn memory(vm: &RunningVm) -> Finding {
    const FOR: &str = "telling the guest anything; without it the host only reads its preempt count";
    let Some(ram) = vm.ram else {
        return Finding::warn("vm.memory", FOR, "its memory map cannot be read", "run entrain doctor as root");
    };
    let mib = ram.bytes >> 20;
    match ram.backing {
        Backing::Shared => Finding::ok("vm.memory", FOR, format!("{mib} MiB of shared memory")),
        Backing::SharedHuge => Finding::ok("vm.memory", FOR, format!("{mib} MiB of shared huge pages")),
        Backing::Confidential => Finding {
            remedy: Vec::new(),
            ..Finding::warn(
                "vm.memory",
                FOR,
                format!("{mib} MiB, confidential (guest_memfd): the host cannot read it and never will"),
                "",
            )
        },
        Backing::Private | Backing::PrivateHuge => {
            let huge = if ram.backing == Backing::PrivateHuge { " of huge pages" } else { "" };
            let found = format!("{mib} MiB{huge}, private to the VMM");
            Finding { remedy: remedy::share(vm, mib), ..Finding::missing("vm.memory", FOR, found, "") }
        }
    }
}

fn agent(vm: &RunningVm, daemon: &Daemon) -> Option<Finding> {
    const FOR: &str = "cooperation of the guest; without it the VM is only watched";
    let known = daemon.vms.iter().find(|known| known.pid == vm.pid)?;
    let paired = known.vcpus.iter().filter(|vcpu| vcpu.paired).count();
    let of = format!("{paired} of {} vCPUs are paired", known.vcpus.len());
    Some(match known.channel {
        Channel::Paired => Finding::ok("vm.agent", FOR, of),
        Channel::Partial => {
            Finding::warn("vm.agent", FOR, of, "in the guest: entrain guest --status tells which are not")
        }
        Channel::ReadOnly => Finding::warn("vm.agent", FOR, "an agent runs, but the RAM is private", "see vm.memory"),
        Channel::Migrating => {
            Finding::warn("vm.agent", FOR, "the VM is being migrated", "nothing: it is paired again after that")
        }
        Channel::Refused => {
            let remedy = "journalctl -u entrain-host tells why the host does not take what the agent offers";
            Finding::warn("vm.agent", FOR, "an agent's offer was refused", remedy)
        }
        Channel::Unsupported => {
            Finding::warn("vm.agent", FOR, "this host's kernel can pair with no guest", "see host.uptr")
        }
        Channel::Silent => {
            let remedy = "in the guest: systemctl enable --now entrain-guest, or: entrain guest";
            Finding::warn("vm.agent", FOR, "no agent has been found in the guest", remedy)
        }
    })
}
