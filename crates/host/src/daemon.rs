//! `entrain host`: the main loop.

use std::cell::{Cell, RefCell};
use std::fs::{self, File, TryLockError};
use std::io::{self, Read};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};
use entrain_bpf::Features;
use libbpf_rs::{RingBuffer, RingBufferBuilder};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::CapabilitySet;
use sd_notify::NotifyState;
use thiserror::Error;
use tracing::{info, warn};

use crate::classes::apply::{Running, Weights};
use crate::classes::{Classes, pcpus};
use crate::figures::Figures;
use crate::fleet::Fleet;
use crate::interface::{EVENT_DOORBELL, EVENT_IDLE, Event, from_bytes};
use crate::programs::Programs;
use crate::status::{Answer, Asker, Status, Work, serve};
use crate::waits::Waits;
use crate::{cpus, metrics, privilege, snapshot, uclamp};

/// Heartbeat of the host in the page (`ENTRAIN_HOST_BEAT_NS`).
const TICK: Duration = Duration::from_millis(100);
/// VMs are looked for this often, and sooner after events.
const DISCOVERY: Duration = Duration::from_secs(1);
/// Time per discovery that the search for agents may take: 4 % of one CPU at most.
const SEARCH: Duration = Duration::from_millis(40);
/// How much of each tick the self-test hammers; the vCPUs need the rest.
const SELFTEST: Duration = Duration::from_millis(50);

/// Why the daemon did not start, or had to end.
#[derive(Debug, Error)]
pub enum HostError {
    /// The kernel cannot do it.
    #[error("this machine cannot be observed; it lacks:\n  - {}", .0.join("\n  - "))]
    Missing(Vec<&'static str>),
    /// Another daemon runs.
    #[error("another `entrain host` runs already (it holds {}): stop it first", .0.display())]
    Running(PathBuf),
    /// A file.
    #[error("{}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What happened.
        source: io::Error,
    },
    /// A BPF program.
    #[error(transparent)]
    Bpf(#[from] entrain_bpf::Error),
    /// Anything else of the system.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What happened.
        source: io::Error,
    },
    /// The configuration.
    #[error(transparent)]
    Config(#[from] entrain_config::ConfigError),
    /// The scheduler.
    #[error(transparent)]
    Schedule(#[from] crate::schedule::ScheduleError),
    /// The utilisation clamps.
    #[error(transparent)]
    Uclamp(#[from] crate::uclamp::UclampError),
}

fn system(what: &'static str) -> impl FnOnce(io::Error) -> HostError {
    move |source| HostError::System { what, source }
}

/// How the daemon is to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// For the lock and the status socket.
    pub run_dir: PathBuf,
    /// Take part in the self-test of the channel.
    pub selftest: bool,
    /// Where to serve metrics.
    pub metrics: Option<SocketAddr>,
    /// The file of classes.
    pub config: Option<PathBuf>,
    /// Capacity of each pCPU (0..=1024) instead of the kernel's, for emulated ones; empty = the kernel's.
    pub capacities: Vec<u32>,
}

/// What runs beside observing: the host's scheduler in mode `schedule`. Called from the main loop.
pub(crate) trait Companion {
    /// The mode's name, for the status.
    fn mode(&self) -> &'static str;
    /// Whether a VM in a cgroup of its own gets its share however few of its vCPUs run.
    fn fair_to_groups(&self) -> bool {
        false
    }
    /// What the mode alone knows, for the status.
    fn figures(&self, _fleet: &Fleet) -> Figures {
        Figures::default()
    }
    /// What the classes of the VMs that run say to the scheduler, by the VMM's process; after each look for VMs.
    fn classes(&mut self, _vms: &[(i32, crate::classes::Schedule)]) -> Result<(), HostError> {
        Ok(())
    }
    /// Capabilities that it needs after loading, beside the daemon's own.
    fn needs(&self) -> CapabilitySet {
        CapabilitySet::empty()
    }
    /// Every 100 ms. An error ends the daemon.
    fn tick(&mut self) -> Result<(), HostError>;
    /// What cannot wait for a tick. Returns when it is to be called again; `None` = never. An error ends the daemon.
    fn fine(&mut self, _fleet: &Fleet) -> Result<Option<Duration>, HostError> {
        Ok(None)
    }
}

/// Mode `observe`: nothing beside.
pub(crate) struct ObserveOnly;

impl Companion for ObserveOnly {
    fn mode(&self) -> &'static str {
        "observe"
    }
    fn tick(&mut self) -> Result<(), HostError> {
        Ok(())
    }
}

/// Without a service manager nobody is told.
fn tell_service_manager(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::debug!("cannot tell the service manager: {error}");
    }
}

