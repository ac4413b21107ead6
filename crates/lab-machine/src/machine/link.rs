//! The lab's side of the connection: exchanges with the agents, and what is known of each machine's health.
use std::{
    collections::HashMap,
    io::{Read, Write},
    os::unix::net::UnixStream,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, Sender};
use entrain_lab_agent::{
    frame::{Decoder, Frame},
    message::{Event, Request},
};

use super::{Target, console::Console, pace::Clock};
use crate::{Fault, FaultClass, LabError, Result, cancel};

/// An agent that says nothing for this long is taken for dead. Guests on an overcommitted host get little CPU time, and
/// a development machine may be busy: 30 heartbeats may be late before the lab gives up.
pub(super) const SILENCE: Duration = Duration::from_secs(30);
/// Of it, by the machine's own clock: a heartbeat that waits there behind a load.
const LATE: Duration = Duration::from_secs(2);
/// After the first sign of a fault the console has this long to tell the rest.
const REST: Duration = Duration::from_secs(2);
/// How often waits look around.
const GLANCE: Duration = Duration::from_millis(50);
/// Lines of a console that go into a fault.
const LINES: usize = 20;

/// What is known of one machine.
#[derive(Debug, Default)]
pub(super) struct Health {
    pub(super) console: Console,
    /// When the agent was last heard.
    heard: Option<Instant>,
    /// How often the agent came up: more than expected means a reset.
    pub(super) starts: u32,
    /// Kernel's release and uptime at the last start.
    pub(super) release: String,
    pub(super) uptime_ms: u64,
    /// The lab itself stopped, paused or reset it: silence and end are no faults.
    pub(super) excused: bool,
    /// Its QEMU ended, and how.
    pub(super) gone: Option<String>,
    /// When a fault was first suspected.
    suspected: Option<Instant>,
    fault: Option<Fault>,
}

/// Shared by the machine, its running commands, and the threads that listen.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) emulated: bool,
    pub(super) clock: Clock,
    machines: Mutex<HashMap<Target, Health>>,
    exchanges: Mutex<HashMap<(Target, u32), Sender<Event>>>,
    port: Mutex<UnixStream>,
    next: AtomicU32,
}

/// One request and its answers.
#[derive(Debug)]
pub(super) struct Exchange {
    pub(super) link: Arc<Link>,
    pub(super) target: Target,
    pub(super) id: u32,
    events: Receiver<Event>,
}

