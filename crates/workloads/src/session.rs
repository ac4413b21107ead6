//! The frame of every run: options, signals, `ready`, warm-up, measurement, end.

use crate::clock::now_ns;
use crate::cpu;
use crate::output::Output;
use crate::sync::Phase;
use anyhow::{Context, Result, bail, ensure};
use entrain_workloads::wire::Reason;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Options that all loads have.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Common {
    /// How long to measure, in seconds
    #[arg(long, default_value_t = 10.0, value_name = "S")]
    pub(crate) seconds: f64,
    /// How long to run before the measurement begins, in seconds
    #[arg(long, default_value_t = 1.0, value_name = "S")]
    pub(crate) warmup: f64,
    /// Threads (or clients); by default the number of online CPUs
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<usize>,
    /// Print JSON lines (see docs/workloads.md)
    #[arg(long)]
    pub(crate) json: bool,
    /// Print `ready` once set up, then wait for a line on standard input or for SIGUSR1
    #[arg(long)]
    pub(crate) ready: bool,
    /// With --ready: give up after so many seconds
    #[arg(long, default_value_t = 120.0, value_name = "S")]
    pub(crate) ready_timeout: f64,
    /// Keep thread n on the n-th CPU
    #[arg(long)]
    pub(crate) pin: bool,
    /// How often loads that tell their progress do so, in seconds
    #[arg(long, default_value_t = 1.0, value_name = "S")]
    pub(crate) progress: f64,
}

#[cfg(test)]
impl Common {
    /// The defaults of the command line.
    pub(crate) fn for_tests() -> Self {
        #[derive(clap::Parser)]
        struct Cli {
            #[command(flatten)]
            common: Common,
        }
        <Cli as clap::Parser>::parse_from(["test"]).common
    }
}

/// One run of a load. Made before any thread is, so that all threads leave the signals to it.
pub(crate) struct Session {
    pub(crate) options: Common,
    pub(crate) out: Output,
    signals: OwnedFd,
    cpus: Vec<usize>,
}

/// What was measured: readings at both ends, and the time between them.
pub(crate) struct Measured<T> {
    pub(crate) before: T,
    pub(crate) after: T,
    pub(crate) seconds: f64,
    pub(crate) reason: Reason,
}

enum Wake {
    Time,
    Start,
    Signal,
    Watched,
}

impl Session {
    pub(crate) fn new(options: &Common) -> Result<Self> {
        for (name, value) in
            [("--seconds", options.seconds), ("--warmup", options.warmup), ("--ready-timeout", options.ready_timeout)]
        {
            ensure!(value.is_finite() && (0.0..=86_400.0).contains(&value), "{name} must lie between 0 and 86400 s");
        }
        ensure!(options.seconds > 0.0, "--seconds must be more than 0");
        ensure!((0.01..=3600.0).contains(&options.progress), "--progress must lie between 0.01 and 3600 s");
        ensure!(options.threads.is_none_or(|n| (1..=4096).contains(&n)), "--threads must lie between 1 and 4096");
        Ok(Self {
            options: options.clone(),
            out: Output::new(options.json),
            signals: signal_fd().context("cannot set up signals")?,
            cpus: cpu::allowed().context("cannot read which CPUs are allowed")?,
        })
    }

    /// Number of threads to run.
    pub(crate) fn threads(&self) -> usize {
        self.options.threads.unwrap_or(self.cpus.len())
    }

    /// The CPU of thread `index`, whether or not it is asked to stay there.
    pub(crate) fn cpu(&self, index: usize) -> usize {
        self.cpus[index % self.cpus.len()]
    }

    /// To be called by each thread first: pins it if asked for.
    pub(crate) fn enter(&self, index: usize) {
        if self.options.pin {
            // The CPU can have gone offline since: the thread then runs where it may, as without --pin.
            let _ = cpu::pin(self.cpu(index));
        }
    }

    /// Says `ready` and waits for the start if asked for.
    pub(crate) fn wait_ready(&self) -> Result<()> {
        if !self.options.ready {
            return Ok(());
        }
        self.out.ready()?;
        let deadline = now_ns() + (self.options.ready_timeout * 1e9) as u64;
        match self.wait(deadline, Some(0), None)? {
            Wake::Start => Ok(()),
            Wake::Signal => bail!("ended by a signal before the start"),
            Wake::Time | Wake::Watched => bail!(
                "nobody started the load within {} s: write a line to its standard input or send it SIGUSR1",
                self.options.ready_timeout
            ),
        }
    }

