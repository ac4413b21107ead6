//! `entrain host --mode schedule`: a sched_ext scheduler for the host.
//!
//! The decisions are in `crates/policy`, the scheduler in `bpf/sched.bpf.c`; here it is checked, loaded, watched and
//! unloaded. It lives as long as [`Scheduler`] does: when the daemon dies, however it dies, the kernel takes its tasks
//! back, since nothing but the daemon's file descriptor holds the scheduler.

mod classes;
mod counter;
mod cpus;
mod energy;
pub(crate) mod error;
mod fallback;
mod guard;
mod load;
mod loader;
pub(crate) mod mode;
mod options;
mod perf;
mod topology;
mod tunables;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;

use bytemuck::bytes_of;
use entrain_bpf::Features;
use libbpf_rs::skel::Skel;
use libbpf_rs::{Link, MapCore, MapFlags, OpenObject};

pub use error::{Ended, ScheduleError};
pub(crate) use load::measure;
pub use options::{Options, Perf};
pub use topology::Topology;
pub use tunables::NAMES as TUNABLES;

use crate::complexity::{self, Complexity};
pub use crate::counters::ScheduleStatus;
use crate::counters::{Account, add};
use crate::figures::LevelStatus;
use crate::interface::from_bytes;
use crate::pidfd;
use crate::skeleton::sched;
use crate::skeleton::sched::types::{sched_class, sched_public, sched_stats};
use error::kernel;

/// The loaded scheduler. Dropping it gives all tasks back to the kernel's own.
pub struct Scheduler {
    /// Fields are dropped in order: the links first, the scheduler's own before all.
    #[allow(dead_code)]
    links: Vec<Link>,
    skel: sched::SchedSkel<'static>,
    /// What the map of classes holds, by the VMM's process.
    classes: BTreeMap<i32, sched_class>,
    /// How many CPUs are asked for performance: all or none.
    levels: u32,
    cpus: cpus::Cpus,
    /// Heartbeats for which what only readers want goes on being counted.
    readers: Cell<u32>,
}

/// A minute of heartbeats (100 ms), longer than the usual time between two reads of the metrics.
const READ_LATELY: u32 = 600;

// SAFETY: the skeleton holds pointers to libbpf's objects, which no other thread knows; libbpf has no thread-local
// state behind them.
unsafe impl Send for Scheduler {}

impl Scheduler {
    /// Checks, loads and starts. From then on all of the host's ordinary tasks are under this scheduler.
    pub fn start(options: &Options) -> Result<Scheduler, ScheduleError> {
        guard::check_free(&options.root)?;
        let features = Features::probe();
        if !features.schedules_host {
            return Err(ScheduleError::OldSchedExt);
        }
        let topology = Topology::read(&options.root)?;
        // The skeleton borrows it. A pointer's worth of memory per start, never given back: the alternative is a
        // structure that borrows from itself.
        let storage: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
        let plan = perf::Plan::make(options, &topology);
        let levels = if plan.ask { topology.cpus } else { 0 };
        let mut scheduler = Scheduler {
            links: Vec::new(),
            skel: load::load(storage, &features, options, &topology, &plan)?,
            levels,
            classes: BTreeMap::new(),
            cpus: cpus::Cpus::new(topology, &options.root, &options.capacities),
            readers: Cell::new(0),
        };
        match scheduler.skel.maps.entrain_ops.attach_struct_ops() {
            Ok(link) => scheduler.links.push(link),
            Err(error) => {
                // The scheduler's own reason says more than the error of the system call.
                let error = match scheduler.ended() {
                    Some(ended) => libbpf_rs::Error::from(std::io::Error::other(ended.why)),
                    None => error,
                };
                return Err(ScheduleError::Kernel { doing: "starting it", error });
            }
        }
        if options.spins {
            let link = scheduler.skel.progs.host_wfx.attach().map_err(kernel("watching vCPUs that spin"))?;
            scheduler.links.push(link);
        }
        if features.kvm_timer {
            let link = scheduler.skel.progs.host_timer.attach().map_err(kernel("watching the timers of vCPUs"))?;
            scheduler.links.push(link);
        }
        Ok(scheduler)
    }

