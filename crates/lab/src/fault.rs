//! Faults of a machine: recognised by what its console says and by what it stops doing.
use std::fmt;

use serde::Serialize;

use crate::machine::Target;

/// The kinds of fault that the lab tells apart.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FaultClass {
    /// "corrupted stack end detected inside scheduler".
    StackEnd,
    /// "Oops: int3": text patching raced the emulator's translated code.
    Int3,
    /// "BUG: scheduling while atomic".
    SchedulingWhileAtomic,
    /// RCU stall, soft or hard lockup: a CPU makes no progress.
    SilentCpu,
    /// Any other Oops or BUG of a kernel.
    Oops,
    /// Any other kernel panic.
    Panic,
    /// The machine started anew without a panic.
    Reset,
    /// A guest's QEMU ended by itself.
    GuestGone,
    /// The host machine's QEMU ended by itself.
    QemuDied,
    /// The port to the agent closed while QEMU lives.
    PortCut,
    /// The agent fell silent: no heartbeat within its deadline.
    Silent,
    /// The machine did not come up within its deadline.
    BootDeadline,
}

impl FaultClass {
    /// Short name, as in reports and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::StackEnd => "stack-end",
            Self::Int3 => "int3",
            Self::SchedulingWhileAtomic => "scheduling-while-atomic",
            Self::SilentCpu => "silent-cpu",
            Self::Oops => "oops",
            Self::Panic => "panic",
            Self::Reset => "reset",
            Self::GuestGone => "guest-gone",
            Self::QemuDied => "qemu-died",
            Self::PortCut => "port-cut",
            Self::Silent => "silent",
            Self::BootDeadline => "boot-deadline",
        }
    }
}

impl fmt::Display for FaultClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One fault of one machine.
#[derive(Clone, Debug, Serialize)]
pub struct Fault {
    /// Its kind.
    pub class: FaultClass,
    /// The host machine, or the guest that broke.
    pub who: Target,
    /// The machine was emulated (TCG), not virtualized.
    pub emulated: bool,
    /// What was seen: the console's telling line, or the deadline that passed.
    pub detail: String,
    /// The end of that machine's console, oldest first.
    pub console: Vec<String>,
}

impl Fault {
    /// Is this one of the kinds that the emulator is known to cause by itself (docs/lab.md)?
    ///
    /// Such a boot is lost and repeated. A product fault can look the same, so the share of lost boots is reported
    /// per arm.
    pub fn is_emulator(&self) -> bool {
        self.emulated && !matches!(self.class, FaultClass::Panic | FaultClass::Oops | FaultClass::PortCut)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} ({})", self.who, self.class, self.detail)?;
        for line in &self.console {
            write!(f, "\n    | {line}")?;
        }
        Ok(())
    }
}
