//! The scheduler as the agent's companion: `entrain guest --mode schedule`.

use std::mem::MaybeUninit;
use std::path::PathBuf;

use entrain_channel::page::feature;
use entrain_system::{Root, monotonic_ns};
use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::Func;

use super::standby::{self, Look, Standby};
use super::{Options, Scheduler, shown};
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
    /// `None`: it never stands by.
    standby: Option<Standby>,
    meter: Meter,
    reloads: u32,
    run_folder: PathBuf,
}

impl Schedule {
    /// For this machine; `vcpud` = whether vCPUs are parked for which the host has no CPU, `always` = whether it works also
    /// while the host has a CPU for every vCPU.
    ///
    /// # Errors
    /// When the kernel has no sched_ext.
    pub fn new(system: &System, vcpud: bool, always: bool) -> Result<Schedule> {
        if !system.has_sched_ext() {
            return Err(GuestError::NoSchedExt);
        }
        let run_folder = system.run_folder()?;
        let standby = (!always).then(|| Standby::new(monotonic_ns()));
        Ok(Schedule {
            system: system.clone(),
            vcpud,
            scheduler: None,
            online: Vec::new(),
            standby,
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
        let options = Options { nr_vcpus: pages.count() as u32, online: online.clone(), vcpud: self.vcpud };
        // The programs of one load stay until the process ends: loads are counted by hotplug events, not by time.
        let object = Box::leak(Box::new(MaybeUninit::uninit()));
        let loaded = Scheduler::load(object, pages.fd(), &options);
        self.scheduler = Some(loaded.map_err(|error| if is_old() { GuestError::OldSchedExt } else { error })?);
        self.online = online;
        tracing::info!("scheduling {} vCPUs, {} of them online", options.nr_vcpus, options.online.len());
        Ok(())
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
        self.attach(pages)
    }

    fn looks(&self) -> u32 {
        if self.standby.is_some() { LOOKS } else { 1 }
    }

    fn look(&mut self, pages: &Pages) -> Result<()> {
        let (Some(standby), Some(scheduler)) = (&mut self.standby, &mut self.scheduler) else { return Ok(()) };
        let spent = self.meter.read(&Root::live())?;
        let (attached, stats) = (scheduler.is_attached(), scheduler.stats());
        let wanted = standby.decide(&Look {
            attached,
            now: monotonic_ns(),
            ran: spent.ran,
            stolen: spent.stolen,
            paced: standby::is_paced(pages),
            crowded: attached && stats.counters.keep < stats.counters.runnable.min(self.online.len() as u64),
        });
        if attached && !wanted && scheduler.exit().is_none() {
            scheduler.detach();
            standby::fall_silent(pages);
            tracing::info!("the host has a CPU for every vCPU: the kernel's own scheduler works, this one stands by");
        } else if !attached && wanted {
            let wanted_ms = (spent.ran + spent.stolen) / MS;
            tracing::info!("scheduling again; of late the host withheld {} of {wanted_ms} ms", spent.stolen / MS);
            if let Err(error) = self.attach(pages) {
                tracing::warn!("{error:#}; standing by");
                if let Some(standby) = &mut self.standby {
                    standby.refused(monotonic_ns());
                }
            }
        }
        Ok(())
    }

    fn beat(&mut self, pages: &Pages) -> Result<bool> {
        let Some(scheduler) = &self.scheduler else { return Ok(true) };
        shown::write(&self.run_folder, &scheduler.stats());
        let Some(exit) = scheduler.exit() else {
            self.reloads = 0;
            return Ok(false);
        };
        self.scheduler = None;
        self.reloads += 1;
        if !exit.restart || self.reloads > RELOADS {
            return Err(GuestError::SchedulerLeft(exit.reason));
        }
        tracing::info!("the kernel unloaded the scheduler ({}); loading it anew", exit.reason);
        self.attach(pages)?;
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
