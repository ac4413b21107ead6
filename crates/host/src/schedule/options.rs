//! What the scheduler is started with.

use std::os::fd::OwnedFd;

use entrain_system::Root;

/// Whether CPUs are asked for performance levels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Perf {
    /// Where somebody listens (cpufreq with governor schedutil), or where CPUs differ in capacity
    #[default]
    Auto,
    /// Always
    On,
    /// Never
    Off,
}

/// What is needed to start.
#[derive(Debug)]
pub struct Options {
    /// Tunables to change, by name.
    pub tune: Vec<(String, String)>,
    /// The host.
    pub root: Root,
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
        Self { tune: Vec::new(), root: Root::live(), share: Vec::new(), spins: false, perf, capacities }
    }
}
