//! The scheduler as the agent's companion: `entrain guest --mode schedule`.

use std::mem::MaybeUninit;
use std::path::PathBuf;

use entrain_channel::page::{GUEST_BEAT_NS, feature};
use entrain_system::{Root, Topology, monotonic_ns};
use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::Func;

use super::standby::{self, Doing, Look, Pace, Standby};
use super::{MAX_CPUS, Options, Scheduler, shown};
use crate::agent::Companion;
use crate::error::{GuestError, Result};
use crate::pages::Pages;
use crate::system::System;
use crate::vcpud::readings::Meter;

/// Loads anew at most so often in a row, each within one beat of the last: more is not hotplug but a fault.
const RELOADS: u32 = 20;

/// Nanoseconds in a millisecond.
const MS: u64 = 1_000_000;
/// Looks in a beat at whether the scheduler is worth having: every 100 ms.
const LOOKS: u32 = 5;

/// Runs the scheduler beside the registration, loads it anew when CPUs come or go, has it stand by while it could gain
/// nothing, and shows its counters in a file.
pub struct Schedule {
    system: System,
    vcpud: bool,
    scheduler: Option<Scheduler<'static>>,
    /// CPUs that it was loaded for.
    online: Vec<u32>,
    standby: Standby,
    pace: Pace,
    meter: Meter,
    reloads: u32,
    run_folder: PathBuf,
}

impl Schedule {
    /// For this machine; `vcpud` = whether vCPUs are parked for which the host has no CPU, `calm` = seconds without
    /// anything to gain after which it stands by, `None` = it never does.
    ///
    /// # Errors
    /// When the kernel has no sched_ext, or more CPUs are possible than the scheduler serves.
    pub fn new(system: &System, vcpud: bool, calm: Option<u32>) -> Result<Schedule> {
        if !system.has_sched_ext() {
            return Err(GuestError::NoSchedExt);
        }
        let possible = system.possible_cpus()?.iter().max().map_or(1, |max| *max as usize + 1);
        if possible > MAX_CPUS {
            return Err(GuestError::TooManyCpus { possible, most: MAX_CPUS });
        }
        let run_folder = system.run_folder()?;
        let standby = Standby::new(monotonic_ns(), calm);
        Ok(Schedule {
            system: system.clone(),
            vcpud,
            scheduler: None,
            online: Vec::new(),
            standby,
            pace: Pace::default(),
            meter: Meter::default(),
            reloads: 0,
            run_folder,
        })
    }

    /// Puts all tasks on the scheduler; loads it before where that is not done, or was for other CPUs.
    fn attach(&mut self, pages: &Pages) -> Result<()> {
        let online = self.system.online_cpus()?;
        if self.scheduler.is_none() || online != self.online {
            self.load(pages, online)?;
        }
        let Some(scheduler) = &mut self.scheduler else { return Ok(()) };
        scheduler.attach()
    }

    fn load(&mut self, pages: &Pages, online: Vec<u32>) -> Result<()> {
        let topology = Topology::read(&Root::live())?;
        let options = Options { llc_of: topology.groups(|cpu| &cpu.llc), online, vcpud: self.vcpud };
        // The programs of one load stay until the process ends: loads are counted by hotplug events, not by time.
        let object = Box::leak(Box::new(MaybeUninit::uninit()));
        let loaded = Scheduler::load(object, pages.fd(), &options);
        self.scheduler = Some(loaded.map_err(|error| if is_old() { GuestError::OldSchedExt } else { error })?);
        tracing::info!("scheduling {} vCPUs, {} of them online", options.llc_of.len(), options.online.len());
        self.online = options.online;
        Ok(())
    }

    /// The scheduler works no more, or could not begin to: the kernel's own does, and this one tries again later.
    fn stand_by(&mut self, pages: &Pages, why: impl std::fmt::Display) {
        tracing::warn!("{why}; the kernel's own scheduler works, this one tries again in {} s", standby::RETRY_S);
        self.standby.refused(monotonic_ns());
        standby::fall_silent(pages);
    }

    fn attach_or_stand_by(&mut self, pages: &Pages) {
        if let Err(error) = self.attach(pages) {
            self.stand_by(pages, error);
        }
    }
}

/// Whether the kernel's sched_ext lacks what the scheduler calls. Asked when it did not load: reading BTF takes megabytes.
fn is_old() -> bool {
    let lacks = |btf: &Btf<'_>, name| btf.type_by_name::<Func<'_>>(name).is_none();
    Btf::from_vmlinux()
        .is_ok_and(|btf| ["scx_bpf_dsq_peek", "scx_bpf_task_set_slice"].iter().any(|name| lacks(&btf, name)))
}

impl Companion for Schedule {
    fn features(&self) -> u64 {
        feature::GUEST_WORDS
    }

    fn start(&mut self, pages: &Pages) -> Result<()> {
        // A kernel that does not load it never will; one that has another scheduler now may not have it for ever.
        self.load(pages, self.system.online_cpus()?)?;
        self.attach_or_stand_by(pages);
        Ok(())
    }

    fn looks(&self) -> u32 {
        LOOKS
    }

    fn look(&mut self, pages: &Pages) -> Result<()> {
        let spent = self.meter.read(&Root::live())?;
        let attached = self.scheduler.as_ref().is_some_and(Scheduler::is_attached);
        let counters = self.scheduler.as_ref().map(|scheduler| scheduler.stats().counters).unwrap_or_default();
        let doing = Doing { tells: attached, works: spent.ran * 2 >= GUEST_BEAT_NS / u64::from(LOOKS) };
        let wanted = self.standby.decide(&Look {
            attached,
            now: monotonic_ns(),
            ran: spent.ran,
            stolen: spent.stolen,
            paced: self.pace.look(pages, doing),
            crowded: attached && counters.keep < counters.runnable.min(self.online.len() as u64),
        });
        if attached && !wanted {
            if let Some(scheduler) = self.scheduler.as_mut().filter(|scheduler| scheduler.exit().is_none()) {
                scheduler.detach();
                standby::fall_silent(pages);
                tracing::info!(
                    "the host has a CPU for every vCPU: the kernel's own scheduler works, this one stands by"
                );
            }
        } else if !attached && wanted {
            let wanted_ms = (spent.ran + spent.stolen) / MS;
            tracing::info!("scheduling again; of late the host withheld {} of {wanted_ms} ms", spent.stolen / MS);
            self.attach_or_stand_by(pages);
        }
        Ok(())
    }

    fn beat(&mut self, pages: &Pages) -> Result<bool> {
        let Some(scheduler) = &self.scheduler else { return Ok(false) };
        shown::write(&self.run_folder, &scheduler.stats());
        let Some(exit) = scheduler.exit() else {
            self.reloads = 0;
            return Ok(false);
        };
        self.scheduler = None;
        self.reloads += 1;
        if !exit.restart || self.reloads > RELOADS {
            self.reloads = 0;
            self.stand_by(pages, format_args!("the kernel took the scheduler down: {}", exit.reason));
            return Ok(false);
        }
        tracing::info!("the kernel unloaded the scheduler ({}); loading it anew", exit.reason);
        self.attach_or_stand_by(pages);
        Ok(false)
    }

    fn stop(&mut self) {
        if let Some(scheduler) = self.scheduler.take() {
            let stats = scheduler.stats();
            drop(scheduler);
            tracing::info!("all tasks are on the kernel's own scheduler; {}", stats.summary());
        }
        shown::clear(&self.run_folder);
    }
}
