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

impl FaultClass {
    /// The fault that a console's line tells of.
    pub fn of_line(line: &str) -> Option<Self> {
        // The first that fits wins: a panic's line names its cause.
        const SIGNS: [(&str, FaultClass); 18] = [
            ("corrupted stack end detected", FaultClass::StackEnd),
            ("stack-protector: Kernel stack is corrupted", FaultClass::StackEnd),
            ("Oops: int3", FaultClass::Int3),
            ("BUG: scheduling while atomic", FaultClass::SchedulingWhileAtomic),
            ("detected stalls on CPUs", FaultClass::SilentCpu),
            ("self-detected stall on CPU", FaultClass::SilentCpu),
            ("detected expedited stalls", FaultClass::SilentCpu),
            ("BUG: soft lockup", FaultClass::SilentCpu),
            ("hard LOCKUP", FaultClass::SilentCpu),
            ("rcu_preempt kthread starved", FaultClass::SilentCpu),
            ("Internal error: Oops", FaultClass::Oops),
            ("Oops: ", FaultClass::Oops),
            ("BUG: unable to handle", FaultClass::Oops),
            ("BUG: kernel NULL pointer", FaultClass::Oops),
            ("Unable to handle kernel", FaultClass::Oops),
            ("general protection fault", FaultClass::Oops),
            ("kernel BUG at", FaultClass::Oops),
            ("Kernel panic - not syncing", FaultClass::Panic),
        ];
        SIGNS.iter().find(|(sign, _)| line.contains(sign)).map(|(_, class)| *class)
    }

    /// What a user can do about it.
    pub fn advice(self) -> &'static str {
        match self {
            Self::StackEnd | Self::Int3 | Self::SchedulingWhileAtomic | Self::Reset | Self::GuestGone => {
                "a known fault of the emulator on x86_64: start the machine again, or use --arch aarch64"
            }
            Self::SilentCpu | Self::Silent => {
                "a CPU makes no progress: an emulator fault, a scheduler that starves it, or a development machine \
                 without time to spare; start it again, with less beside it"
            }
            Self::Oops | Self::Panic => "the kernel broke: look at the console's lines above",
            Self::QemuDied => "QEMU ended: somebody killed it, or memory ran out ('dmesg' tells)",
            Self::PortCut => "the connection to the machine closed: start it again",
            Self::BootDeadline => {
                "it never came up: look at the console's lines, and whether this computer is overloaded; a kernel of \
                 one's own needs virtio console and initramfs support"
            }
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
        write!(f, "\n{}", self.class.advice())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_real_consoles_are_told_apart() {
        let class = FaultClass::of_line;
        assert_eq!(
            class("[   71.9] Kernel panic - not syncing: corrupted stack end detected inside scheduler"),
            Some(FaultClass::StackEnd)
        );
        assert_eq!(class("[    3.1] Oops: int3: 0000 [#1] SMP NOPTI"), Some(FaultClass::Int3));
        assert_eq!(
            class("[   60.2] BUG: scheduling while atomic: CPU 2/KVM/211/0x11000001"),
            Some(FaultClass::SchedulingWhileAtomic)
        );
        assert_eq!(class("rcu: INFO: rcu_preempt self-detected stall on CPU"), Some(FaultClass::SilentCpu));
        assert_eq!(class("watchdog: BUG: soft lockup - CPU#1 stuck for 26s!"), Some(FaultClass::SilentCpu));
        assert_eq!(class("Internal error: Oops: 0000000096000004 [#1]  SMP"), Some(FaultClass::Oops));
        assert_eq!(class("Kernel panic - not syncing: Attempted to kill init!"), Some(FaultClass::Panic));
        assert_eq!(class("[    0.4] Memory: 3960000K/4194304K available"), None);
    }
}