/// Runs until a signal ends it. `companion` is made once the programs are loaded.
pub(crate) fn run(
    options: &Options,
    extra_features: u64,
    companion: impl FnOnce(&Programs) -> Result<Box<dyn Companion>, HostError>,
) -> Result<(), HostError> {
    let features = Features::probe();
    let missing = features.missing_for_observe();
    if !missing.is_empty() {
        return Err(HostError::Missing(missing));
    }
    let classes = options.config.as_deref().map(Classes::load).transpose()?;
    let _lock = lock(&options.run_dir)?;
    uclamp::clean_up(&options.run_dir);
    entrain_bpf::quiet();

    let stop = Arc::new(AtomicBool::new(false));
    let (wake, waker) = UnixStream::pair().map_err(system("cannot make a socket pair"))?;
    wake.set_nonblocking(true).map_err(system("cannot set up a socket"))?;
    let reload = Arc::new(AtomicBool::new(false));
    for (signal, flag) in [(libc::SIGTERM, &stop), (libc::SIGINT, &stop), (libc::SIGHUP, &reload)] {
        let waker = waker.try_clone().map_err(system("cannot copy a socket"))?;
        signal_hook::flag::register(signal, flag.clone())
            .and_then(|_| signal_hook::low_level::pipe::register(signal, waker))
            .map_err(system("cannot catch signals"))?;
    }

    let cpus = cpus::read(Path::new("/sys"));
    let mut programs = Programs::load(&features, cpus.len() as u32, extra_features)?;
    let mut companion = companion(&programs)?;
    let socket = options.run_dir.join("host.sock");
    let (sender, requests) = unbounded();
    let copy = waker.try_clone().map_err(system("cannot copy a socket"))?;
    if let Some(address) = options.metrics {
        metrics::serve(address, Asker::new(sender.clone(), copy)).map_err(system("cannot serve metrics there"))?;
    }
    let asker = Asker::new(sender, waker);
    let waits = Waits::new(asker.waits());
    serve(&socket, asker).map_err(|source| HostError::File { path: socket.clone(), source })?;

    set_cpus(&programs, features.freq_scale, &options.capacities);
    programs.attach(&features)?;
    let fleet = Rc::new(RefCell::new(Fleet::new(programs, PathBuf::from("/proc"), companion.fair_to_groups())));
    let (soon, idled) = (Rc::new(RefCell::new(true)), Rc::new(Cell::new(false)));
    let ring = ring(&fleet, &soon, &idled)?;
    // All is loaded and attached: from here on file descriptors are enough.
    let left = privilege::drop_after_loading(companion.needs()).map_err(system("cannot give up capabilities"))?;
    info!("kept of all capabilities: {left:?}");
    let mut daemon = Daemon {
        fleet: fleet.clone(),
        features,
        work: Work::default(),
        started: Instant::now(),
        selftest: options.selftest,
        classes,
        weights: Weights::default(),
        capacities: options.capacities.clone(),
        reload,
        waits,
    };
    info!("observing {} pCPUs; status in {}", cpus.len(), socket.display());
    tell_service_manager(NotifyState::Ready);
    let result = daemon.watch(&stop, &wake, &ring, &Seen { soon, idled }, &requests, &mut *companion);
    tell_service_manager(NotifyState::Stopping);
    daemon.weights.take_all_back();
    let told = fleet.borrow_mut().release_all()?;
    let _ = fs::remove_file(&socket);
    info!("ended; gave {told} pages back to their guests");
    result
}

