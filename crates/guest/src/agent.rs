//! The agent: offers a page per vCPU, keeps the offers alive while hosts come and go, and takes the pages back at the end.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use entrain_channel::page::{
    GUEST_BEAT_NS, HOST_EXPIRY_NS, HeaderValues, MAGIC0, MAGIC1, MAX_VCPUS, Page, VERSION, feature,
};
use entrain_channel::protocol::{Guest, GuestView};
use entrain_channel::word::{Pulse, Seed};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sd_notify::NotifyState;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::sync::atomic::Ordering::{Relaxed, Release};

use crate::doorbell::{self, Ring};
use crate::error::{GuestError, Result};
use crate::kernel::{Kernel, Known};
use crate::lock::Lock;
use crate::pages::Pages;
use crate::system::System;
use crate::vcpud::backend;

/// How long a host that lives is waited for when the guest wants its pages back.
const RELEASE_PATIENCE: Duration = Duration::from_secs(3);
/// How often a page that nobody has accepted rings.
const RING_PERIOD: Duration = Duration::from_secs(1);

/// In the run folder: what the scheduler of mode `schedule` shows of itself.
pub const SHOWN: &str = "schedule.json";

/// What runs beside the registration: nothing in mode `register`, a scheduler in mode `schedule`.
pub trait Companion {
    /// Features that it adds to the offer.
    fn features(&self) -> u64 {
        0
    }
    /// Starts it, before the pages are offered.
    fn start(&mut self, _pages: &Pages) -> Result<()> {
        Ok(())
    }
    /// Called with every beat, twice a second. True ends the agent.
    fn beat(&mut self, _pages: &Pages) -> Result<bool> {
        Ok(false)
    }
    /// Calls of `look` for each beat, spread evenly.
    fn looks(&self) -> u32 {
        1
    }
    /// Called more often than the beat.
    fn look(&mut self, _pages: &Pages) -> Result<()> {
        Ok(())
    }
    /// Ends it, before the pages are taken back.
    fn stop(&mut self) {}
    /// Every host has let go; the pages still hold what they held.
    fn after(&mut self, _pages: &Pages) {}
}

/// Mode `register`: the guest's own scheduler is left alone.
#[derive(Debug)]
pub struct RegisterOnly;

impl Companion for RegisterOnly {}

/// A set of pages that this process answers for: at its end they have been taken back from every host.
pub struct Registration {
    pages: Pages,
    slots: Vec<Slot>,
    bell: Ring,
    rung: Option<Instant>,
}

/// One page's pairing.
struct Slot {
    guest: Guest,
    header: HeaderValues,
    /// The host's heartbeat while it is paired.
    pulse: Option<Pulse>,
}

/// How the pairing of all pages stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// Pages that a host publishes in.
    pub paired: usize,
    /// Pages that wait for one.
    pub offered: usize,
}

/// Runs the agent until a signal, or its companion, ends it.
pub fn run(system: &System, anywhere: bool, companion: &mut dyn Companion) -> Result<()> {
    system.check()?;
    if !anywhere && doorbell::under_hypervisor() == Some(false) {
        return Err(GuestError::NotAGuest);
    }
    let bpffs = system.mounted_bpffs()?;
    let folder = system.run_folder()?;
    let _lock = Lock::take(&folder)?;
    let signals = Signals::new()?;
    if let Err(error) = backend::take_back(&folder) {
        tracing::warn!("CPUs that an agent which was killed had parked are not all back: {error}");
    }
    // Shown by the scheduler of one that was killed: it ended with it.
    let _ = std::fs::remove_file(folder.join(SHOWN));
    if let Some(left) = Pages::open(&bpffs, true)? {
        tracing::warn!("an agent that ran before left {} pages behind; taking them back", left.count());
        release(left)?;
    }
    let count = system.possible_cpus()?.iter().max().map_or(1, |max| *max as usize + 1);
    if count > MAX_VCPUS {
        tracing::warn!("{count} CPUs are possible; the first {MAX_VCPUS} get a page");
    }
    let pages = Pages::create(&bpffs, count.min(MAX_VCPUS))?;
    let slots = match slots(system, &pages, companion.features()) {
        Ok(slots) => slots,
        Err(error) => {
            pages.free()?;
            return Err(error);
        }
    };
    // The kernel's BTF was in memory for a moment: megabytes that the agent will not need again.
    // SAFETY: only gives free memory back to the kernel.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0)
    };
    let mut registration = Registration { pages, slots, bell: Ring::NoBell, rung: None };
    let outcome = registration.serve(&signals, companion);
    tell_service_manager(NotifyState::Stopping);
    companion.stop();
    registration.end(companion)?;
    outcome
}

