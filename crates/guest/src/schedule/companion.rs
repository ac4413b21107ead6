//! The scheduler as the agent's companion: `entrain guest --mode schedule`.

use std::fs;
use std::mem::MaybeUninit;
use std::path::PathBuf;

use entrain_channel::page::feature;
use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::Func;

use super::{Options, Scheduler};
use crate::agent::Companion;
use crate::error::{GuestError, Result};
use crate::pages::Pages;
use crate::system::System;

/// Loads anew at most so often in a row, each within one beat of the last: more is not hotplug but a fault.
const RELOADS: u32 = 20;

/// Runs the scheduler beside the registration, loads it anew when CPUs come or go, and shows its counters in a file.
pub struct Schedule {
    system: System,
    vcpud: bool,
    scheduler: Option<Scheduler<'static>>,
    reloads: u32,
    show: PathBuf,
}

impl Schedule {
    /// For this machine; `vcpud` = whether vCPUs are parked for which the host has no CPU.
    ///
    /// # Errors
    /// When the kernel has no sched_ext.
    pub fn new(system: &System, vcpud: bool) -> Result<Schedule> {
        if !system.has_sched_ext() {
            return Err(GuestError::NoSchedExt);
        }
        let show = system.run_folder()?.join("schedule.json");
        Ok(Schedule { system: system.clone(), vcpud, scheduler: None, reloads: 0, show })
    }

    fn load(&mut self, pages: &Pages) -> Result<()> {
        let options = Options { nr_vcpus: pages.count() as u32, online: self.system.online_cpus()?, vcpud: self.vcpud };
        // The programs of one load stay until the process ends: loads are counted by hotplug events, not by time.
        let object = Box::leak(Box::new(MaybeUninit::uninit()));
        let loaded = Scheduler::load(object, pages.fd(), &options);
        self.scheduler = Some(loaded.map_err(|error| if is_old() { GuestError::OldSchedExt } else { error })?);
        tracing::info!("scheduling {} vCPUs, {} of them online", options.nr_vcpus, options.online.len());
        Ok(())
    }

    fn show(&self, scheduler: &Scheduler<'_>) {
        let text = serde_json::to_string(&scheduler.stats()).unwrap_or_default();
        // Only for onlookers: whoever runs the agent is not told if they can't see it.
        let next = self.show.with_extension("next");
        if fs::write(&next, text).and_then(|()| fs::rename(&next, &self.show)).is_err() {
            tracing::debug!("{} could not be written", self.show.display());
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
        self.load(pages)
    }

    fn beat(&mut self, pages: &Pages) -> Result<bool> {
        let Some(scheduler) = &self.scheduler else { return Ok(true) };
        self.show(scheduler);
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
        self.load(pages)?;
        Ok(false)
    }

    fn stop(&mut self) {
        if let Some(scheduler) = self.scheduler.take() {
            let stats = scheduler.stats();
            drop(scheduler);
            tracing::info!("all tasks are back on the kernel's own scheduler; {}", stats.summary());
        }
        let _ = fs::remove_file(&self.show);
    }
}
