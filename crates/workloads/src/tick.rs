//! `tick`: a periodic clock against the CPU's own counter.
//!
//! What it measures: one thread on each CPU waits for a periodic timer (timerfd, 2 ms) and reads the CPU's counter
//! (TSC, CNTVCT) when it runs. A tick is *on time* if it comes 0.925 to 1.079 periods after the one before: bin 6 of
//! the histogram in the reference, whose bins (0.154 periods wide) this one shares. A tick's *jitter* is the
//! counter at the tick minus the counter when it was due; one wake-up can serve several due ticks, as one interrupt
//! does, and then its jitter is that of the first of them, and the others are missed.

use crate::clock::{Pair, cycles, now_ns};
use crate::cpu;
use crate::output::{latencies, quantile_us};
use crate::session::{Common, Session};
use crate::sync::Phase;
use anyhow::{Context, Result, bail};
use entrain_workloads::catalog;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::ExitCode;

/// A periodic clock on each CPU against the CPU's counter: share on time, worst jitter
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    common: Common,
    /// The clock's period in microseconds
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u64).range(50..=1_000_000), value_name = "US")]
    period: u64,
    /// Run the clock's threads in the real-time class (SCHED_FIFO) with this priority
    #[arg(long, value_parser = clap::value_parser!(i32).range(1..=99), value_name = "PRIORITY")]
    fifo: Option<i32>,
}

/// Width of a bin in periods: that of the reference (0.308 ms of 2 ms).
const BIN: f64 = 0.154_16;
/// The bin in which a tick is on time.
const ON_TIME_BIN: usize = 6;

/// One wake-up: when the thread ran, and how many ticks had become due since the wake-up before.
#[derive(Clone, Copy, Debug)]
struct Tick {
    cycles: u64,
    due: u64,
}

/// What one thread saw. The first tick was due at `first_ns` of the monotonic clock.
struct Series {
    first_ns: u64,
    ticks: Vec<Tick>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let session = Session::new(&args.common)?;
    let phase = Phase::default();
    let period_ns = args.period * 1000;
    let (measured, series) = std::thread::scope(|scope| -> Result<_> {
        let threads: Vec<_> = (0..session.threads())
            .map(|index| {
                let (session, phase) = (&session, &phase);
                scope.spawn(move || {
                    // The clock belongs to a CPU: an unpinned thread would move to whichever is free.
                    let _ = cpu::pin(session.cpu(index));
                    if let Some(priority) = args.fifo {
                        make_fifo(priority).context("cannot enter the real-time class (needs root)")?;
                    }
                    listen(phase, period_ns)
                })
            })
            .collect();
        let measured = session.measure(&phase, Pair::read, |_, _| Ok(()))?;
        let series: Result<Vec<Series>> =
            threads.into_iter().map(|t| t.join().expect("no tick thread panics")).collect();
        Ok((measured, series?))
    })?;
    let clock = Clock::between(measured.before, measured.after);
    let mut summary = Summary::default();
    for series in &series {
        summary.add(series, &clock, period_ns as f64);
    }
    if summary.due == 0 {
        bail!("no tick came within {:.1} s: measure longer", measured.seconds);
    }
    summary.print(&session, period_ns as f64)?;
    session.out.end(measured.reason, measured.seconds)?;
    Ok(ExitCode::SUCCESS)
}

/// Runs one periodic timer to the end of the measurement; ticks before it are not kept.
fn listen(phase: &Phase, period_ns: u64) -> Result<Series> {
    let mut series = Series { first_ns: 0, ticks: Vec::with_capacity(1 << 14) };
    if !phase.wait_start() {
        return Ok(series);
    }
    let mut next_ns = now_ns() + period_ns;
    let timer = periodic_timer(next_ns, period_ns).context("cannot start a timer")?;
    while phase.running() {
        let due = read_expirations(&timer).context("cannot read a timer")?;
        let cycles = cycles();
        if phase.measuring() {
            if series.ticks.is_empty() {
                series.first_ns = next_ns;
            }
            series.ticks.push(Tick { cycles, due });
        }
        next_ns += due * period_ns;
    }
    Ok(series)
}

