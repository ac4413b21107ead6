//! `shootdown`: invalidations that every CPU of the process has to answer.
//!
//! What it measures: one thread gives a page back (`madvise(MADV_DONTNEED)`) again and again while the other threads
//! read another page of the same mapping, each on its CPU, so that all these CPUs may hold the mapping in their TLB.
//! On x86 the kernel interrupts each of them and waits for all answers: one CPU that does not run holds up the rest.
//! On aarch64 hardware broadcasts the invalidation and no CPU has to run; `--by membarrier` interrupts all CPUs of
//! the process on both architectures.

use crate::membarrier;
use crate::pages::Pages;
use crate::session::{Common, Session};
use crate::sync::{Counter, Phase};
use anyhow::Result;
use entrain_workloads::catalog;
use std::io;
use std::process::ExitCode;
use std::sync::Mutex;

/// TLB shootdowns: what it costs to wait for the answer of every CPU
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    common: Common,
    /// How the other CPUs are reached
    #[arg(long, value_enum, default_value = "madvise")]
    by: By,
}

#[derive(Clone, Copy, PartialEq, clap::ValueEnum)]
enum By {
    /// Giving a page back: TLB invalidation
    Madvise,
    /// membarrier(2), private expedited: an interrupt to each CPU that runs the process, on any architecture
    Membarrier,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let session = Session::new(&args.common)?;
    // The first belongs to the dropping thread, the second is only read.
    let pages = Pages::new(2)?;
    pages.touch_all();
    if args.by == By::Membarrier {
        membarrier::register()?;
    }
    if session.threads() < 2 {
        session.out.note("with one thread no other CPU has to answer")?;
    }
    let counters = Counter::many(1);
    let phase = Phase::default();
    let failed = Mutex::new(None);
    let measured = std::thread::scope(|scope| {
        let (session, phase, pages, failed, counter) = (&session, &phase, &pages, &failed, &counters[0]);
        for index in 1..session.threads() {
            scope.spawn(move || {
                session.enter(index);
                if phase.wait_start() {
                    while phase.running() {
                        pages.look(1);
                        std::hint::spin_loop();
                    }
                }
            });
        }
        scope.spawn(move || {
            session.enter(0);
            if !phase.wait_start() {
                return;
            }
            while phase.running() {
                let result = match args.by {
                    By::Madvise => drop_page(pages, 0),
                    By::Membarrier => membarrier::interrupt(),
                };
                if let Err(error) = result {
                    *failed.lock().expect("no thread panics with it") = Some(error);
                    return;
                }
                counter.add(1);
            }
        });
        session.measure(phase, || counter.get(), |_, _| Ok(()))
    })?;
    if let Some(error) = failed.into_inner().expect("all threads are joined") {
        return Err(error.into());
    }
    session.out.metric(&catalog::OPS, (measured.after - measured.before) as f64 / measured.seconds)?;
    session.out.end(measured.reason, measured.seconds)?;
    Ok(ExitCode::SUCCESS)
}

/// Gives the page back that this thread alone uses, and brings it back, so that there is something to invalidate.
fn drop_page(pages: &Pages, page: usize) -> io::Result<()> {
    pages.touch(page);
    pages.give_back(page)
}
