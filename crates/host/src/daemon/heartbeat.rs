//! The host's heartbeat: checks every pairing, reads the guests, and publishes what changes slowly.
//!
//! A thread of its own does this and nothing else. It allocates nothing, waits for nobody and holds no capability, so
//! that no search, pairing, VMM or client can hold it up; what it finds it leaves for the main loop to act on.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::net::{SendFlags, send};
use rustix::thread::{ClockId, NanosleepRelativeResult, Timespec, clock_nanosleep_relative};
use tracing::warn;

use crate::error::{HostError, system};
use crate::interface::TickArgs;
use crate::privilege;
use crate::seccomp::{Part, confine_or_say};

/// Heartbeat of the host in the page (`ENTRAIN_HOST_BEAT_NS`).
pub(super) const PERIOD: Duration = Duration::from_millis(100);

/// A beat that comes later than this after the one before is counted: three periods. Guests take the host for gone after
/// ten (`ENTRAIN_HOST_EXPIRY_NS`), so nothing may come near that.
const LATE: Duration = PERIOD.saturating_mul(3);

/// What beats have found since it was last asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Beat {
    /// Some pairing has ended from the guest's side.
    pub(super) gone: bool,
    /// The memory of a paired VM is being laid out anew, or copied: discovery is not to wait.
    pub(super) moved: bool,
}

/// What the heart has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Beats {
    pub(super) count: u64,
    /// Time that they took, ns.
    pub(super) ns: u64,
    /// The longest time between the ends of two of them, ns.
    pub(super) worst_gap_ns: u64,
    /// How many came later than [`LATE`] after the one before.
    pub(super) late: u64,
}

#[derive(Debug, Default)]
struct Shared {
    /// Entries of vCPUs that may be in use.
    entries: AtomicU32,
    gone: AtomicBool,
    moved: AtomicBool,
    /// The error number of the beat that failed, after which there are no more.
    failed: AtomicI32,
    count: AtomicU64,
    ns: AtomicU64,
    worst_gap_ns: AtomicU64,
    late: AtomicU64,
    stop: AtomicBool,
}

/// The thread; it ends with this.
pub(super) struct Heart {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Heart {
    /// Begins to beat. `tick` is one beat for the vCPUs below a number; `waker` wakes the main loop.
    pub(super) fn start(
        tick: impl Fn(u32) -> io::Result<TickArgs> + Send + 'static,
        waker: UnixStream,
    ) -> Result<Self, HostError> {
        let shared = Arc::<Shared>::default();
        let own = shared.clone();
        let thread = std::thread::Builder::new().name("heart".into()).spawn(move || {
            if let Err(error) = privilege::drop_all() {
                warn!("the heartbeat's thread cannot give up its capabilities: {error}");
            }
            confine_or_say(Part::Heart);
            beat_until_stopped(&own, tick, &waker);
        });
        Ok(Self { shared, thread: Some(thread.map_err(system("cannot start a thread"))?) })
    }

    /// There are so many entries of vCPUs from now on.
    pub(super) fn set_entries(&self, entries: u32) {
        self.shared.entries.store(entries, Relaxed);
    }

    /// What was found since the last call. An error: it beats no more.
    pub(super) fn take(&self) -> Result<Beat, HostError> {
        match self.shared.failed.load(Relaxed) {
            0 => {
                Ok(Beat { gone: self.shared.gone.swap(false, Relaxed), moved: self.shared.moved.swap(false, Relaxed) })
            }
            error => Err(system("the heartbeat's program cannot be called")(io::Error::from_raw_os_error(error))),
        }
    }

