//! What the BPF programs tell, by the names of this side: the skeleton's types of `bpf/watch/interface.h`, where the meaning
//! of their fields stands.

use super::skeleton::types::watch_kind;
pub(crate) use super::skeleton::types::{
    watch_event as Event, watch_key as Key, watch_lost as Lost, watch_total as Total,
};

/// What interrupts: `enum watch_kind`, and steal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u32)]
pub(crate) enum Kind {
    /// A work item.
    Work = watch_kind::WATCH_WORK.0,
    /// A function call IPI.
    Call = watch_kind::WATCH_CALL.0,
    /// A reschedule IPI.
    Resched = watch_kind::WATCH_RESCHED.0,
    /// An irq_work interrupt.
    IrqWork = watch_kind::WATCH_IRQWORK.0,
    /// The local timer.
    Timer = watch_kind::WATCH_TIMER.0,
    /// A device.
    Irq = watch_kind::WATCH_IRQ.0,
    /// Another vector of the local interrupt controller.
    Vector = watch_kind::WATCH_VECTOR.0,
    /// A softirq.
    Softirq = watch_kind::WATCH_SOFTIRQ.0,
    /// A kernel thread.
    Kthread = watch_kind::WATCH_KTHREAD.0,
    /// A task of user space.
    Task = watch_kind::WATCH_TASK.0,
    /// A non-maskable interrupt.
    Nmi = watch_kind::WATCH_NMI.0,
    /// The hypervisor ran something else; from the kernel's accounting, not from BPF.
    Steal = 100,
}

impl Kind {
    /// `None` for a number that is none of them.
    pub(crate) fn of(kind: watch_kind) -> Option<Self> {
        use Kind::*;
        [Work, Call, Resched, IrqWork, Timer, Irq, Vector, Softirq, Kthread, Task, Nmi]
            .into_iter()
            .find(|known| *known as u32 == kind.0)
    }

    /// As the BPF programs have it.
    pub(crate) fn number(self) -> watch_kind {
        watch_kind(self as u32)
    }

    /// A short name for tables.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Work => "work",
            Self::Call => "ipi-call",
            Self::Resched => "ipi-resched",
            Self::IrqWork => "irq-work",
            Self::Timer => "timer",
            Self::Irq => "irq",
            Self::Vector => "vector",
            Self::Softirq => "softirq",
            Self::Kthread => "kthread",
            Self::Task => "task",
            Self::Nmi => "nmi",
            Self::Steal => "steal",
        }
    }
}

/// Text of a fixed field, up to its first zero.
pub(crate) fn text(field: &[u8; 16]) -> String {
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    String::from_utf8_lossy(&field[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_text_end_at_the_first_zero() {
        assert_eq!(text(b"rcuc/1\0junk\0\0\0\0\0"), "rcuc/1");
        assert_eq!(text(b"0123456789abcdef"), "0123456789abcdef");
        assert_eq!(Kind::of(watch_kind(9)), Some(Kind::Kthread));
        assert_eq!(Kind::of(watch_kind(77)), None);
    }
}