/// Without a service manager nobody is told.
fn tell_service_manager(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::debug!("cannot tell the service manager: {error}");
    }
}

/// Takes pages back that no living agent answers for, and frees them.
pub fn release(pages: Pages) -> Result<()> {
    let slots = pages.iter().map(|page| Slot {
        guest: Guest::recover(page, 0),
        header: HeaderValues::default(),
        pulse: Some(Pulse::start(page.host_slow.heartbeat.load(Relaxed), now())),
    });
    let slots = slots.collect();
    Registration { pages, slots, bell: Ring::NoBell, rung: None }.end(&mut RegisterOnly)
}

impl Registration {
    fn serve(&mut self, signals: &Signals, companion: &mut dyn Companion) -> Result<()> {
        companion.start(&self.pages)?;
        let (mut before, mut ready) = (None, false);
        loop {
            let standing = self.beat(now())?;
            if before != Some(standing) {
                tracing::info!("{} of {} vCPUs paired with a host", standing.paired, self.slots.len());
                before = Some(standing);
            }
            self.ring(standing);
            tell_service_manager(if ready { NotifyState::Watchdog } else { NotifyState::Ready });
            ready = true;
            if companion.beat(&self.pages)? {
                return Ok(());
            }
            let looks = companion.looks().max(1);
            for _ in 0..looks {
                if signals.wait(Duration::from_nanos(GUEST_BEAT_NS) / looks)? {
                    return Ok(());
                }
                companion.look(&self.pages)?;
            }
        }
    }

    /// Shows that the agent lives, and sees to every page: offers what is its own, takes back what a silent host holds.
    fn beat(&mut self, now: u64) -> Result<Standing> {
        let mut standing = Standing::default();
        let addresses: Vec<u64> = self.slots.iter().map(|slot| slot.header.gpa).collect();
        // The page of vCPU 0 last: it leads the host to the others, which are complete by then.
        for (vcpu, slot) in self.slots.iter_mut().enumerate().rev() {
            let page = self.pages.page(vcpu);
            page.guest.heartbeat.fetch_add(1, Release);
            let mut view = slot.guest.look(page);
            if view == GuestView::Paired && !slot.host_lives(page, now) {
                tracing::warn!(
                    "the host has been silent for {} ms; vCPU {vcpu} is offered anew",
                    HOST_EXPIRY_NS / 1_000_000
                );
                slot.guest.force(page);
                view = GuestView::Own;
            }
            if matches!(view, GuestView::Foreign | GuestView::Releasing) {
                tracing::warn!("the link of vCPU {vcpu} was changed by somebody else; it is offered anew");
                slot.guest.force(page);
                view = GuestView::Own;
            }
            if view == GuestView::Own {
                slot.pulse = None;
                if vcpu == 0 {
                    write_directory(&self.pages, &addresses);
                }
                slot.guest.offer(page, Seed::from_random(random()?), slot.header);
            }
            match slot.guest.look(page) {
                GuestView::Paired => standing.paired += 1,
                _ => standing.offered += 1,
            }
        }
        Ok(standing)
    }

    /// Rings where nobody has accepted yet; once a second while somebody may come.
    fn ring(&mut self, standing: Standing) {
        if standing.offered == 0 || self.rung.is_some_and(|rung| rung.elapsed() < RING_PERIOD) {
            return;
        }
        let offers: Vec<(u32, &Page)> = (0..self.slots.len())
            .filter(|&vcpu| self.slots[vcpu].guest.look(self.pages.page(vcpu)) == GuestView::Offered)
            .map(|vcpu| (vcpu as u32, self.pages.page(vcpu)))
            .collect();
        let rung = doorbell::ring(&offers);
        if self.rung.is_none() || rung != self.bell {
            match rung {
                Ring::Rung(vcpus) => tracing::info!("rang the doorbell on {vcpus} vCPUs"),
                Ring::NoBell => tracing::info!("no doorbell here; the host finds the pages by their magic"),
                Ring::Refused => {
                    tracing::warn!("the hypervisor refuses the doorbell; the host must look for the pages")
                }
            }
        }
        self.bell = rung;
        self.rung = Some(Instant::now());
    }