fn make_fifo(priority: i32) -> io::Result<()> {
    let param = libc::sched_param { sched_priority: priority };
    // SAFETY: the parameters are ours and outlive the call.
    match unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &param) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn periodic_timer(first_ns: u64, period_ns: u64) -> io::Result<OwnedFd> {
    let ts = |ns: u64| libc::timespec { tv_sec: (ns / 1_000_000_000) as _, tv_nsec: (ns % 1_000_000_000) as _ };
    let spec = libc::itimerspec { it_interval: ts(period_ns), it_value: ts(first_ns) };
    // SAFETY: the descriptor is new and owned by nobody else; the specification is ours and outlives the call.
    unsafe {
        let fd = libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        let timer = OwnedFd::from_raw_fd(fd);
        match libc::timerfd_settime(fd, libc::TFD_TIMER_ABSTIME, &spec, std::ptr::null_mut()) {
            0 => Ok(timer),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

fn read_expirations(timer: &OwnedFd) -> io::Result<u64> {
    let mut count = 0u64;
    // SAFETY: the buffer has the eight bytes that a timerfd gives.
    match unsafe { libc::read(timer.as_raw_fd(), (&raw mut count).cast(), 8) } {
        8 => Ok(count),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Translates the counter to the monotonic clock.
struct Clock {
    origin: Pair,
    cycles_per_ns: f64,
}

impl Clock {
    fn between(before: Pair, after: Pair) -> Self {
        Self { origin: before, cycles_per_ns: before.cycles_per_ns(after) }
    }

    /// Nanoseconds from the origin to a reading of the counter.
    fn ns(&self, cycles: u64) -> f64 {
        cycles.wrapping_sub(self.origin.cycles) as i64 as f64 / self.cycles_per_ns
    }
}

/// What all threads saw together.
#[derive(Default)]
struct Summary {
    due: u64,
    on_time: u64,
    missed: u64,
    bins: Vec<u64>,
    interval_max: f64,
    jitter: Option<hdrhistogram::Histogram<u64>>,
}

impl Summary {
    fn add(&mut self, series: &Series, clock: &Clock, period_ns: f64) {
        let jitter = self.jitter.get_or_insert_with(latencies);
        let mut due_ns = series.first_ns as f64 - clock.origin.ns as f64;
        let mut last: Option<f64> = None;
        for tick in &series.ticks {
            let now = clock.ns(tick.cycles);
            jitter.saturating_record((now - due_ns).max(1.0) as u64);
            due_ns += tick.due as f64 * period_ns;
            // The first tick has no interval; it only starts the clock.
            if let Some(last) = last {
                self.due += tick.due;
                self.missed += tick.due - 1;
                let interval: f64 = now - last;
                let bin = (interval / (BIN * period_ns)) as usize;
                if self.bins.len() <= bin {
                    self.bins.resize(bin + 1, 0);
                }
                self.bins[bin] += 1;
                self.on_time += u64::from(bin == ON_TIME_BIN);
                self.interval_max = self.interval_max.max(interval);
            }
            last = Some(now);
        }
    }

    fn print(&self, session: &Session, period_ns: f64) -> Result<()> {
        let jitter = self.jitter.as_ref().expect("add made it");
        let out = session.out;
        out.metric(&catalog::JITTER_MAX, jitter.max() as f64 / 1e6)?;
        out.metric(&catalog::ON_TIME, self.on_time as f64 / self.due as f64)?;
        out.metric(&catalog::MISSED, self.missed as f64 / self.due as f64)?;
        out.metric(&catalog::JITTER_P50, quantile_us(jitter, 0.5))?;
        out.metric(&catalog::JITTER_P99, quantile_us(jitter, 0.99))?;
        out.metric(&catalog::INTERVAL_MAX, self.interval_max / 1e6)?;
        let width = BIN * period_ns / 1e6;
        let filled = self.bins.iter().enumerate().filter(|(_, count)| **count > 0);
        out.histogram("interval", "ms", filled.map(|(i, n)| (i as f64 * width, (i + 1) as f64 * width, *n)).collect())?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PERIOD: f64 = 2e6;

    fn clock() -> Clock {
        Clock { origin: Pair { cycles: 1_000_000, ns: 5_000_000 }, cycles_per_ns: 3.0 }
    }

    /// The counter `ms` milliseconds after the origin.
    fn at(ms: f64) -> u64 {
        1_000_000 + (ms * 3e6) as u64
    }

    fn summary(ticks: &[(f64, u64)]) -> Summary {
        let ticks = ticks.iter().map(|(ms, due)| Tick { cycles: at(*ms), due: *due }).collect();
        let mut summary = Summary::default();
        summary.add(&Series { first_ns: 7_000_000, ticks }, &clock(), PERIOD);
        summary
    }

    #[test]
    fn a_perfect_clock_is_on_time() {
        let s = summary(&[(2.0, 1), (4.0, 1), (6.0, 1)]);
        assert_eq!((s.due, s.on_time, s.missed), (2, 2, 0));
        assert!(s.jitter.unwrap().max() < 1000);
    }

    #[test]
    fn a_stall_is_one_late_tick_and_the_rest_missed() {
        // Due at 2, 4, 6, 8, 10, 12: the thread stalls from 4 to 11 ms.
        let s = summary(&[(2.0, 1), (4.0, 1), (11.0, 3), (12.0, 1)]);
        assert_eq!((s.due, s.on_time, s.missed), (5, 1, 2));
        assert!((s.interval_max - 7e6).abs() < 10.0);
        // The first tick of the stall was due at 6 ms and came at 11 ms.
        let max = s.jitter.unwrap().max() as f64;
        assert!((max / 5e6 - 1.0).abs() < 0.001, "{max} ns");
    }

    #[test]
    fn the_bins_are_those_of_the_reference() {
        assert!((6.0 * BIN * 2.0 - 1.849).abs() < 0.002);
        assert!((7.0 * BIN * 2.0 - 2.158).abs() < 0.002);
    }

    proptest! {
        #[test]
        fn shares_are_shares(gaps in proptest::collection::vec((1u64..40, 0.0f64..1.9), 2..200)) {
            let mut due = 0;
            let ticks: Vec<_> = gaps.iter().map(|(n, late)| { due += n; (2.0 * due as f64 + late, *n) }).collect();
            let s = summary(&ticks);
            prop_assert_eq!(s.due, gaps[1..].iter().map(|g| g.0).sum::<u64>());
            prop_assert!(s.on_time + s.missed <= s.due);
            prop_assert_eq!(s.bins.iter().sum::<u64>(), gaps.len() as u64 - 1);
        }
    }
}
