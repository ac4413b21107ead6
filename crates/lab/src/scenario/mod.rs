//! Measurements that a command's output can't give: written in Rust, named by experiment files.
//!
//! One file each. A scenario drives the machine as it likes, and leaves it as it found it: guests that it ended are
//! started again, what it loaded is unloaded.

mod beside;
mod boots;
mod channel;
mod crowd;
mod drain;
mod failures;
mod frequency;
mod hotplug;
mod interface;
mod isolated;
mod lifecycle;
mod log;
mod memcheck;
mod migration;
mod patience;
mod placement;
mod product;
mod quiet;
mod restarts;
mod rt_guest;
mod status;
mod steps;
mod trace;
mod watched;
mod weights;
mod yields;

pub use self::interface::{Context, Scenario};

/// All scenarios.
static SCENARIOS: &[&dyn Scenario] = &[
    &boots::Boots,
    &channel::Channel,
    &crowd::Crowd,
    &drain::Drain,
    &drain::Drained,
    &frequency::Frequency,
    &hotplug::Hotplug,
    &lifecycle::Lifecycle,
    &migration::Migration,
    &patience::Patience,
    &placement::Placement,
    &quiet::Attribution,
    &quiet::Quiet,
    &restarts::Restarts,
    &rt_guest::RtGuest,
    &rt_guest::RtHost,
    &steps::Steps,
    &watched::Watched,
    &yields::Yields,
];

/// The scenario of that name.
pub fn find(name: &str) -> Option<&'static dyn Scenario> {
    SCENARIOS.iter().copied().find(|one| one.name() == name)
}

/// All names.
pub fn names() -> Vec<&'static str> {
    SCENARIOS.iter().map(|one| one.name()).collect()
}
