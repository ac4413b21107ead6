//! The agent: offers a page per vCPU, keeps the offers alive while hosts come and go, and takes the pages back at the end.

mod registration;
mod signals;
mod spins;

use std::time::Duration;

use entrain_channel::page::{GUEST_BEAT_NS, MAX_VCPUS, feature};
use entrain_system::monotonic_ns;
use sd_notify::NotifyState;

use crate::doorbell;
use crate::error::{GuestError, Result};
use crate::lock::Lock;
use crate::pages::Pages;
use crate::schedule::shown;
use crate::system::System;
use crate::vcpud::backend;
use registration::Registration;
use signals::Signals;
use spins::Spins;

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
    shown::clear(&folder);
    if let Some(left) = Pages::open(&bpffs, true)? {
        tracing::warn!("an agent that ran before left {} pages behind; taking them back", left.count());
        release(left)?;
    }
    let count = system.possible_cpus()?.iter().max().map_or(1, |max| *max as usize + 1);
    if count > MAX_VCPUS {
        tracing::warn!("{count} CPUs are possible; the first {MAX_VCPUS} get a page");
    }
    let pages = Pages::create(&bpffs, count.min(MAX_VCPUS))?;
    let spins = Spins::start(&pages);
    let features = companion.features() | if spins.is_some() { feature::SPINS } else { 0 };
    let slots = match registration::slots(system, &pages, features) {
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
    let mut registration = Registration::new(pages, slots);
    let outcome = serve(&mut registration, &signals, companion);
    tell_service_manager(NotifyState::Stopping);
    companion.stop();
    if let Some(spins) = spins {
        spins.end(&registration.pages);
    }
    registration.end(companion)?;
    outcome
}

/// Takes pages back that no living agent answers for, and frees them.
pub fn release(pages: Pages) -> Result<()> {
    Registration::recover(pages).end(&mut RegisterOnly)
}

/// Until a signal or the companion ends it.
fn serve(registration: &mut Registration, signals: &Signals, companion: &mut dyn Companion) -> Result<()> {
    companion.start(&registration.pages)?;
    let (mut before, mut ready) = (None, false);
    loop {
        let standing = registration.beat(monotonic_ns())?;
        if before != Some(standing) {
            tracing::info!("{} of {} vCPUs paired with a host", standing.paired, registration.pages.count());
            before = Some(standing);
        }
        registration.ring(standing);
        tell_service_manager(if ready { NotifyState::Watchdog } else { NotifyState::Ready });
        ready = true;
        if companion.beat(&registration.pages)? {
            return Ok(());
        }
        let looks = companion.looks().max(1);
        for _ in 0..looks {
            if signals.wait(Duration::from_nanos(GUEST_BEAT_NS) / looks)? {
                return Ok(());
            }
            companion.look(&registration.pages)?;
        }
    }
}

/// Without a service manager nobody is told.
fn tell_service_manager(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::debug!("cannot tell the service manager: {error}");
    }
}