/// One instance per run folder.
fn lock(run_dir: &Path) -> Result<File, HostError> {
    let at = |path: &Path| {
        let path = path.to_owned();
        move |source| HostError::File { path, source }
    };
    fs::DirBuilder::new().recursive(true).mode(0o700).create(run_dir).map_err(at(run_dir))?;
    let path = run_dir.join("host.lock");
    let file = File::create(&path).map_err(at(&path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(HostError::Running(path)),
        Err(TryLockError::Error(source)) => Err(HostError::File { path, source }),
    }
}

/// Tells BPF what the pCPUs are. `counted`: the kernel counts performance levels, so cpufreq is not asked.
fn set_cpus(programs: &Programs, counted: bool, capacities: &[u32]) {
    for (index, cpu) in cpus::read(Path::new("/sys")).iter().enumerate().take(programs.pcpus.entries()) {
        let entry = programs.pcpus.at(index);
        let capacity = capacities.get(index).copied().unwrap_or(cpu.capacity);
        // SAFETY: aligned fields inside the table; BPF only reads them, but for `perf` where the kernel counts.
        unsafe {
            (&raw mut (*entry).domain).write_volatile(cpu.domain);
            (&raw mut (*entry).capacity).write_volatile(if cpu.online { capacity } else { 0 });
            if !counted {
                (&raw mut (*entry).perf).write_volatile(cpu.level);
            }
        }
    }
}

/// Rare events from BPF.
fn ring(
    fleet: &Rc<RefCell<Fleet>>,
    soon: &Rc<RefCell<bool>>,
    idled: &Rc<Cell<bool>>,
) -> Result<RingBuffer<'static>, HostError> {
    let (doorbells, again, idled) = (fleet.clone(), soon.clone(), idled.clone());
    let mut builder = RingBufferBuilder::new();
    // Lives as long as the process, as the ring does.
    let handle = Box::leak(Box::new(fleet.borrow().programs.events()?));
    let on_event = move |bytes: &[u8]| {
        if let Some(event) = from_bytes::<Event>(bytes) {
            if event.kind == EVENT_IDLE {
                idled.set(true);
                return 0;
            }
            let known =
                event.kind == EVENT_DOORBELL && doorbells.borrow_mut().doorbell(event.tid, event.tgid, event.arg);
            // A vCPU thread ended, or a guest rings that is not known yet: look at once.
            if !known {
                *again.borrow_mut() = true;
            }
        }
        0
    };
    let built = builder.add(handle, on_event).map(drop).and_then(|()| builder.build());
    built.map_err(|error| entrain_bpf::Error::at(entrain_bpf::Step::Run, "events")(error).into())
}

/// What the events of BPF have left to do.
struct Seen {
    /// Look for VMs.
    soon: Rc<RefCell<bool>>,
    /// A pCPU went idle while VMs competed.
    idled: Rc<Cell<bool>>,
}

struct Daemon {
    fleet: Rc<RefCell<Fleet>>,
    features: Features,
    work: Work,
    started: Instant,
    selftest: bool,
    classes: Option<Classes>,
    weights: Weights,
    capacities: Vec<u32>,
    /// Set by SIGHUP.
    reload: Arc<AtomicBool>,
    waits: Waits,
}

impl Daemon {
    fn watch(
        &mut self,
        stop: &AtomicBool,
        mut wake: &UnixStream,
        ring: &RingBuffer<'_>,
        seen: &Seen,
        requests: &Receiver<Sender<Answer>>,
        companion: &mut dyn Companion,
    ) -> Result<(), HostError> {
        let mut next_tick = Instant::now();
        let mut next_discovery = next_tick;
        let mut next_share = next_tick;
        let mut next_fine = Some(next_tick);
        while !stop.load(Ordering::Relaxed) {
            let now = Instant::now();
            if now >= next_tick {
                if self.fleet.borrow_mut().tick()? {
                    seen.soon.replace(true);
                }
                companion.tick()?;
                let urgent = self.fleet.borrow().search_is_urgent();
                if urgent {
                    self.search();
                }
                if self.selftest {
                    self.fleet.borrow().selftest(SELFTEST)?;
                }
                self.work.ticks += 1;
                self.work.tick_ns += now.elapsed().as_nanos() as u64;
                next_tick = now + TICK;
            }
            if self.reload.swap(false, Ordering::Relaxed) {
                self.reload();
                seen.soon.replace(true);
            }
            if now >= next_discovery || seen.soon.replace(false) {
                tell_service_manager(NotifyState::Watchdog);
                self.discover(companion)?;
                next_discovery = Instant::now() + DISCOVERY;
            }
            if now >= next_share {
                self.fleet.borrow_mut().share_cpus()?;
                next_share = Instant::now() + self.fleet.borrow().share_period();
            }
            if next_fine.is_some_and(|at| now >= at) {
                next_fine = companion.fine(&self.fleet.borrow())?.map(|period| Instant::now() + period);
            }
            let next = next_tick.min(next_share);
            wait(next_fine.map_or(next, |at| at.min(next)), wake.as_fd(), ring);
            // Errors here are those of our own callback, which has none.
            let _ = ring.consume();
            if seen.idled.take() {
                self.fleet.borrow_mut().pcpu_idles();
                next_share = Instant::now();
            }
            let mut drain = [0; 64];
            while wake.read(&mut drain).is_ok_and(|n| n > 0) {}
            self.waits.update(&mut self.fleet.borrow_mut().programs);
            while let Ok(reply) = requests.try_recv() {
                // The client may have given up.
                let _ = reply.send(Answer::Status(Box::new(self.status(companion))));
            }
        }
        Ok(())
    }

