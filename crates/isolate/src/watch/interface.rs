//! The mirror of `bpf/interface.h`, compared with the BPF object's type information by the test below.

pub(crate) use entrain_bpf::from_bytes;
use entrain_bpf::mirror;

/// Words of the bit mask of CPUs.
pub(crate) const CPU_WORDS: usize = 128;
/// Frames of a stack.
pub(crate) const STACK: usize = 24;

/// What interrupts; the numbers are those of `bpf/interface.h`, steal excepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// A work item.
    Work = 1,
    /// A function call IPI.
    Call = 2,
    /// A reschedule IPI.
    Resched = 3,
    /// An irq_work interrupt.
    IrqWork = 4,
    /// The local timer.
    Timer = 5,
    /// A device.
    Irq = 6,
    /// Another vector of the local interrupt controller.
    Vector = 7,
    /// A softirq.
    Softirq = 8,
    /// A kernel thread.
    Kthread = 9,
    /// A task of user space.
    Task = 10,
    /// A non-maskable interrupt.
    Nmi = 11,
    /// The hypervisor ran something else; from the kernel's accounting, not from BPF.
    Steal = 100,
}

impl Kind {
    pub(crate) fn of(number: u32) -> Option<Self> {
        use Kind::*;
        [Work, Call, Resched, IrqWork, Timer, Irq, Vector, Softirq, Kthread, Task, Nmi]
            .into_iter()
            .find(|kind| *kind as u32 == number)
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

mirror! {
    /// One cause; see the C declaration for the meaning of the fields by kind.
    Key = "watch_key" {
        cpu: u32,
        kind: u32,
        subject: u64,
        cgroup: u64,
        what: [u8; 16],
        sender: [u8; 16],
        stack: i32,
        detail: u32,
    }
}

mirror! {
    /// What it took, in ns.
    Total = "watch_total" {
        count: u64,
        ns: u64,
        max_ns: u64,
        last: u64,
        pid: u32,
        pad: u32,
    }
}

mirror! {
    /// One interruption.
    Event = "watch_event" {
        start: u64,
        ns: u64,
        key: Key,
        pid: u32,
        pad: u32,
    }
}

mirror! {
    /// What could not be kept.
    Lost = "watch_lost" {
        totals: u64,
        events: u64,
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
    use crate::watch::skeleton::WatchSkelBuilder;
    use entrain_bpf::difference;
    use libbpf_rs::skel::{OpenSkel, SkelBuilder};
    use std::mem::MaybeUninit;

    #[test]
    fn the_mirrors_are_what_the_bpf_object_has() {
        let mut storage = MaybeUninit::uninit();
        let open = WatchSkelBuilder::default().open(&mut storage).unwrap();
        let object = open.open_object();
        assert_eq!(difference::<Key>(object), None);
        assert_eq!(difference::<Total>(object), None);
        assert_eq!(difference::<Event>(object), None);
        assert_eq!(difference::<Lost>(object), None);
    }

    #[test]
    fn fields_of_text_end_at_the_first_zero() {
        assert_eq!(text(b"rcuc/1\0junk\0\0\0\0\0"), "rcuc/1");
        assert_eq!(text(b"0123456789abcdef"), "0123456789abcdef");
        assert_eq!(Kind::of(9), Some(Kind::Kthread));
        assert_eq!(Kind::of(77), None);
    }
}
