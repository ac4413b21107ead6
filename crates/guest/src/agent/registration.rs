//! The pages that are registered: offered while hosts come and go, rung for, and taken back at the end.

use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::{Duration, Instant};

use entrain_channel::page::{HOST_EXPIRY_NS, HeaderValues, MAGIC0, MAGIC1, Page, VERSION};
use entrain_channel::protocol::{Guest, GuestView};
use entrain_channel::word::{Pulse, Seed};
use entrain_system::monotonic_ns;

use super::Companion;
use crate::doorbell::{self, Ring, Ringing};
use crate::error::{GuestError, Result};
use crate::kernel::{Kernel, Known};
use crate::pages::Pages;
use crate::system::System;

/// How long a host that lives is waited for when the guest wants its pages back.
const RELEASE_PATIENCE: Duration = Duration::from_secs(3);
/// How often a page that nobody has accepted rings.
const RING_PERIOD: Duration = Duration::from_secs(1);

/// A set of pages that this process answers for: at its end they have been taken back from every host.
pub(super) struct Registration {
    pub(super) pages: Pages,
    slots: Vec<Slot>,
    bell: Option<Ring>,
    rung: Option<Instant>,
    ringing: Option<Ringing>,
}

/// One page's pairing.
pub(super) struct Slot {
    guest: Guest,
    header: HeaderValues,
    /// The host's heartbeat while it is paired.
    pulse: Option<Pulse>,
}

/// How the pairing of all pages stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Standing {
    /// Pages that a host publishes in.
    pub(super) paired: usize,
    /// Pages that wait for one.
    pub(super) offered: usize,
}

impl Registration {
    /// Of pages that nobody has offered yet.
    pub(super) fn new(pages: Pages, slots: Vec<Slot>) -> Self {
        Self { pages, slots, bell: None, rung: None, ringing: None }
    }

    /// Of pages that an agent left behind, as far as their link words tell.
    pub(super) fn recover(pages: Pages) -> Self {
        let slots = pages.iter().map(|page| Slot {
            guest: Guest::recover(page, 0),
            header: HeaderValues::default(),
            pulse: Some(Pulse::start(page.host_slow.heartbeat.load(Relaxed), monotonic_ns())),
        });
        let slots = slots.collect();
        Self::new(pages, slots)
    }

    /// Shows that the agent lives, and sees to every page: offers what is its own, takes back what a silent host holds.
    pub(super) fn beat(&mut self, now: u64) -> Result<Standing> {
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
    pub(super) fn ring(&mut self, standing: Standing) {
        self.heard();
        let rings = self.ringing.is_some() || self.rung.is_some_and(|rung| rung.elapsed() < RING_PERIOD);
        if standing.offered == 0 || rings {
            return;
        }
        let offers: Vec<(u32, &Page)> = (0..self.slots.len())
            .filter(|&vcpu| self.slots[vcpu].guest.look(self.pages.page(vcpu)) == GuestView::Offered)
            .map(|vcpu| (vcpu as u32, self.pages.page(vcpu)))
            .collect();
        self.rung = Some(Instant::now());
        self.ringing = doorbell::ring(&offers);
        if self.ringing.is_none() {
            self.tell(Ring::NoBell);
        }
    }

    /// What became of the bell that was rung last, once that is known.
    fn heard(&mut self) {
        if let Some(ring) = self.ringing.as_ref().and_then(Ringing::outcome) {
            self.ringing = None;
            self.tell(ring);
        }
    }

    /// Says what became of the bell, where that is news.
    fn tell(&mut self, ring: Ring) {
        if self.bell.replace(ring) == Some(ring) {
            return;
        }
        match ring {
            Ring::Rung(vcpus) => tracing::info!("rang the doorbell on {vcpus} vCPUs"),
            Ring::NoBell => tracing::info!("no doorbell here; the host finds the pages by their magic"),
            Ring::Refused => tracing::warn!("the hypervisor refuses the doorbell; the host must look for the pages"),
            Ring::Stuck => {
                tracing::warn!(
                    "a real-time task keeps a vCPU, where the doorbell does not ring; the host looks for the pages"
                )
            }
        }
    }

    /// Takes every page back, scrubs and frees them. Waits for hosts that live, for at most [`RELEASE_PATIENCE`].
    pub(super) fn end(mut self, companion: &mut dyn Companion) -> Result<()> {
        let deadline = Instant::now() + RELEASE_PATIENCE;
        let mut forced = 0;
        loop {
            let mut waiting = false;
            for (vcpu, slot) in self.slots.iter_mut().enumerate() {
                let page = self.pages.page(vcpu);
                match slot.guest.take_back(page) {
                    GuestView::Own => {}
                    GuestView::Releasing if slot.host_lives(page, monotonic_ns()) && Instant::now() < deadline => {
                        waiting = true
                    }
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
pub(super) fn slots(system: &System, pages: &Pages, features: u64) -> Result<Vec<Slot>> {
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

fn random() -> Result<u64> {
    let mut bytes = [0; 8];
    // Up to 256 bytes come whole or not at all.
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(GuestError::system("no random numbers"))?;
    Ok(u64::from_ne_bytes(bytes))
}
