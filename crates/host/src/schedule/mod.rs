//! `entrain host --mode schedule`: a sched_ext scheduler for the host.
//!
//! The decisions are in `crates/policy`, the scheduler in `bpf/sched.bpf.c`; here it is checked, loaded, watched and
//! unloaded. It lives as long as [`Scheduler`] does: when the daemon dies, however it dies, the kernel takes its tasks
//! back, since nothing but the daemon's file descriptor holds the scheduler.

mod classes;
pub(crate) mod companion;
pub mod complexity;
mod guard;
mod interface;
mod perf;
mod topology;
mod tunables;

use std::collections::BTreeMap;
use std::fs::File;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::PathBuf;

use entrain_bpf::Features;
use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::{Link, MapCore, MapFlags, OpenObject};

pub use complexity::Complexity;
pub use interface::Stats;
pub use perf::Perf;
pub use topology::Topology;
pub use tunables::NAMES as TUNABLES;

use crate::figures::{Account, LevelStatus};
use interface::Public;

#[allow(missing_docs, clippy::all, unreachable_pub, clippy::undocumented_unsafe_blocks)]
mod bpf {
    include!(concat!(env!("OUT_DIR"), "/sched.skel.rs"));
}

/// Why the scheduler did not start, or could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum ScheduleError {
    /// No sched_ext.
    #[error("this kernel has no sched_ext (CONFIG_SCHED_CLASS_EXT): use --mode observe, or a kernel from 7.3 on")]
    NoSchedExt,
    /// A sched_ext without functions that the scheduler calls.
    #[error("this kernel's sched_ext is too old for this scheduler (written for Linux 7.3): use --mode observe")]
    OldSchedExt,
    /// Somebody else's scheduler.
    #[error("another scheduler is loaded ('{name}', {state}): stop it first, or use --mode observe")]
    Loaded {
        /// As it calls itself.
        name: String,
        /// The kernel's word for it.
        state: String,
    },
    /// A bandwidth limit.
    #[error("{} has a limit in cpu.max ({limit}), which this scheduler does not enforce: remove it, or use --mode observe", cgroup.display())]
    CpuMax {
        /// Which cgroup.
        cgroup: PathBuf,
        /// Quota and period, in microseconds.
        limit: String,
    },
    /// A tunable that does not exist, or a value that is none.
    #[error("tunable '{name}': {why}")]
    Tunable {
        /// As given.
        name: String,
        /// What is wrong.
        why: String,
    },
    /// The topology could not be read.
    #[error("can't read which CPUs there are: {0}")]
    Topology(#[from] std::io::Error),
    /// It was loaded, and ended by itself.
    #[error("the scheduler ended (kind {}): {}", .0.kind, .0.why)]
    Ended(Ended),
    /// The kernel refused the programs.
    #[error("the kernel refused the scheduler while {doing}: {error}")]
    Kernel {
        /// At which step.
        doing: &'static str,
        /// As libbpf says it.
        error: libbpf_rs::Error,
    },
}

fn kernel(doing: &'static str) -> impl FnOnce(libbpf_rs::Error) -> ScheduleError {
    move |error| ScheduleError::Kernel { doing, error }
}

/// How the scheduler ended by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// The kernel's kind: 64 and above is an orderly exit, 1024 and above an error.
    pub kind: i32,
    /// The reason and the message, as the kernel and the scheduler put it.
    pub why: String,
}

