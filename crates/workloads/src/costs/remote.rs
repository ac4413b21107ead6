//! Costs between two CPUs: an interrupt to one that runs, and to one that is idle.

use super::Slice;
use super::local::{look_at_the_clock, looks_at_the_clock};
use crate::clock::now_ns;
use crate::cpu;
use crate::membarrier;
use crate::session::Session;
use crate::sync::{futex_wait, futex_wake};
use anyhow::{Context, Result};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

const INTERRUPTS: u32 = 20;
/// Longer than an idle CPU needs to halt.
const REST_NS: u64 = 100_000;

/// An interrupt to a CPU that computes in user mode, and its answer, ns (membarrier).
pub(super) fn running(session: &Session, slice: Slice) -> Result<Option<f64>> {
    let Some(cpus) = pair(session) else { return Ok(None) };
    membarrier::register()?;
    let interrupt =
        || slice.per_operation(INTERRUPTS, |count| (0..count).try_for_each(|_| Ok(membarrier::interrupt()?)));
    beside(cpus, std::hint::spin_loop, interrupt).map(Some)
}

/// One look at the clock while another CPU looks at it without a pause, ns. Real CPUs have a counter each; an emulator
/// may have one for all.
pub(super) fn clock(session: &Session, slice: Slice) -> Result<Option<f64>> {
    let Some(cpus) = pair(session) else { return Ok(None) };
    beside(cpus, look_at_the_clock, || looks_at_the_clock(slice)).map(Some)
}

/// What `measure` finds on the first of two CPUs while the other one does `busy` again and again.
fn beside(
    (own, other): (usize, usize),
    busy: impl Fn() + Sync,
    measure: impl FnOnce() -> Result<f64> + Send,
) -> Result<f64> {
    let (stop, up) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _ = cpu::pin(other);
            up.store(true, Release);
            while !stop.load(Relaxed) {
                busy();
            }
        });
        let measured = scope.spawn(|| {
            cpu::pin(own).context("cannot pin a thread")?;
            while !up.load(Acquire) {
                std::hint::spin_loop();
            }
            measure()
        });
        let result = measured.join().expect("measuring does not panic");
        stop.store(true, Relaxed);
        result
    })
}

/// From the wake-up of a thread whose CPU is idle until it runs, ns.
pub(super) fn halted(session: &Session, slice: Slice) -> Result<Option<f64>> {
    const ASLEEP: u32 = 0;
    const WOKEN: u32 = 1;
    const END: u32 = 2;
    let Some((own, other)) = pair(session) else { return Ok(None) };
    let (word, ran_at) = (AtomicU32::new(ASLEEP), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _ = cpu::pin(other);
            loop {
                while word.load(Acquire) == ASLEEP {
                    futex_wait(&word, ASLEEP);
                }
                let now = now_ns();
                if word.load(Acquire) == END {
                    return;
                }
                word.store(ASLEEP, Relaxed);
                ran_at.store(now, Release);
            }
        });
        let measured = scope.spawn(|| {
            cpu::pin(own).context("cannot pin a thread")?;
            let batch = || {
                ran_at.store(0, Relaxed);
                let rest = now_ns() + REST_NS;
                while now_ns() < rest {
                    std::hint::spin_loop();
                }
                word.store(WOKEN, Release);
                let begin = now_ns();
                futex_wake(&word, 1);
                loop {
                    match ran_at.load(Acquire) {
                        0 => std::hint::spin_loop(),
                        at => return Ok(at.saturating_sub(begin).max(1) as f64),
                    }
                }
            };
            slice.median(batch)
        });
        let result = measured.join().expect("measuring does not panic");
        word.store(END, Release);
        futex_wake(&word, 1);
        result.map(Some)
    })
}

/// Two CPUs, if there are two.
fn pair(session: &Session) -> Option<(usize, usize)> {
    let (first, second) = (session.cpu(0), session.cpu(1));
    (first != second).then_some((first, second))
}
