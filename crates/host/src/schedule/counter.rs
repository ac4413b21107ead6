//! What the host's counter says by the kernel's clock: KVM's guests on arm64 set their timers by the counter, and the
//! scheduler goes by the clock. The clock is steered (NTP), so this is told anew with each heartbeat.

use crate::skeleton::sched::SchedSkel;

/// The counter's ticks a second, and where `CLOCK_MONOTONIC` was when it was 0, ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counter {
    hz: u64,
    began: i64,
}

/// `ticks__ns()` of timer.bpf.h.
#[cfg(any(target_arch = "aarch64", test))]
fn ns(ticks: u64, hz: u64) -> u64 {
    ticks / hz * 1_000_000_000 + ticks % hz * 1_000_000_000 / hz
}

/// Reads both between two looks at the clock; what came between them is halved.
#[cfg(target_arch = "aarch64")]
fn read() -> Option<Counter> {
    let (hz, ticks): (u64, u64);
    let before = entrain_system::monotonic_ns();
    // SAFETY: registers that Linux lets every process read.
    unsafe {
        std::arch::asm!("mrs {}, cntfrq_el0", out(reg) hz, options(nomem, nostack));
        std::arch::asm!("isb", "mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack));
    }
    let after = entrain_system::monotonic_ns();
    let clock = before + after.saturating_sub(before) / 2;
    (hz > 0).then(|| Counter { hz, began: clock.wrapping_sub(ns(ticks, hz)).cast_signed() })
}

/// On x86 KVM keeps what the scheduler needs.
#[cfg(not(target_arch = "aarch64"))]
fn read() -> Option<Counter> {
    None
}

/// Tells the scheduler.
pub(super) fn tell(skel: &mut SchedSkel<'_>) {
    let (Some(counter), Some(data)) = (read(), skel.maps.bss_data.as_deref_mut()) else { return };
    // SAFETY: aligned words of the mapped data, which BPF only reads. The second comes first: without the first it is
    // not used.
    unsafe {
        (&raw mut data.counter_began).write_volatile(counter.began);
        (&raw mut data.counter_hz).write_volatile(counter.hz);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_ns_without_overflow() {
        assert_eq!(ns(62_500_000, 62_500_000), 1_000_000_000);
        assert_eq!(ns(1, 1_000_000_000), 1);
        // A year at 1 GHz.
        assert_eq!(ns(31_536_000_000_000_000, 1_000_000_000), 31_536_000_000_000_000);
    }
}
