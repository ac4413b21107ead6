//! `shootdown`: invalidations that every CPU of the process has to answer.
//!
//! What it measures: one thread gives a page back (`madvise(MADV_DONTNEED)`) again and again while the other threads
//! read another page of the same mapping, each on its CPU, so that all these CPUs may hold the mapping in their TLB.
//! On x86 the kernel interrupts each of them and waits for all answers: one CPU that does not run holds up the rest.
//! On aarch64 hardware broadcasts the invalidation and no CPU has to run; `--by membarrier` interrupts all CPUs of
//! the process on both architectures.

use crate::session::{Common, Session};
use crate::sync::{Counter, Phase};
use anyhow::{Result, ensure};
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

const MEMBARRIER_PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
const MEMBARRIER_REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let session = Session::new(&args.common)?;
    let mapping = Mapping::new(2)?;
    if args.by == By::Membarrier {
        membarrier(MEMBARRIER_REGISTER_PRIVATE_EXPEDITED)?;
    }
    if session.threads() < 2 {
        session.out.note("with one thread no other CPU has to answer")?;
    }
    let counters = Counter::many(1);
    let phase = Phase::default();
    let failed = Mutex::new(None);
    let measured = std::thread::scope(|scope| {
        let (session, phase, mapping, failed, counter) = (&session, &phase, &mapping, &failed, &counters[0]);
        for index in 1..session.threads() {
            scope.spawn(move || {
                session.enter(index);
                if phase.wait_start() {
                    while phase.running() {
                        mapping.touch(1);
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
                    By::Madvise => mapping.drop_first_page(),
                    By::Membarrier => membarrier(MEMBARRIER_PRIVATE_EXPEDITED),
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

fn membarrier(command: libc::c_int) -> io::Result<()> {
    // SAFETY: membarrier takes plain numbers and touches no memory of ours.
    match unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::other(format!("membarrier failed: {}", io::Error::last_os_error()))),
    }
}

/// Anonymous private memory, page by page. Page 0 belongs to the dropping thread, the rest is only read.
struct Mapping {
    base: *mut u8,
    pages: usize,
    page_size: usize,
}

// SAFETY: threads share it by `touch` (volatile reads of pages that nobody writes) and `drop_first_page` (called by
// one thread, on a page that no other touches).
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(pages: usize) -> Result<Self> {
        // SAFETY: sysconf takes a plain number.
        let page_size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let (rw, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new anonymous mapping at an address of the kernel's choice.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), pages * page_size, rw, flags, -1, 0) };
        ensure!(base != libc::MAP_FAILED, "cannot map {pages} pages: {}", io::Error::last_os_error());
        let mapping = Self { base: base.cast(), pages, page_size };
        for page in 0..pages {
            // SAFETY: inside the mapping, which is writable; no other thread knows it yet.
            unsafe { mapping.base.add(page * page_size).write_volatile(1) };
        }
        Ok(mapping)
    }

    fn touch(&self, page: usize) {
        debug_assert!(page < self.pages);
        // SAFETY: inside the mapping and readable.
        unsafe { self.base.add(page * self.page_size).read_volatile() };
        std::hint::spin_loop();
    }

    fn drop_first_page(&self) -> io::Result<()> {
        // SAFETY: the page is private anonymous memory of this mapping; only this thread uses it and nothing is kept
        // in it. The write brings it back, so that there is something to invalidate.
        unsafe {
            self.base.write_volatile(1);
            match libc::madvise(self.base.cast(), self.page_size, libc::MADV_DONTNEED) {
                0 => Ok(()),
                _ => Err(io::Error::other(format!("madvise failed: {}", io::Error::last_os_error()))),
            }
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and no thread uses it any more.
        unsafe { libc::munmap(self.base.cast(), self.pages * self.page_size) };
    }
}