    /// Runs the phases; `read` takes the counters at both ends of the measurement, `progress` is called inside it, each
    /// `--progress`, with the first reading and the seconds since then. The caller's threads end after this returns, however it returns.
    pub(crate) fn measure<T>(
        &self,
        phase: &Phase,
        mut read: impl FnMut() -> T,
        mut progress: impl FnMut(&T, f64) -> io::Result<()>,
    ) -> Result<Measured<T>> {
        let _stop = StopOnDrop(phase);
        self.wait_ready()?;
        phase.warm_up();
        if let Wake::Signal = self.wait(now_ns() + (self.options.warmup * 1e9) as u64, None, None)? {
            bail!("ended by a signal during warm-up: nothing was measured");
        }
        phase.measure();
        let (start, before) = (now_ns(), read());
        self.out.start()?;
        let end = start + (self.options.seconds * 1e9) as u64;
        let interval = (self.options.progress * 1e9) as u64;
        let mut turn = 1;
        let reason = loop {
            let next = end.min(start + turn * interval);
            match self.wait(next, None, None)? {
                Wake::Time if next == end => break Reason::Time,
                Wake::Time => progress(&before, (now_ns() - start) as f64 / 1e9)?,
                _ => break Reason::Signal,
            }
            turn += 1;
        };
        let after = read();
        let seconds = (now_ns() - start) as f64 / 1e9;
        phase.stop();
        Ok(Measured { before, after, seconds, reason })
    }

    /// Waits for `fd` (a pidfd) to become readable. None if a signal or the deadline (monotonic ns) came first.
    pub(crate) fn wait_for(&self, fd: RawFd, deadline: u64) -> Result<Option<()>> {
        Ok(matches!(self.wait(deadline, None, Some(fd))?, Wake::Watched).then_some(()))
    }

    /// Sleeps without polling until the deadline (monotonic ns), a signal, a line on `input`, or `watched`.
    fn wait(&self, deadline: u64, mut input: Option<RawFd>, watched: Option<RawFd>) -> Result<Wake> {
        loop {
            let left = deadline.saturating_sub(now_ns());
            if left == 0 {
                return Ok(Wake::Time);
            }
            let timeout = libc::timespec { tv_sec: (left / 1_000_000_000) as _, tv_nsec: (left % 1_000_000_000) as _ };
            // poll(2) skips negative descriptors, which stand for what is not waited for.
            let mut fds = [self.signals.as_raw_fd(), input.unwrap_or(-1), watched.unwrap_or(-1)]
                .map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
            // SAFETY: fds and timeout are ours and outlive the call; no signal mask is given.
            let ready = unsafe { libc::ppoll(fds.as_mut_ptr(), fds.len() as _, &timeout, std::ptr::null()) };
            if ready < 0 && io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
                return Err(io::Error::last_os_error()).context("cannot wait");
            }
            if ready <= 0 {
                continue;
            }
            if fds[0].revents != 0 {
                return Ok(if self.take_signal()? == libc::SIGUSR1 { Wake::Start } else { Wake::Signal });
            }
            if fds[1].revents != 0 {
                if read_some(0)? {
                    return Ok(Wake::Start);
                }
                // End of input is no start: a caller that gives none starts the load by SIGUSR1.
                input = None;
            }
            if fds[2].revents != 0 {
                return Ok(Wake::Watched);
            }
        }
    }

    /// Drops signals that wait to be read: those that we sent to our own process group.
    pub(crate) fn forget_signals(&self) {
        while self.take_signal().is_ok() {}
    }

    fn take_signal(&self) -> Result<i32> {
        // SAFETY: signalfd_siginfo is plain data; all zeroes is a valid value.
        let mut info: libc::signalfd_siginfo = unsafe { std::mem::zeroed() };
        let size = size_of::<libc::signalfd_siginfo>();
        // SAFETY: the buffer is as long as the size given.
        let n = unsafe { libc::read(self.signals.as_raw_fd(), (&raw mut info).cast(), size) };
        ensure!(n == size as isize, "cannot read a signal: {}", io::Error::last_os_error());
        Ok(info.ssi_signo as i32)
    }
}

/// Threads must end even when the measurement fails: their scope waits for them.
struct StopOnDrop<'a>(&'a Phase);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Blocks the signals that we act on in this thread and its children, and gives a descriptor to read them from: no
/// handler interrupts a measured thread.
fn signal_fd() -> io::Result<OwnedFd> {
    // SAFETY: a sigset_t is plain data that sigemptyset fills.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is ours; the descriptor is new and owned by nobody else.
    unsafe {
        libc::sigemptyset(&mut set);
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGUSR1] {
            libc::sigaddset(&mut set, signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        match libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) {
            fd if fd >= 0 => Ok(OwnedFd::from_raw_fd(fd)),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Reads what is there from a descriptor; false at its end.
fn read_some(fd: RawFd) -> io::Result<bool> {
    let mut buffer = [0u8; 256];
    // SAFETY: the buffer is as long as the size given.
    match unsafe { libc::read(fd, buffer.as_mut_ptr().cast(), buffer.len()) } {
        n if n >= 0 => Ok(n > 0),
        _ => Err(io::Error::last_os_error()),
    }
}
