//! `lock`: all threads on one kernel lock.
//!
//! What it measures: the cost of a lock holder, or of a waiter in a queue, that lost its CPU. Two kinds of lock:
//!
//! * `files` (default): each thread does `dup` and `close`. Both take the spinlock of the process's one table of open
//!   files for some ten nanoseconds: a queued spinlock under as much contention as there can be.
//! * `directory`: each thread creates and unlinks a file of its own in one directory on tmpfs. Both take the
//!   directory's read-write semaphore for writing: a sleeping lock that spins while its holder runs.

use crate::session::{Common, Session};
use crate::sync::{self, Counter, Pace, Phase};
use crate::tmp::Scratch;
use anyhow::{Context, Result};
use entrain_workloads::catalog;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;

/// All threads on one kernel lock: what a preempted lock holder or waiter costs
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    common: Common,
    /// Which lock
    #[arg(long, value_enum, default_value = "files")]
    kind: Kind,
    /// Where `directory` makes its files; by default a tmpfs
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, clap::ValueEnum)]
enum Kind {
    /// Spinlock of the table of open files (dup, close)
    Files,
    /// Semaphore of one directory (create, unlink)
    Directory,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let session = Session::new(&args.common)?;
    let scratch = match args.kind {
        Kind::Files => None,
        Kind::Directory => Some(Scratch::new(args.dir.as_deref(), &session)?),
    };
    let null = File::open("/dev/null").context("cannot open /dev/null")?;
    let counters = Counter::many(session.threads());
    let phase = Phase::default();
    let failed = Mutex::new(None);
    let measured = std::thread::scope(|scope| {
        for (index, counter) in counters.iter().enumerate() {
            let (session, phase, failed) = (&session, &phase, &failed);
            let file = scratch.as_ref().map(|dir| dir.path().join(format!("thread-{index}")));
            let fd = null.as_raw_fd();
            scope.spawn(move || {
                session.enter(index);
                let operation = || match &file {
                    None => dup_close(fd),
                    Some(path) => File::create_new(path).and_then(|_| std::fs::remove_file(path)),
                };
                if !phase.wait_start() {
                    return;
                }
                while phase.running() {
                    if let Err(error) = operation() {
                        *failed.lock().expect("no thread panics with it") = Some(error);
                        return;
                    }
                    counter.add(1);
                }
            });
        }
        let mut pace = Pace::default();
        session.measure(
            &phase,
            || Counter::values(&counters),
            |before, at| session.out.progress(&catalog::OPS, pace.look(before, Counter::values(&counters), at), at),
        )
    })?;
    if let Some(error) = failed.into_inner().expect("all threads are joined") {
        return Err(error).context("the operation on the lock failed");
    }
    let done = sync::total(&measured.before, &measured.after) as f64;
    session.out.metric(&catalog::OPS, done / measured.seconds)?;
    session.out.metric(&catalog::FAIRNESS, sync::fairness(&measured.before, &measured.after))?;
    session.out.end(measured.reason, measured.seconds)?;
    Ok(ExitCode::SUCCESS)
}

fn dup_close(fd: i32) -> io::Result<()> {
    // SAFETY: fd stays open while the threads run; the copy is closed at once and known to nobody else.
    unsafe {
        let copy = libc::dup(fd);
        if copy < 0 {
            return Err(io::Error::last_os_error());
        }
        libc::close(copy);
    }
    Ok(())
}
