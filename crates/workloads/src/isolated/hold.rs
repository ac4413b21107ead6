//! `isolated hold`: keeps a CPU, with something in its per-CPU caches.
//!
//! The caches are those that drains empty: fresh pages in the batch that leads to the LRU lists, locked pages in the batch
//! for those, objects of slab caches in the CPU's sheaves. With `--report` the page numbers are written once all is in
//! place, so that the file's being there also says that the drain may begin.

use super::{become_fifo, check};
use crate::clock::now_ns;
use crate::cpu;
use crate::pages::Pages;
use anyhow::{Context, Result};
use entrain_workloads::wire::Report;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::ptr::null_mut;

/// Keeps a CPU, with something in its per-CPU caches
#[derive(clap::Args)]
pub(super) struct Args {
    /// The CPU
    #[arg(long)]
    cpu: usize,
    /// Seconds to live
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Be a real-time task of this priority (SCHED_FIFO)
    #[arg(long, value_name = "PRIORITY", value_parser = clap::value_parser!(i32).range(1..=99))]
    fifo: Option<i32>,
    /// Fill the caches, then write the numbers of the fresh pages to this file, as JSON
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Touch a new page and use slab caches after so many milliseconds
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=10_000))]
    touch: Option<u64>,
    /// Make system calls all the time, so that interrupts find the kernel and not user space
    #[arg(long)]
    calls: bool,
    /// Keep the tick on, by a timer of CPU time that never expires
    #[arg(long)]
    tick: bool,
}

/// Pages of each kind; the batches take 31.
const FRESH: usize = 10;
/// Objects freed into the sheaves of the cache `file_lock_cache`.
const LOCKS: i64 = 32;
/// Pages that `--touch` may take, one after the other.
const MORE: usize = 1 << 16;

pub(super) fn run(args: &Args) -> Result<()> {
    cpu::pin(args.cpu).with_context(|| format!("CPU {}", args.cpu))?;
    let file = args.report.as_ref().map(|path| path.with_extension("part"));
    let file = file.map(|path| File::create(&path).map(|file| (file, path))).transpose().context("--report")?;
    let lockable = tempfile()?;
    let pagemap = File::open("/proc/self/pagemap").context("/proc/self/pagemap")?;
    let (plain, locked, more) = (Pages::small(FRESH)?, Pages::small(FRESH)?, Pages::small(MORE)?);
    // Pages that come later are locked when they are touched: mlock(2) itself drains this CPU.
    locked.lock_on_fault().context("mlock2")?;
    if args.tick {
        never_expiring_timer()?;
    }
    if let Some(priority) = args.fifo {
        become_fifo(priority)?;
    }
    if let (Some((file, part)), Some(path)) = (file, &args.report) {
        use_pipes(64);
        use_locks(&lockable)?;
        locked.touch_all();
        plain.touch_all();
        let report = Report { plain: frames(&plain, &pagemap)?, locked: frames(&locked, &pagemap)? };
        file.write_all_at(&serde_json::to_vec(&report)?, 0)?;
        fs::rename(part, path)?;
    }
    spin(args, &more);
    Ok(())
}

fn spin(args: &Args, more: &Pages) {
    let end = now_ns() + args.seconds * 1_000_000_000;
    let period = args.touch.map(|ms| ms * 1_000_000);
    let (mut next, mut page) = (now_ns(), 0);
    loop {
        let now = now_ns();
        if now >= end {
            return;
        }
        if args.calls {
            // SAFETY: takes no arguments and touches no memory of ours.
            unsafe { libc::syscall(libc::SYS_getppid) };
        }
        let Some(period) = period.filter(|_| now >= next) else { continue };
        more.touch(page % MORE);
        use_pipes(1);
        (next, page) = (now + period, page + 1);
    }
}

/// Physical page numbers.
fn frames(pages: &Pages, pagemap: &File) -> Result<Vec<u64>> {
    let frame = |page| pages.frame(pagemap, page)?.context("/proc/self/pagemap does not tell frames: this needs root");
    (0..FRESH).map(frame).collect()
}

/// Objects of several slab caches pass through this CPU's sheaves.
fn use_pipes(times: u32) {
    for _ in 0..times {
        // What a pipe is made of comes from slab caches, and returns to them here.
        drop(std::io::pipe());
    }
}

/// Takes and returns [`LOCKS`] objects of the cache `file_lock_cache`.
fn use_locks(file: &File) -> Result<()> {
    for at in 0..LOCKS {
        // Ranges that do not touch: they stay apart.
        lock(file, libc::F_WRLCK, at * 2, 1)?;
    }
    lock(file, libc::F_UNLCK, 0, 0)
}

fn lock(file: &File, kind: i32, start: i64, len: i64) -> Result<()> {
    // SAFETY: all zeroes is a value of this struct of numbers.
    let mut range: libc::flock = unsafe { std::mem::zeroed() };
    (range.l_type, range.l_whence) = (kind as _, libc::SEEK_SET as _);
    (range.l_start, range.l_len) = (start, len);
    // SAFETY: the struct outlives the call.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &range) }.into(), "locking a file").map(drop)
}

fn tempfile() -> Result<File> {
    let path = std::env::temp_dir().join(format!("entrain-hold-{}", std::process::id()));
    let file = File::create(&path).with_context(|| path.display().to_string())?;
    fs::remove_file(&path)?;
    Ok(file)
}

/// A timer of this thread's CPU time, due in a year: the kernel keeps the tick on to look after it. One that would tell
/// nobody (SIGEV_NONE) it does not even arm.
fn never_expiring_timer() -> Result<()> {
    // SAFETY: all zeroes is a value of these structs of numbers and pointers.
    let (mut event, mut when): (libc::sigevent, libc::itimerspec) = unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    (event.sigev_notify, event.sigev_signo) = (libc::SIGEV_SIGNAL, libc::SIGUSR1);
    when.it_value.tv_sec = 365 * 86_400;
    let mut timer: libc::timer_t = null_mut();
    // SAFETY: all three outlive the calls.
    let made = unsafe { libc::timer_create(libc::CLOCK_THREAD_CPUTIME_ID, &mut event, &mut timer) };
    check(made.into(), "timer_create")?;
    // SAFETY: the timer was made above, the struct outlives the call.
    check(unsafe { libc::timer_settime(timer, 0, &when, null_mut()) }.into(), "timer_settime").map(drop)
}
