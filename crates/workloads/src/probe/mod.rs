//! Counters of a machine at one moment: what a probe sees is counted, not only timed.
//!
//! `entrain-load probe` prints a [`Snapshot`] as one line of JSON, in the host machine and in its guests, before and
//! after a sample; the lab subtracts.
//! What a kernel does not have (no KVM, no sched_ext, debugfs not mounted) is missing from the snapshot, not zero.

mod interrupts;
mod kvm;
mod sched_ext;
mod stat;

pub use kvm::{Vcpu, Vm, schedstat};
pub use sched_ext::SchedExt;
pub use stat::CpuTimes;

use entrain_system::{Root, SystemError};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Version of the snapshot's form.
pub const SCHEMA: u32 = 1;

/// Counters by name.
pub type Counters = BTreeMap<String, u64>;

/// All counters of a machine at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Monotonic clock of the machine in nanoseconds when the reading began.
    pub at_ns: u64,
    /// Context switches of all CPUs since boot.
    pub context_switches: u64,
    /// CPU time of all CPUs since boot, by kind.
    pub cpu: CpuTimes,
    /// Interrupts of all CPUs since boot, by kind: `reschedule`, `call`, `tlb`, `timer`, `irq_work`.
    pub interrupts: Counters,
    /// KVM guests that run here.
    #[serde(default)]
    pub vms: Vec<Vm>,
    /// sched_ext, if the kernel has it.
    #[serde(default)]
    pub sched_ext: Option<SchedExt>,
}

/// A counter could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// A file that every Linux has is missing or unreadable.
    #[error("cannot read {0}")]
    Read(#[from] SystemError),
    /// A file that every Linux has does not look as it should.
    #[error("{path} holds no {wanted}")]
    Form {
        /// The file.
        path: PathBuf,
        /// What was looked for.
        wanted: &'static str,
    },
}

/// Reads all counters of a machine at the time `at_ns`.
pub fn take(root: &Root, at_ns: u64) -> Result<Snapshot, ProbeError> {
    let (cpu, context_switches) = stat::read(root)?;
    Ok(Snapshot {
        schema: SCHEMA,
        at_ns,
        context_switches,
        cpu,
        interrupts: interrupts::read(root)?,
        vms: kvm::read(root),
        sched_ext: sched_ext::read(root),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use entrain_system::fake::tree;

    #[test]
    fn this_machine_can_be_read() {
        let snapshot = take(&Root::live(), 1).unwrap();
        assert!(snapshot.context_switches > 0);
        assert!(snapshot.cpu.idle_ns + snapshot.cpu.user_ns > 0);
        let json = serde_json::to_string(&snapshot).unwrap();
        assert_eq!(serde_json::from_str::<Snapshot>(&json).unwrap(), snapshot);
    }

    #[test]
    fn a_machine_without_kvm_and_sched_ext_lacks_them() {
        let (_machine, root) =
            tree(&[("proc/stat", "cpu  1 0 0 0\nctxt 5\n"), ("proc/interrupts", "           CPU0\n")]);
        let snapshot = take(&root, 7).unwrap();
        assert_eq!((snapshot.at_ns, snapshot.context_switches), (7, 5));
        assert!(snapshot.vms.is_empty() && snapshot.sched_ext.is_none() && snapshot.interrupts.is_empty());
    }

    #[test]
    fn an_unreadable_proc_is_an_error_with_its_path() {
        let (_machine, root) = tree(&[("proc/stat", "nothing\n")]);
        assert!(take(&root, 0).unwrap_err().to_string().contains("proc/stat holds no"));
        let (_machine, root) = tree(&[]);
        assert!(take(&root, 0).unwrap_err().to_string().contains("cannot read"));
    }
}