impl Link {
    /// Listens to the host machine's console and port.
    pub(super) fn new(
        emulated: bool,
        clock: Clock,
        console: UnixStream,
        port: UnixStream,
    ) -> std::io::Result<Arc<Self>> {
        // A QEMU that stands still (stopped, starved) reads no more: without a limit a full port would hold the lab,
        // and Ctrl-C with it.
        port.set_write_timeout(Some(SILENCE))?;
        let link = Arc::new(Self {
            emulated,
            clock,
            machines: Mutex::default(),
            exchanges: Mutex::default(),
            port: Mutex::new(port.try_clone()?),
            next: AtomicU32::new(1),
        });
        let (listener, mut from) = (Arc::clone(&link), console);
        thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(n @ 1..) = from.read(&mut piece) {
                listener.health(Target::Host, |h| h.console.push(&piece[..n]));
            }
        });
        let (listener, mut from) = (Arc::clone(&link), port);
        thread::spawn(move || {
            let mut decoder = Decoder::default();
            while let Ok(Some(frame)) = decoder.read(&mut from) {
                listener.receive(&frame);
            }
            listener.port_closed();
        });
        Ok(link)
    }

    fn machines(&self) -> MutexGuard<'_, HashMap<Target, Health>> {
        self.machines.lock().expect("no panic under it")
    }

    /// Looks at or changes what is known of a machine.
    pub(super) fn health<T>(&self, target: Target, f: impl FnOnce(&mut Health) -> T) -> T {
        f(self.machines().entry(target).or_default())
    }

    fn receive(&self, frame: &Frame) {
        let target = match frame.party {
            0 => Target::Host,
            n => Target::Guest(usize::from(n) - 1),
        };
        let event = match postcard::from_bytes::<Event>(&frame.body) {
            Ok(event) => event,
            Err(e) => return tracing::warn!("{target}: a message that the lab does not understand: {e}"),
        };
        self.health(target, |h| h.heard = Some(Instant::now()));
        match event {
            Event::Ready { version: _, release, uptime_ms } => self.health(target, |h| {
                h.starts += 1;
                h.release = release;
                h.uptime_ms = uptime_ms;
            }),
            Event::Heartbeat { .. } => {}
            Event::Console { guest, bytes } => self.health(Target::Guest(guest), |h| h.console.push(&bytes)),
            Event::Gone { guest, how } => self.health(Target::Guest(guest), |h| h.gone = Some(how)),
            event => {
                let id = event.id().unwrap_or_default();
                let exchanges = self.exchanges.lock().expect("no panic under it");
                if let Some(exchange) = exchanges.get(&(target, id)) {
                    // Fails when nobody waits for this answer any more.
                    let _ = exchange.send(event);
                }
            }
        }
    }

    /// QEMU ended or cut the port; [`Self::check`] finds out which.
    fn port_closed(&self) {
        self.health(Target::Host, |h| {
            if h.gone.is_none() {
                h.gone = Some("the port closed".into());
            }
        });
    }

    /// Sends a request. The machine's fault, if it has one, is the error.
    pub(super) fn send(&self, target: Target, request: &Request) -> Result<()> {
        let party = match target {
            Target::Host => 0,
            Target::Guest(n) => u8::try_from(n + 1).map_err(|_| LabError::Invalid(format!("there is no guest {n}")))?,
        };
        let body = postcard::to_stdvec(request).expect("plain data");
        let sent = self.port.lock().expect("no panic under it").write_all(&Frame { party, body }.encode());
        match sent {
            Ok(()) => Ok(()),
            Err(_) => {
                self.port_closed();
                self.check(target)
            }
        }
    }

    /// Begins an exchange; `request` is made with its number.
    pub(super) fn exchange(self: &Arc<Self>, target: Target, request: impl FnOnce(u32) -> Request) -> Result<Exchange> {
        self.check(target)?;
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (send, events) = crossbeam_channel::unbounded();
        self.exchanges.lock().expect("no panic under it").insert((target, id), send);
        let exchange = Exchange { link: Arc::clone(self), target, id, events };
        self.send(target, &request(id))?;
        Ok(exchange)
    }

    /// An error if the user wants to stop, or if this machine, or the host machine that it lives on, has broken down.
    pub(super) fn check(&self, target: Target) -> Result<()> {
        cancel::check()?;
        for who in [Target::Host, target] {
            self.judge(who)?;
        }
        Ok(())
    }

    /// The same for the host machine and so many guests. A first sign of a fault is heard out: nobody may ask again.
    pub(super) fn settle(&self, guests: usize) -> Result<()> {
        let all = || (0..guests).map(Target::Guest).chain([Target::Host]);
        loop {
            all().try_for_each(|who| self.check(who))?;
            if !all().any(|who| self.health(who, |h| h.suspected.is_some())) {
                return Ok(());
            }
            thread::sleep(GLANCE);
        }
    }

    /// Decides whether a machine is broken, and how.
    fn judge(&self, who: Target) -> Result<()> {
        let silence = self.clock.limit(SILENCE, LATE);
        self.health(who, |h| {
            if let Some(fault) = &h.fault {
                return Err(LabError::Fault(Box::new(fault.clone())));
            }
            if h.excused {
                return Ok(());
            }
            let sign = h.console.sign().cloned();
            let silent = h.heard.filter(|t| t.elapsed() > silence);
            if sign.is_none() && h.gone.is_none() && silent.is_none() && h.starts < 2 {
                h.suspected = None;
                return Ok(());
            }
            // The console may still have to tell the rest of it, above all the cause of an end.
            let since = *h.suspected.get_or_insert_with(Instant::now);
            if since.elapsed() < REST {
                return Ok(());
            }
            let (class, detail) = match (sign, &h.gone, silent) {
                (Some((class, line)), _, _) => (class, line.trim().to_owned()),
                (None, Some(how), _) => (self.class_of_end(who, how), how.clone()),
                (None, None, Some(t)) => (FaultClass::Silent, format!("not heard for {} s", t.elapsed().as_secs())),
                (None, None, None) => (FaultClass::Reset, "its agent came up again".into()),
            };
            let fault = Fault { class, who, emulated: self.emulated, detail, console: h.console.tail(LINES) };
            h.fault = Some(fault.clone());
            Err(LabError::Fault(Box::new(fault)))
        })
    }

    fn class_of_end(&self, who: Target, how: &str) -> FaultClass {
        match who {
            Target::Guest(_) => FaultClass::GuestGone,
            Target::Host if how.contains("port") => FaultClass::PortCut,
            // With -no-reboot QEMU ends well when its machine resets; a signal or an error is QEMU's own end.
            Target::Host if how.ends_with(": 0") => FaultClass::Reset,
            Target::Host => FaultClass::QemuDied,
        }
    }

    /// Waits until `done` says so of a machine.
    pub(super) fn wait_for(
        &self,
        target: Target,
        limit: Duration,
        mut done: impl FnMut(&Health) -> bool,
    ) -> Result<bool> {
        let until = Instant::now() + limit;
        loop {
            self.check(target)?;
            if self.health(target, |h| done(h)) {
                return Ok(true);
            }
            if Instant::now() >= until {
                return Ok(false);
            }
            thread::sleep(GLANCE);
        }
    }

    /// The fault of a machine that did not come up in time.
    pub(super) fn boot_deadline(&self, who: Target, limit: Duration) -> LabError {
        let console = self.health(who, |h| h.console.tail(LINES));
        let detail = format!("not up after {} s", limit.as_secs());
        LabError::Fault(Box::new(Fault {
            class: FaultClass::BootDeadline,
            who,
            emulated: self.emulated,
            detail,
            console,
        }))
    }

    /// Closes the port, for tests.
    pub(super) fn cut(&self) {
        // Already closed is as good.
        let _ = self.port.lock().expect("no panic under it").shutdown(std::net::Shutdown::Both);
    }

    /// The agent spoke again after a pause: its silence begins now.
    pub(super) fn excuse(&self, target: Target, excused: bool) {
        self.health(target, |h| {
            h.excused = excused;
            h.heard = h.heard.map(|_| Instant::now());
            h.suspected = None;
        });
    }
}