    pub(super) fn beats(&self) -> Beats {
        Beats {
            count: self.shared.count.load(Relaxed),
            ns: self.shared.ns.load(Relaxed),
            worst_gap_ns: self.shared.worst_gap_ns.load(Relaxed),
            late: self.shared.late.load(Relaxed),
        }
    }
}

impl Drop for Heart {
    fn drop(&mut self) {
        self.shared.stop.store(true, Relaxed);
        // It sees that within a period.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn beat_until_stopped(shared: &Shared, tick: impl Fn(u32) -> io::Result<TickArgs>, waker: &UnixStream) {
    // Pairings, and the sum of the generations of their VMs' memory slots.
    let mut layouts = (0, 0);
    let mut last = Instant::now();
    while !shared.stop.load(Relaxed) {
        let start = Instant::now();
        let found = match tick(shared.entries.load(Relaxed)) {
            Ok(found) => found,
            Err(error) => {
                shared.failed.store(error.raw_os_error().unwrap_or(libc::EIO), Relaxed);
                wake(waker);
                return;
            }
        };
        let end = Instant::now();
        shared.count.fetch_add(1, Relaxed);
        shared.ns.fetch_add((end - start).as_nanos() as u64, Relaxed);
        shared.worst_gap_ns.fetch_max((end - last).as_nanos() as u64, Relaxed);
        shared.late.fetch_add(u64::from(end - last > LATE), Relaxed);
        last = end;
        let before = std::mem::replace(&mut layouts, (found.paired, found.layouts));
        // Pairings that came or went change the sum as well.
        let moved = before.0 == found.paired && before.1 != found.layouts;
        if found.gone > 0 {
            shared.gone.store(true, Relaxed);
        }
        if moved {
            shared.moved.store(true, Relaxed);
        }
        if found.gone > 0 || moved {
            wake(waker);
        }
        sleep(PERIOD.saturating_sub(start.elapsed()));
    }
}

/// A main loop that does not listen has enough to read already.
fn wake(waker: &UnixStream) {
    let _ = send(waker, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

fn sleep(time: Duration) {
    let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) };
    // An interrupted sleep is a short one.
    let _: NanosleepRelativeResult = clock_nanosleep_relative(ClockId::Monotonic, &time);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    fn found(paired: u32, gone: u32, layouts: u64) -> io::Result<TickArgs> {
        Ok(TickArgs { paired, gone, layouts, ..TickArgs::default() })
    }

    #[test]
    fn it_beats_without_anybody_who_listens_and_tells_what_it_found() {
        let (mut woken, waker) = UnixStream::pair().expect("a pair");
        let beats = AtomicU32::new(0);
        let tick = move |entries| match beats.fetch_add(1, Relaxed) {
            0 | 1 => found(entries, 0, 7),
            2 => found(entries, 0, 8),
            _ => found(entries, 1, 8),
        };
        let heart = Heart::start(tick, waker).expect("a thread");
        heart.set_entries(3);
        // Nobody reads what wakes the main loop: it fills, and the heart goes on.
        while heart.beats().count < 5 {
            std::thread::sleep(PERIOD / 10);
        }
        assert_eq!(heart.take().expect("it beats"), Beat { gone: true, moved: true });
        woken.set_nonblocking(true).expect("a socket");
        let mut bytes = [0; 64];
        assert!(woken.read(&mut bytes).expect("woken") >= 2);
        assert!(heart.beats().worst_gap_ns >= PERIOD.as_nanos() as u64 / 2);
    }

    #[test]
    fn a_beat_that_is_held_up_counts_as_late() {
        let (_woken, waker) = UnixStream::pair().expect("a pair");
        let beats = AtomicU32::new(0);
        let tick = move |_| {
            if beats.fetch_add(1, Relaxed) == 1 {
                std::thread::sleep(LATE + PERIOD / 10);
            }
            found(0, 0, 0)
        };
        let heart = Heart::start(tick, waker).expect("a thread");
        while heart.beats().count < 2 {
            std::thread::sleep(PERIOD / 10);
        }
        assert!(heart.beats().late >= 1);
    }

    #[test]
    fn a_beat_that_fails_is_the_last_and_ends_the_daemon() {
        let (mut woken, waker) = UnixStream::pair().expect("a pair");
        let heart = Heart::start(|_| Err(io::Error::from_raw_os_error(libc::EBADF)), waker).expect("a thread");
        woken.read_exact(&mut [0]).expect("woken");
        let error = heart.take().expect_err("no more beats").to_string();
        assert!(error.contains("heartbeat"), "{error}");
    }
}