    /// Tells what the classes of the VMs that run say to it, by the VMM's process. Only changes are written; vCPUs go by
    /// them from their next decision on.
    pub(crate) fn set_classes(&mut self, vms: &[(i32, crate::classes::Schedule)]) -> Result<(), ScheduleError> {
        let now: BTreeMap<i32, sched_class> = vms
            .iter()
            .filter(|(_, said)| *said != Default::default())
            .map(|(pid, said)| (*pid, classes::told(*said)))
            .collect();
        let changes = classes::changes(&self.classes, &now);
        for (pid, class) in &changes {
            let key = pid.to_ne_bytes();
            let map = &self.skel.maps.sched_classes;
            let done = match class {
                Some(class) => map.update(&key, bytes_of(class), MapFlags::ANY),
                None => map.delete(&key),
            };
            done.map_err(kernel("telling it the classes of VMs"))?;
        }
        if !changes.is_empty()
            && let Some(data) = self.skel.maps.bss_data.as_deref_mut()
        {
            // SAFETY: an aligned word of the mapped data, which BPF only reads.
            unsafe { (&raw mut data.class_epoch).write_volatile(data.class_epoch.wrapping_add(1)) };
        }
        self.classes = now;
        Ok(())
    }

    /// Goes along with CPUs that have come or gone, and with the clock as it is steered.
    pub(crate) fn follow(&mut self) {
        counter::tell(&mut self.skel);
        let left = self.readers.get().saturating_sub(1);
        self.readers.set(left);
        if let Some(data) = self.skel.maps.bss_data.as_deref_mut() {
            // SAFETY: an aligned word of the mapped data, which BPF only reads.
            unsafe { (&raw mut data.count_together).write_volatile(u32::from(left > 0)) };
        }
        let asks = self.asks();
        self.cpus.follow(&mut self.skel, asks);
    }

    /// How it ended, if the kernel has thrown it out (watchdog, an error, SysRq-S) or it has given way.
    pub fn ended(&self) -> Option<Ended> {
        let exit = &self.skel.maps.bss_data.as_deref()?.sched_exit;
        if exit.ended == 0 {
            return None;
        }
        let (reason, message) = (text(&exit.reason), text(&exit.message));
        let why = if message.is_empty() { reason } else { format!("{reason}: {message}") };
        Some(Ended { kind: exit.kind, why })
    }

    /// What it knew when the kernel threw it out, line by line; empty where nothing was dumped.
    pub(crate) fn dump(&self) -> Vec<String> {
        let dump = self.skel.maps.bss_data.as_deref().map(|bss| text(&bss.sched_dump)).unwrap_or_default();
        // Names of tasks can hold anything, and this goes to logs and terminals.
        dump.lines().map(|line| line.chars().filter(|c| !c.is_control()).collect()).collect()
    }

    /// Somebody reads figures: what is counted for readers alone is counted for the next minute.
    pub(crate) fn is_read(&self) {
        self.readers.set(READ_LATELY);
    }

    /// The whole host's counters since the start.
    pub fn total(&self) -> ScheduleStatus {
        let mut sum = sched_stats::default();
        let per_cpu = self.skel.maps.sched_total.lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY);
        for stats in per_cpu.ok().flatten().unwrap_or_default().iter().filter_map(|value| from_bytes(value)) {
            add(&mut sum, &stats);
        }
        sum.into()
    }

    /// One vCPU's account, by its thread; `None` when that has ended.
    pub(crate) fn account(&self, tid: i32) -> Option<Account> {
        let pidfd = pidfd::of_thread(tid).ok()?;
        let value = self.skel.maps.sched_tasks.lookup(&pidfd.as_raw_fd().to_ne_bytes(), MapFlags::ANY).ok()??;
        // The first field of struct task_ctx.
        let public: sched_public = from_bytes(&value)?;
        let queues = self.skel.maps.bss_data.as_deref().map(|bss| &bss.queues);
        let queue = queues.and_then(|queues| queues.get(usize::try_from(public.queue).ok()?.checked_sub(1)?));
        // Clocks go round: their difference as a signed number is right within 292 years.
        let lag_ns = queue.map_or(0, |queue| queue.vtime.wrapping_sub(public.vtime).cast_signed());
        Some(Account { stats: public.stats, lag_ns })
    }

    /// What each CPU is asked to run at; empty where nothing is asked.
    pub fn levels(&self) -> Vec<LevelStatus> {
        (0..self.levels).filter_map(|cpu| perf::level(&self.skel.maps.sched_perf_cpus, cpu)).collect()
    }

    /// Whether CPUs are asked for performance.
    pub(crate) fn asks(&self) -> bool {
        self.levels > 0
    }

    /// The loaded programs, for the kernel's figures of them.
    pub(crate) fn object(&self) -> &libbpf_rs::Object {
        self.skel.object()
    }

    /// The verifier's work for each program.
    pub fn complexity(&self) -> Vec<Complexity> {
        complexity::of(self.skel.object())
    }
}

fn text(bytes: &[i8]) -> String {
    let bytes: Vec<u8> = bytes.iter().take_while(|byte| **byte != 0).map(|byte| *byte as u8).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}
