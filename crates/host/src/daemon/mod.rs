//! `entrain host`: the daemon's life from its start to its end.

mod events;
mod heartbeat;
mod instance;
mod main_loop;
mod timers;

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use entrain_bpf::Features;
use entrain_system::Root;
use sd_notify::NotifyState;
use tracing::info;

use crate::classes::Classes;
use crate::classes::apply::{Weights, clean_up};
use crate::error::{HostError, system};
use crate::finder::Finder;
use crate::fleet::{Fleet, Remembered, Search};
use crate::mode::Mode;
use crate::pcpus::Pcpus;
use crate::programs::Programs;
use crate::seccomp::{Part, confine_or_say};
use crate::status::{Asker, serve};
use crate::{cgroup_namespace, cpus, metrics, privilege, uclamp};
use events::{Events, Signals};
use heartbeat::Heart;
use instance::{lock, tell_service_manager};
use main_loop::{MainLoop, Parts};

/// How the daemon is to run.
#[derive(Debug)]
pub struct Options {
    /// Look through guests' memory where no doorbell tells of an agent.
    pub search: bool,
    /// For the lock and the status socket.
    pub run_dir: PathBuf,
    /// Take part in the self-test of the channel.
    pub selftest: bool,
    /// Where to serve metrics.
    pub metrics: Option<SocketAddr>,
    /// The classes of VMs, by their file.
    pub classes: Option<Classes>,
    /// Capacity of each pCPU (0..=1024) instead of the kernel's, for emulated ones; empty = the kernel's.
    pub capacities: Vec<u32>,
}

/// Puts back what a daemon has left that was killed: weights of cgroups, utilisation clamps. Refused while one runs.
pub(crate) fn restore(run_dir: &Path) -> Result<usize, HostError> {
    let _lock = lock(run_dir)?;
    Ok(put_back(run_dir))
}

fn put_back(run_dir: &Path) -> usize {
    uclamp::clean_up(run_dir) + clean_up(run_dir)
}

/// Each paired vCPU takes a file descriptor, for its thread, and the usual soft limit is 1,024.
fn allow_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }) {
        tracing::warn!("the limit of file descriptors stays {:?}: {error}", limit.current);
    }
}

/// Runs until a signal ends it. `mode` is made once the programs are loaded.
pub(crate) fn run(
    options: Options,
    extra_features: u64,
    mode: impl FnOnce(&Programs) -> Result<Box<dyn Mode>, HostError>,
) -> Result<(), HostError> {
    let features = Features::probe();
    let missing = features.missing_for_observe();
    if !missing.is_empty() {
        return Err(HostError::Missing(missing));
    }
    allow_descriptors();
    // Before any thread is started: they inherit it.
    cgroup_namespace::enter(&Root::live());
    let _lock = lock(&options.run_dir)?;
    put_back(&options.run_dir);
    entrain_bpf::quiet();

    let signals = Signals::catch()?;
    let cpus = cpus::read(&Root::live()).len();
    let finder = Finder::load()?;
    let mut programs = Programs::load(&features, cpus as u32, extra_features)?;
    let events = Events::new(signals, programs.events()?)?;
    let mode = mode(&programs)?;
    let asker = || events.questions().map(Asker::new);
    let metrics = match options.metrics {
        Some(address) => Some(metrics::part::start(address, asker()?).map_err(system("cannot serve metrics there"))?),
        None => None,
    };
    let socket = options.run_dir.join("host.sock");
    serve(&socket, asker()?).map_err(|source| HostError::File { path: socket.clone(), source })?;

    let pcpus = Pcpus { counted: features.freq_scale, capacities: options.capacities.clone() };
    pcpus.tell(&programs);
    programs.attach()?;
    // All is loaded and attached: from here on file descriptors are enough.
    let left = privilege::drop_after_loading(mode.needs()).map_err(system("cannot give up capabilities"))?;
    info!("kept of all capabilities: {left:?}");
    let search = Search { never: !options.search, bell: features.kvm_hypercall };
    let fleet = Fleet::new(programs, Root::live(), search, Remembered::open(&options.run_dir));
    let ticker = fleet.programs.ticker();
    let heart = Heart::start(move |entries| ticker.tick(entries), events.waker()?)?;
    let weights = Weights::recorded_in(&options.run_dir);
    let selftest = options.selftest;
    let classes = options.classes;
    let unpaired = features.missing_for_pairing();
    let parts = Parts { unpaired, fleet, heart, finder, mode, events, pcpus, classes, weights, selftest, metrics };
    let mut main_loop = MainLoop::new(parts);
    // Last: whatever else runs has its own filter, or needs more.
    confine_or_say(Part::Main);
    info!("observing {cpus} pCPUs; status in {}", socket.display());
    if let Some(why) = unpaired {
        info!("no guest is paired on this kernel: {why}");
    }
    tell_service_manager(NotifyState::Ready);
    let result = main_loop.run();
    tell_service_manager(NotifyState::Stopping);
    let told = main_loop.end()?;
    let _ = fs::remove_file(&socket);
    info!("ended; gave {told} pages back to their guests");
    result
}
