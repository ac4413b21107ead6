//! The signals that end the agent.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::error::{GuestError, Result};

/// The signals that end the agent.
pub(super) struct Signals {
    pipe: UnixStream,
}

impl Signals {
    pub(super) fn new() -> Result<Self> {
        let doing = "signals could not be caught";
        let (pipe, end) = UnixStream::pair().map_err(GuestError::system(doing))?;
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            let end = end.try_clone().map_err(GuestError::system(doing))?;
            signal_hook::low_level::pipe::register(signal, end).map_err(GuestError::system(doing))?;
        }
        Ok(Self { pipe })
    }

    /// Sleeps for so long; true as soon as a signal has come.
    pub(super) fn wait(&self, time: Duration) -> Result<bool> {
        let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) };
        let pipe = self.pipe.as_fd();
        match poll(&mut [PollFd::new(&pipe, PollFlags::IN)], Some(&time)) {
            Ok(ready) => Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(GuestError::System { doing: "poll", source: io::Error::from(error) }),
        }
    }
}
