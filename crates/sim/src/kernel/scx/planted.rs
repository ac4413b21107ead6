//! Known faults, by which a search is tested: what it does not find where it was planted, it would not find elsewhere.

use super::dsq::DirectSlot;
use super::enq;
use crate::kernel::Kernel;

/// A fault of the kernel, which stands for the same one in a scheduler: there what the kernel leaves out would not have
/// been asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Planted {
    /// ops.update_idle() is never called: no CPU looks again after it has said that it idles. Whoever was queued between
    /// its last look and that moment is forgotten.
    UpdateIdle,
    /// A kick of an idle CPU out of ops.enqueue() has no effect: who was put into a queue of all waits for somebody to
    /// look there.
    Kick,
    /// An idle CPU that is claimed for a task stays idle for others: they come into its local queue behind it.
    Claim,
    /// `SCX_ENQ_IMMED` is not known, as in kernels before 7.1: who was sent to an idle CPU waits there behind another one
    /// that came first.
    Immed,
}

impl Planted {
    /// As the command line has it.
    pub fn name(self) -> String {
        clap::ValueEnum::to_possible_value(&self).map_or(String::new(), |value| value.get_name().to_owned())
    }
}

impl Kernel {
    /// Whether this fault is planted.
    pub(super) fn has(&self, planted: Planted) -> bool {
        self.scx.planted == Some(planted)
    }

    /// What the kernel knows of these flags of an insertion.
    pub(super) fn known_flags(&self, flags: u64) -> u64 {
        if self.has(Planted::Immed) { flags & !enq::IMMED } else { flags }
    }

    /// Whether the kick of an idle CPU is one that has no effect.
    pub(super) fn loses_kick(&self) -> bool {
        self.has(Planted::Kick)
            && self.scx.operation.in_select_cpu.is_none()
            && self.scx.operation.direct != DirectSlot::None
    }
}