    fn discover(&mut self, companion: &mut dyn Companion) -> Result<(), HostError> {
        let start = Instant::now();
        let mut fleet = self.fleet.borrow_mut();
        if let Err(error) = fleet.discover() {
            // Out of memory and the like: the VMs that are known go on, and the next pass is a second away.
            warn!("cannot look for VMs now: {error}");
        }
        let running = fleet.vms.values();
        let vms: Vec<Running> = running
            .map(|vm| Running {
                name: vm.name.clone(),
                pid: vm.found.tgid,
                vcpus: vm.vcpus.len() as u32,
                weight: vm.group.weight,
            })
            .collect();
        let proc = fleet.proc.clone();
        let given = self.weights.apply(self.classes.as_ref(), &proc, Path::new("/sys/fs/cgroup"), pcpus(), &vms);
        let mut schedule = Vec::new();
        for (vm, given) in fleet.vms.values_mut().zip(given) {
            schedule.extend(given.as_ref().map(|given| (vm.found.tgid, given.schedule)));
            vm.class = given.map(|given| given.class);
        }
        companion.classes(&schedule)?;
        set_cpus(&fleet.programs, self.features.freq_scale, &self.capacities);
        drop(fleet);
        self.work.discoveries += 1;
        self.work.discovery_ns += start.elapsed().as_nanos() as u64;
        self.search();
        Ok(())
    }

    fn search(&mut self) {
        let start = Instant::now();
        self.fleet.borrow_mut().pair(SEARCH);
        self.work.pairing_ns += start.elapsed().as_nanos() as u64;
    }

    /// Reads the classes again; a file that is wrong changes nothing.
    fn reload(&mut self) {
        match self.classes.as_ref().map(Classes::reload) {
            None => info!("SIGHUP: nothing to read again, there is no --config"),
            Some(Ok(classes)) => {
                info!("SIGHUP: read again: {}", classes.summary().lines().next().unwrap_or_default());
                self.classes = Some(classes);
            }
            Some(Err(error)) => warn!("SIGHUP: the classes stay as they were: {error}"),
        }
    }

    fn status(&self, companion: &dyn Companion) -> Status {
        let fleet = self.fleet.borrow();
        let mut status =
            snapshot::take(&fleet, companion.mode(), self.started.elapsed(), self.work, companion.figures(&fleet));
        status.waits = self.waits.status(&fleet);
        status
    }
}

/// Sleeps until `until`, an event of BPF, a signal, or a client.
fn wait(until: Instant, wake: BorrowedFd<'_>, ring: &RingBuffer<'_>) {
    let left = until.saturating_duration_since(Instant::now());
    let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
    // SAFETY: the ring buffer owns this descriptor and outlives the borrow.
    let events = unsafe { BorrowedFd::borrow_raw(ring.epoll_fd()) };
    let mut fds = [PollFd::new(&wake, PollFlags::IN), PollFd::new(&events, PollFlags::IN)];
    // An interrupted wait is a short one.
    let _ = poll(&mut fds, Some(&timeout));
}