/// What is needed to start.
#[derive(Debug)]
pub struct Options {
    /// Tunables to change, by name.
    pub tune: Vec<(String, String)>,
    /// `/sys`.
    pub sys: PathBuf,
    /// Maps of the channel that the observing programs keep current, by name; without them the scheduler knows only what
    /// KVM saw of its guests.
    pub share: Vec<(&'static str, OwnedFd)>,
    /// Whether the kernel tells of vCPUs that spin (`Features::kvm_wfx`).
    pub spins: bool,
    /// Whether CPUs are asked for performance.
    pub perf: Perf,
    /// Capacity of each CPU (0..=1024) instead of the kernel's, for emulated ones; empty = the kernel's.
    pub capacities: Vec<u32>,
}

impl Default for Options {
    fn default() -> Self {
        let (perf, capacities) = (Perf::Auto, Vec::new());
        Self { tune: Vec::new(), sys: "/sys".into(), share: Vec::new(), spins: false, perf, capacities }
    }
}

/// The loaded scheduler. Dropping it gives all tasks back to the kernel's own.
pub struct Scheduler {
    /// Fields are dropped in order: the links first, the scheduler's own before all.
    #[allow(dead_code)]
    links: Vec<Link>,
    skel: bpf::SchedSkel<'static>,
    /// What the map of classes holds, by the VMM's process.
    classes: BTreeMap<i32, classes::SchedClass>,
    /// How many CPUs are asked for performance: all or none.
    levels: u32,
}

// SAFETY: the skeleton holds pointers to libbpf's objects, which no other thread knows; libbpf has no thread-local
// state behind them.
unsafe impl Send for Scheduler {}

impl Scheduler {
    /// Checks, loads and starts. From then on all of the host's ordinary tasks are under this scheduler.
    pub fn start(options: &Options) -> Result<Scheduler, ScheduleError> {
        guard::check_free(&options.sys)?;
        if !Features::probe().schedules_host {
            return Err(ScheduleError::OldSchedExt);
        }
        guard::check_cpu_max(&options.sys.join("fs/cgroup"))?;
        let topology = Topology::read(&options.sys)?;
        // The skeleton borrows it. A pointer's worth of memory per start, never given back: the alternative is a
        // structure that borrows from itself.
        let storage: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
        let plan = perf::Plan::make(options, &topology);
        let levels = if plan.ask { topology.cpus } else { 0 };
        let mut scheduler = Scheduler {
            links: Vec::new(),
            skel: load(storage, options, &topology, &plan)?,
            levels,
            classes: BTreeMap::new(),
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
        Ok(scheduler)
    }

    /// Tells what the classes of the VMs that run say to it, by the VMM's process. Only changes are written; vCPUs go by
    /// them from their next decision on.
    pub(crate) fn set_classes(&mut self, vms: &[(i32, crate::classes::Schedule)]) -> Result<(), ScheduleError> {
        let now: BTreeMap<i32, classes::SchedClass> = vms
            .iter()
            .filter(|(_, said)| *said != Default::default())
            .map(|(pid, said)| (*pid, (*said).into()))
            .collect();
        let changes = classes::changes(&self.classes, &now);
        for (pid, class) in &changes {
            let key = pid.to_ne_bytes();
            let map = &self.skel.maps.sched_classes;
            let done = match class {
                Some(class) => map.update(&key, &class.bytes(), MapFlags::ANY),
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

    /// The whole host's counters since the start.
    pub fn total(&self) -> Stats {
        let mut sum = Stats::default();
        let per_cpu = self.skel.maps.sched_total.lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY);
        for value in per_cpu.ok().flatten().unwrap_or_default() {
            if let Some(stats) = Stats::from_bytes(&value) {
                sum.add(&stats);
            }
        }
        sum
    }

    /// One vCPU's account, by its thread; `None` when that has ended.
    pub(crate) fn account(&self, tid: i32) -> Option<Account> {
        let pidfd = thread_fd(tid)?;
        let value = self.skel.maps.sched_tasks.lookup(&pidfd.as_raw_fd().to_ne_bytes(), MapFlags::ANY).ok()??;
        let public = Public::from_bytes(&value)?;
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
        complexity(self.skel.object())
    }
}

/// The verifier's work for the scheduler's programs, loaded for this and not started.
pub(crate) fn measure(features: &Features) -> Result<Vec<Complexity>, ScheduleError> {
    let options = Options { spins: features.kvm_wfx, ..Options::default() };
    let storage: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
    let topology = Topology::read(&options.sys)?;
    let plan = perf::Plan::make(&options, &topology);
    let skel = load(storage, &options, &topology, &plan)?;
    Ok(complexity(skel.object()))
}

fn load(
    storage: &'static mut MaybeUninit<OpenObject>,
    options: &Options,
    topology: &Topology,
    plan: &perf::Plan,
) -> Result<bpf::SchedSkel<'static>, ScheduleError> {
    let mut open = bpf::SchedSkelBuilder::default().open(storage).map_err(kernel("opening its object"))?;
    let rodata = open.maps.rodata_data.as_deref_mut().expect("the object has tunables");
    rodata.nr_cpus = topology.cpus;
    rodata.nr_llcs = topology.llcs;
    plan.describe(rodata);
    for (name, value) in &options.tune {
        tunables::set(rodata, name, value)?;
    }
    open.progs.host_wfx.set_autoload(options.spins);
    for (name, fd) in &options.share {
        for mut map in open.open_object_mut().maps_mut() {
            if map.name() == *name {
                map.reuse_fd(fd.as_fd()).map_err(kernel("sharing the channel's maps"))?;
            }
        }
    }
    if plan.place {
        // A task that leaves for a bigger CPU may be the last on its own.
        open.struct_ops.entrain_ops_mut().flags |= perf::OPS_ENQ_LAST;
    }
    let skel = open.load().map_err(kernel("loading its programs"))?;
    plan.write(&skel.maps.sched_perf_cpus).map_err(kernel("describing its CPUs"))?;
    for (cpu, llc) in topology.llc_of.iter().enumerate() {
        let key = (cpu as u32).to_ne_bytes();
        let mut value = skel
            .maps
            .sched_cpus
            .lookup(&key, MapFlags::ANY)
            .map_err(kernel("describing its CPUs"))?
            .unwrap_or_default();
        let at = std::mem::offset_of!(bpf::types::cpu_ctx, llc);
        value[at..at + 4].copy_from_slice(&llc.to_ne_bytes());
        skel.maps.sched_cpus.update(&key, &value, MapFlags::ANY).map_err(kernel("describing its CPUs"))?;
    }
    Ok(skel)
}

/// How many instructions the verifier processed for each loaded program of an object.
pub(crate) fn complexity(object: &libbpf_rs::Object) -> Vec<Complexity> {
    let one = |(program, info): (String, libbpf_sys::bpf_prog_info)| Complexity {
        program,
        instructions: info.verified_insns,
    };
    crate::figures::infos(object).map(one).collect()
}

/// A file descriptor for one thread: a vCPU's is not its group's leader.
fn thread_fd(tid: i32) -> Option<OwnedFd> {
    // SAFETY: takes and returns plain numbers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, tid, libc::O_EXCL) };
    // SAFETY: a descriptor that the kernel has just given to us alone.
    (fd >= 0).then(|| unsafe { OwnedFd::from(File::from_raw_fd(fd as i32)) })
}

fn text(bytes: &[i8]) -> String {
    let bytes: Vec<u8> = bytes.iter().take_while(|byte| **byte != 0).map(|byte| *byte as u8).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}
