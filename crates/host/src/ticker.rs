//! Calls the program that beats for the host in all pages, from whichever thread.
//!
//! One call at a time: the words that it writes have one writer each, which goes by what it remembers of them. It holds
//! descriptors of its own, needs no capability and allocates nothing.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use crate::interface::TickArgs;

/// The programs `tick`, where the kernel can hold guests' pages, and `levels`, where it counts performance levels.
#[derive(Clone, Debug)]
pub(crate) struct Ticker(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    tick: Option<OwnedFd>,
    /// With the number of pCPUs.
    levels: Option<(OwnedFd, u32)>,
    one_at_a_time: Mutex<()>,
}

impl Ticker {
    pub(crate) fn new(tick: Option<impl AsFd>, levels: Option<(impl AsFd, u32)>) -> io::Result<Self> {
        let own = |fd: BorrowedFd<'_>| fd.try_clone_to_owned();
        let levels = levels.map(|(fd, pcpus)| own(fd.as_fd()).map(|fd| (fd, pcpus))).transpose()?;
        let tick = tick.map(|fd| own(fd.as_fd())).transpose()?;
        Ok(Self(Arc::new(Inner { tick, levels, one_at_a_time: Mutex::new(()) })))
    }

    /// Checks pairings, reads guests, publishes what changes slowly, the pCPUs' levels among it; `entries` is the highest
    /// used index + 1.
    pub(crate) fn tick(&self, entries: u32) -> io::Result<TickArgs> {
        let _one = self.0.one_at_a_time.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((levels, pcpus)) = &self.0.levels {
            run(levels.as_fd(), TickArgs { entries: *pcpus, ..TickArgs::default() })?;
        }
        self.tick_alone(TickArgs { entries, ..TickArgs::default() })
    }

    /// The same without the levels, of the vCPUs alone that speak for their guests; what it counts is of these.
    pub(crate) fn speakers(&self, entries: u32) -> io::Result<TickArgs> {
        let _one = self.0.one_at_a_time.lock().unwrap_or_else(PoisonError::into_inner);
        self.tick_alone(TickArgs { entries, speakers: 1, ..TickArgs::default() })
    }

    fn tick_alone(&self, args: TickArgs) -> io::Result<TickArgs> {
        self.0.tick.as_ref().map_or(Ok(TickArgs::default()), |tick| run(tick.as_fd(), args))
    }
}

fn run(program: BorrowedFd<'_>, mut args: TickArgs) -> io::Result<TickArgs> {
    // A program of this kind changes its context in place, and the kernel refuses one for the result.
    let mut opts = libbpf_sys::bpf_test_run_opts {
        sz: size_of::<libbpf_sys::bpf_test_run_opts>() as _,
        ctx_in: (&raw mut args).cast(),
        ctx_size_in: size_of::<TickArgs>() as u32,
        ..Default::default()
    };
    // SAFETY: the context is a struct of the size that is given, ours to be written, and outlives the call.
    let result = unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &mut opts) };
    if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(args) }
}
