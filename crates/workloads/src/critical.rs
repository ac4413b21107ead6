//! `critical`: keeps the kernel in non-preemptible sections of a chosen length, by ordinary system calls.
//!
//! What it does: `fcntl(F_GETLK)` walks the list of a file's POSIX locks under the spinlock of that list
//! (`flc_lock`). Each thread holds `--locks` byte-range locks on a memfd of its own and asks for another one: no lock
//! of the caller itself conflicts, so every call walks the whole list with preemption off, and no thread waits for
//! another. The length of a section is the call's time less that of the same call on a file without locks.
//! With `--shared` all threads ask about one file: then they contend for the list's spinlock too.
//! On PREEMPT_RT the lock is a sleeping one and the sections are preemptible.

use crate::clock::now_ns;
use crate::output::{latencies, quantile_us};
use crate::session::{Common, Session};
use crate::sync::{self, Counter, Phase};
use anyhow::{Context, Result, bail};
use entrain_workloads::catalog;
use hdrhistogram::Histogram;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::ExitCode;
use std::time::Duration;

/// Non-preemptible sections in the kernel, by fcntl(F_GETLK) on a file with many locks
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    common: Common,
    /// Locks on the file: the length of a section grows with it (some nanoseconds each)
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..=100_000), value_name = "N")]
    locks: u32,
    /// Pause between two sections of a thread, in microseconds
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=1_000_000), value_name = "US")]
    gap: u64,
    /// All threads ask about one file, and so contend for its lock
    #[arg(long)]
    shared: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let session = Session::new(&args.common)?;
    let files = if args.shared { 1 } else { session.threads() };
    let files: Vec<OwnedFd> = (0..files).map(|_| locked_file(args.locks)).collect::<Result<_>>()?;
    let empty = memfd()?;
    let base_ns = call_ns(&empty)?;
    let counters = Counter::many(session.threads());
    let phase = Phase::default();
    let (measured, lengths) = std::thread::scope(|scope| -> Result<_> {
        let handles: Vec<_> = (counters.iter().enumerate())
            .map(|(index, counter)| {
                let (session, phase, file) = (&session, &phase, &files[index % files.len()]);
                scope.spawn(move || -> Result<Histogram<u64>> {
                    session.enter(index);
                    let mut lengths = latencies();
                    if !phase.wait_start() {
                        return Ok(lengths);
                    }
                    while phase.running() {
                        let start = now_ns();
                        ask(file).context("fcntl(F_GETLK) failed")?;
                        let length = (now_ns() - start).saturating_sub(base_ns);
                        if phase.measuring() {
                            lengths.saturating_record(length.max(1));
                        }
                        counter.add(1);
                        if args.gap > 0 {
                            std::thread::sleep(Duration::from_micros(args.gap));
                        }
                    }
                    Ok(lengths)
                })
            })
            .collect();
        let measured = session.measure(&phase, || Counter::values(&counters), |_, _| Ok(()))?;
        let mut lengths = latencies();
        for handle in handles {
            lengths.add(handle.join().expect("no thread panics")?)?;
        }
        Ok((measured, lengths))
    })?;
    if lengths.is_empty() {
        bail!("no section ended within {:.1} s: measure longer", measured.seconds);
    }
    let out = session.out;
    let done = sync::total(&measured.before, &measured.after) as f64;
    let threads_ns = measured.seconds * 1e9 * session.threads() as f64;
    out.metric(&catalog::SECTIONS, done / measured.seconds)?;
    out.metric(&catalog::SECTION_P50, quantile_us(&lengths, 0.5))?;
    out.metric(&catalog::SECTION_MAX, quantile_us(&lengths, 1.0))?;
    // A section can begin before the measurement and end in it: the share never exceeds 1 but by that.
    out.metric(&catalog::SECTION_SHARE, (lengths.mean() * lengths.len() as f64 / threads_ns).min(1.0))?;
    out.end(measured.reason, measured.seconds)?;
    Ok(ExitCode::SUCCESS)
}

fn memfd() -> Result<OwnedFd> {
    // SAFETY: the name is terminated; the descriptor is new and owned by nobody else.
    let fd = unsafe { libc::memfd_create(c"entrain-load".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error()).context("cannot make a file in memory");
    }
    // SAFETY: as above.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A file with `locks` locks on single bytes, none next to another: neighbours would be merged.
fn locked_file(locks: u32) -> Result<OwnedFd> {
    let file = memfd()?;
    for i in 0..locks {
        lock_call(&file, libc::F_SETLK, i64::from(i) * 2)
            .with_context(|| format!("cannot set {locks} locks on a file: fewer with --locks"))?;
    }
    Ok(file)
}

/// Walks the list of locks: asks about a byte behind all of them.
fn ask(file: &OwnedFd) -> io::Result<()> {
    lock_call(file, libc::F_GETLK, 1 << 40)
}

fn lock_call(file: &OwnedFd, command: libc::c_int, start: i64) -> io::Result<()> {
    // SAFETY: flock is plain data; all zeroes is a valid value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as _;
    lock.l_whence = libc::SEEK_SET as _;
    lock.l_start = start;
    lock.l_len = 1;
    // SAFETY: the descriptor is open and the structure ours.
    match unsafe { libc::fcntl(file.as_raw_fd(), command, &mut lock) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The shortest of many calls on a file: its cost without interruptions.
fn call_ns(file: &OwnedFd) -> Result<u64> {
    let mut best = u64::MAX;
    for _ in 0..1000 {
        let start = now_ns();
        ask(file).context("fcntl(F_GETLK) failed")?;
        best = best.min(now_ns() - start);
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_grow_with_the_number_of_locks() {
        let (few, many) = (locked_file(10).unwrap(), locked_file(5000).unwrap());
        let (few, many) = (call_ns(&few).unwrap(), call_ns(&many).unwrap());
        assert!(many > 3 * few, "{few} ns with 10 locks, {many} ns with 5000");
    }
}
