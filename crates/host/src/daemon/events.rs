//! What the main loop is told from outside, in one queue: by BPF, by clients, by signals.

use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender, unbounded};
use libbpf_rs::{MapHandle, RingBuffer, RingBufferBuilder};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::error::{HostError, system};
use crate::interface::{self, EVENT_DOORBELL, from_bytes};
use crate::status::Question;

/// Records of BPF that are taken at a time: as many as its ring holds. Guests and users decide how fast they come.
const RECORDS: usize = 1024;

/// Something that the main loop acts on.
#[derive(Debug)]
pub(super) enum Event {
    /// A guest has rung in the vCPU thread `tid` of process `tgid`: its page is at `gpa`.
    Doorbell { tid: i32, tgid: i32, gpa: u64 },
    /// A vCPU thread has ended.
    VcpuEnded,
    /// A client asks.
    Asked(Question),
    /// SIGHUP: the configuration is to be read again.
    Reload,
    /// SIGTERM or SIGINT.
    Stop,
}

impl From<interface::Event> for Event {
    fn from(told: interface::Event) -> Self {
        match told.kind {
            EVENT_DOORBELL => Self::Doorbell { tid: told.tid, tgid: told.tgid, gpa: told.arg },
            _ => Self::VcpuEnded,
        }
    }
}

/// What signals have asked for. A handler can only set flags and write a byte.
pub(super) struct Signals {
    stop: Arc<AtomicBool>,
    reload: Arc<AtomicBool>,
    woken: UnixStream,
    waker: UnixStream,
}

impl Signals {
    /// From now on signals are events; one that comes before the queue is there is not lost.
    pub(super) fn catch() -> Result<Self, HostError> {
        let (woken, waker) = UnixStream::pair().map_err(system("cannot make a socket pair"))?;
        woken.set_nonblocking(true).map_err(system("cannot set up a socket"))?;
        let (stop, reload) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        for (signal, flag) in [(libc::SIGTERM, &stop), (libc::SIGINT, &stop), (libc::SIGHUP, &reload)] {
            let waker = waker.try_clone().map_err(system("cannot copy a socket"))?;
            signal_hook::flag::register(signal, flag.clone())
                .and_then(|_| signal_hook::low_level::pipe::register(signal, waker))
                .map_err(system("cannot catch signals"))?;
        }
        Ok(Self { stop, reload, woken, waker })
    }
}

/// The queue's end in the main loop.
pub(super) struct Events {
    queue: Receiver<Event>,
    sender: Sender<Event>,
    signals: Signals,
    ring: RingBuffer<'static>,
    /// The ring's waiting ends with the last file descriptor of its map.
    _map: MapHandle,
}

impl Events {
    /// The queue of what signals tell, what BPF tells in `map`, and what [`Self::questions`] bring.
    pub(super) fn new(signals: Signals, map: MapHandle) -> Result<Self, HostError> {
        let (sender, queue) = unbounded();
        let put = sender.clone();
        let mut builder = RingBufferBuilder::new();
        let on_record = move |bytes: &[u8]| {
            if let Some(told) = from_bytes::<interface::Event>(bytes) {
                // The receiver is dropped together with this.
                let _ = put.send(told.into());
            }
            0
        };
        let built = builder.add(&map, on_record).map(drop).and_then(|()| builder.build());
        let ring = built.map_err(entrain_bpf::Error::at(entrain_bpf::Step::Run, "events"))?;
        Ok(Self { queue, sender, signals, ring, _map: map })
    }

    /// A way into the queue for the questions of clients, from threads of their own. It answers whether the main loop
    /// will see the question.
    pub(super) fn questions(&self) -> Result<impl Fn(Question) -> bool + Send + Sync + use<>, HostError> {
        let waker = self.waker()?;
        let sender = self.sender.clone();
        Ok(move |question| sender.send(Event::Asked(question)).is_ok() && (&waker).write_all(&[1]).is_ok())
    }

    /// What wakes the main loop.
    pub(super) fn waker(&self) -> Result<UnixStream, HostError> {
        self.signals.waker.try_clone().map_err(system("cannot copy a socket"))
    }

    /// Sleeps until `until` or until something has happened. Returns what has happened so far: what comes while these are
    /// being worked off waits for the next call, so that nobody can keep the main loop from its own tasks.
    pub(super) fn wait(&mut self, until: Option<Instant>) -> Vec<Event> {
        self.sleep(until);
        // Errors here are those of our own callback, which has none.
        let _ = self.ring.consume_raw_n(RECORDS);
        let mut drain = [0; 64];
        while (&self.signals.woken).read(&mut drain).is_ok_and(|n| n > 0) {}
        let flags = [(&self.signals.stop, Event::Stop), (&self.signals.reload, Event::Reload)];
        let signals =
            flags.into_iter().filter_map(|(flag, event)| flag.swap(false, Ordering::Relaxed).then_some(event));
        signals.chain(self.queue.try_iter().take(self.queue.len())).collect()
    }

    fn sleep(&self, until: Option<Instant>) {
        let timeout = until.map(|until| {
            let left = until.saturating_duration_since(Instant::now());
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) }
        });
        // SAFETY: the ring buffer owns this descriptor and outlives the borrow.
        let ring = unsafe { BorrowedFd::borrow_raw(self.ring.epoll_fd()) };
        let woken = self.signals.woken.as_fd();
        let mut fds = [PollFd::new(&woken, PollFlags::IN), PollFd::new(&ring, PollFlags::IN)];
        // An interrupted wait is a short one.
        let _ = poll(&mut fds, timeout.as_ref());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interface::EVENT_EXIT;

    #[test]
    fn what_bpf_tells_becomes_an_event() {
        let told = |kind| Event::from(interface::Event { kind, tid: 7, tgid: 6, arg: 0x1000, ..Default::default() });
        assert!(matches!(told(EVENT_DOORBELL), Event::Doorbell { tid: 7, tgid: 6, gpa: 0x1000 }));
        assert!(matches!(told(EVENT_EXIT), Event::VcpuEnded));
    }
}