impl Exchange {
    /// The next answer, before `until`.
    pub(super) fn next(&self, until: Instant) -> Result<Option<Event>> {
        loop {
            if let Ok(event) = self.events.recv_timeout(GLANCE) {
                return Ok(Some(event));
            }
            self.link.check(self.target)?;
            if Instant::now() >= until {
                return Ok(None);
            }
        }
    }

    /// Waits for `Done` and returns its text.
    pub(super) fn done(&self, what: &str, limit: Duration) -> Result<String> {
        match self.next(Instant::now() + limit)? {
            Some(Event::Done { text, .. }) => Ok(text),
            Some(Event::Failed { message, .. }) => Err(self.failed(message)),
            Some(_) => Err(self.failed("an answer to another question".into())),
            None => Err(LabError::Deadline { what: format!("{what} ({})", self.target), limit }),
        }
    }

    pub(super) fn failed(&self, message: String) -> LabError {
        LabError::Remote { who: self.target.to_string(), message }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.link.exchanges.lock().expect("no panic under it").remove(&(self.target, self.id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link() -> (Arc<Link>, UnixStream, UnixStream) {
        let (console, kernel) = UnixStream::pair().unwrap();
        let (port, agent) = UnixStream::pair().unwrap();
        (Link::new(true, Clock::default(), console, port).unwrap(), kernel, agent)
    }

    #[test]
    fn a_fault_at_the_last_moment_is_heard_out() {
        let (link, mut kernel, _agent) = link();
        link.settle(1).unwrap();
        kernel.write_all(b"[    3.1] Oops: int3: 0000 [#1] SMP NOPTI\n").unwrap();
        while link.health(Target::Host, |h| h.console.sign().is_none()) {
            thread::sleep(Duration::from_millis(1));
        }
        link.check(Target::Host).unwrap();
        assert_eq!(link.settle(1).unwrap_err().fault().unwrap().class, FaultClass::Int3);
    }

    #[test]
    fn who_is_heard_again_is_suspected_no_more() {
        let (link, _kernel, _agent) = link();
        let guest = Target::Guest(0);
        link.health(guest, |h| h.heard = Instant::now().checked_sub(2 * SILENCE));
        link.check(guest).unwrap();
        assert!(link.health(guest, |h| h.suspected.is_some()));
        link.health(guest, |h| h.heard = Some(Instant::now()));
        link.settle(1).unwrap();
        assert!(link.health(guest, |h| h.suspected.is_none()));
    }
}