    /// Takes every page back, scrubs and frees them. Waits for hosts that live, for at most [`RELEASE_PATIENCE`].
    fn end(mut self, companion: &mut dyn Companion) -> Result<()> {
        let deadline = Instant::now() + RELEASE_PATIENCE;
        let mut forced = 0;
        loop {
            let mut waiting = false;
            for (vcpu, slot) in self.slots.iter_mut().enumerate() {
                let page = self.pages.page(vcpu);
                match slot.guest.take_back(page) {
                    GuestView::Own => {}
                    GuestView::Releasing if slot.host_lives(page, now()) && Instant::now() < deadline => waiting = true,
                    _ => {
                        slot.guest.force(page);
                        forced += 1;
                    }
                }
            }
            if !waiting {
                break;
            }
            // The host looks ten times a second.
            std::thread::sleep(Duration::from_millis(20));
        }
        companion.after(&self.pages);
        for (slot, page) in self.slots.iter().zip(self.pages.iter()) {
            slot.guest.scrub(page);
            wipe(page);
        }
        if forced > 0 {
            tracing::warn!("{forced} pages were taken back from a host that did not answer");
        }
        tracing::info!("{} pages scrubbed and freed", self.slots.len());
        self.pages.free()
    }
}

/// Fills in the header of every page; nothing is offered yet.
fn slots(system: &System, pages: &Pages, features: u64) -> Result<Vec<Slot>> {
    let addresses = pages.addresses()?;
    let cookie = random()? | 1;
    // The linear map is checked by finding this in the first page.
    pages.page(0).reserved[0].store(cookie, Relaxed);
    let offset = std::mem::offset_of!(Page, reserved) as u64;
    let kernel = Kernel::survey(system, pages.count(), Known { gpa: addresses[0] + offset, value: cookie });
    pages.page(0).reserved[0].store(0, Relaxed);
    tracing::info!("this kernel: {}", kernel.describe());
    let boot_id = system.boot_id()?;
    addresses
        .iter()
        .enumerate()
        .map(|(vcpu, &gpa)| {
            let mut header = HeaderValues {
                magic: [MAGIC0, MAGIC1],
                version: VERSION,
                nr_vcpus: pages.count() as u32,
                vcpu: vcpu as u32,
                cookie,
                gpa,
                features,
                boot_id,
                ..HeaderValues::default()
            };
            kernel.fill(vcpu, &mut header);
            Ok(Slot { guest: Guest::new(random()? as u32), header, pulse: None })
        })
        .collect()
}

impl Slot {
    /// Whether the host that holds the page has shown itself lately.
    fn host_lives(&mut self, page: &Page, now: u64) -> bool {
        let heartbeat = page.host_slow.heartbeat.load(Relaxed);
        let pulse = self.pulse.get_or_insert_with(|| Pulse::start(heartbeat, now));
        pulse.look(heartbeat, now);
        pulse.host_alive(now)
    }
}

/// Names every page in the page of vCPU 0; part of each of its offers.
fn write_directory(pages: &Pages, addresses: &[u64]) {
    for (entry, gpa) in pages.page(0).directory.iter().zip(addresses) {
        entry.store(*gpa, Relaxed);
    }
}

/// Leaves no magic behind for a host's scan to find.
fn wipe(page: &Page) {
    HeaderValues::default().store(&page.header);
    for entry in &page.directory {
        entry.store(0, Relaxed);
    }
}

/// The guest's monotonic clock, ns.
pub(crate) fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn random() -> Result<u64> {
    let mut bytes = [0; 8];
    // Up to 256 bytes come whole or not at all.
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(GuestError::system("no random numbers"))?;
    Ok(u64::from_ne_bytes(bytes))
}

/// The signals that end the agent.
struct Signals {
    pipe: UnixStream,
}

impl Signals {
    fn new() -> Result<Self> {
        let doing = "signals could not be caught";
        let (pipe, end) = UnixStream::pair().map_err(GuestError::system(doing))?;
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            let end = end.try_clone().map_err(GuestError::system(doing))?;
            signal_hook::low_level::pipe::register(signal, end).map_err(GuestError::system(doing))?;
        }
        Ok(Self { pipe })
    }

    /// Sleeps for so long; true as soon as a signal has come.
    fn wait(&self, time: Duration) -> Result<bool> {
        let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) };
        let pipe = self.pipe.as_fd();
        match poll(&mut [PollFd::new(&pipe, PollFlags::IN)], Some(&time)) {
            Ok(ready) => Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(GuestError::System { doing: "poll", source: io::Error::from(error) }),
        }
    }
}

/// Names of the features in a word.
pub(crate) fn feature_names(bits: u64) -> Vec<&'static str> {
    feature::NAMES.iter().filter(|(_, bit)| bits & bit != 0).map(|(name, _)| *name).collect()
}
