//! Experiment files: what is booted, what runs in it, in which variants, and what must hold of the figures.
//!
//! A file is data alone; `docs/experiments.md` describes its keys. Names that refer to others are checked when the
//! file is read, so that a misspelt arm is an error with its line and not an experiment that measures nothing.

mod catalogue;
mod common;
mod each;
mod error;
mod extends;
mod read;
#[cfg(test)]
mod resolve_tests;
#[cfg(test)]
mod tests;
mod tree;
mod validate;

pub use error::ExperimentError;
pub use read::{Entry, list, load, parse};

use std::time::Duration;

use entrain_lab_machine::machine::{Arch, Cgroups, MemoryBackend, pace::Pace, topology::Topology};
use serde::Deserialize;
use toml::Spanned;

use crate::metric::Metric;

/// One experiment, as its file declares it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// Short name, as given on the command line.
    pub name: Spanned<String>,
    /// One line for lists and the head of the report.
    pub title: String,
    /// What is asked and how to read the answer; plain text.
    #[serde(default)]
    pub description: String,
    /// Architectures that it can run on; both where nothing is said.
    #[serde(default = "both")]
    pub arch: Vec<Arch>,
    /// Boots of the host machine, samples being paired within each.
    pub boots: Spanned<u32>,
    /// Times that every arm is visited within one boot.
    #[serde(default = "one")]
    pub rounds: Spanned<u32>,
    /// Loads measured in one boot, by architecture, where a boot must be short; all where nothing is said.
    #[serde(default)]
    pub loads_per_boot: PerArch,
    /// Times that the same boot may be lost to faults and repeated before the run gives up; each is reported.
    #[serde(default = "three")]
    pub lost_boots: u32,
    /// What `--quick` makes smaller.
    #[serde(default)]
    pub quick: Quick,
    /// The host machine.
    pub machine: HostMachine,
    /// All guests of a boot; those that a configuration does not name are paused while it is measured.
    #[serde(default, rename = "guest")]
    pub guests: Vec<Guest>,
    /// Sets of guests that run at the same time.
    #[serde(rename = "configuration")]
    pub configurations: Vec<Configuration>,
    /// What runs and is measured.
    #[serde(rename = "load")]
    pub loads: Vec<Load>,
    /// The variants compared; `stock` is what the others are compared with.
    #[serde(rename = "arm")]
    pub arms: Vec<Arm>,
    /// What is counted on the host beside every sample.
    #[serde(default)]
    pub probes: Vec<Spanned<String>>,
    /// Configurations that the summary compares, as "total at 4× as a share of 1×".
    #[serde(default, rename = "comparison")]
    pub comparisons: Vec<Comparison>,
    /// What must hold for exit status 0.
    #[serde(default, rename = "check")]
    pub checks: Vec<Check>,
}

/// `--quick`: fewer boots and shorter windows, within a time.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quick {
    /// Boots instead of the experiment's.
    pub boots: Option<u32>,
    /// Rounds instead of the experiment's.
    pub rounds: Option<u32>,
    /// Length of every load, in seconds, instead of the loads' own.
    pub seconds: Option<f64>,
    /// No further round is begun that would not end within this many seconds of the run's start.
    pub within: Option<f64>,
}

/// A number for each architecture.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PerArch {
    /// On aarch64.
    pub aarch64: Option<u32>,
    /// On x86_64.
    pub x86_64: Option<u32>,
}

/// The host machine's size and kernel.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostMachine {
    /// Its CPUs: the guests' pCPUs.
    pub pcpus: u32,
    /// Sockets, caches, nodes and threads that its CPUs are dealt out to.
    #[serde(default)]
    pub topology: Topology,
    /// Its memory in MiB.
    pub memory_mib: u32,
    /// Whether it boots the PREEMPT_RT flavour.
    #[serde(default)]
    pub rt: bool,
    /// How many times slower than the computer's its time passes while loads are measured: a number, or `auto`.
    #[serde(default)]
    pub dilation: Pace,
    /// Whether its time passes as slowly while arms are set up. By default it then passes as the computer's does, so that
    /// waiting is cheap; an arm whose set-up measures time needs the pace of the loads.
    #[serde(default)]
    pub dilated_setup: bool,
    /// CPUs whose frequency can be scaled, emulated, as `chromebook:big,little`.
    pub frequency: Option<Spanned<String>>,
    /// Whether guests run in it, the experiment's or a scenario's; without any, `--accel kvm` takes a KVM that can't nest.
    #[serde(default = "yes")]
    pub nested: bool,
    /// Whether it has the module of `entrain isolate qpw` (with `rt`).
    #[serde(default)]
    pub qpw: bool,
    /// Kernel modules that lie in its image, in `/usr/lib/entrain/extra`, and are not loaded.
    #[serde(default)]
    pub modules: Vec<String>,
    /// Kernel modules that its guests load as they boot; `NAME.PARAMETER=VALUE` in a guest's `cmdline` is for them.
    #[serde(default)]
    pub guest_modules: Vec<String>,
    /// Where the guests' QEMUs lie among its cgroups.
    #[serde(default)]
    pub cgroups: Cgroups,
    /// Further kernel parameters.
    #[serde(default)]
    pub cmdline: Vec<String>,
    /// Programs of Debian, or peers, wanted in host and guests.
    #[serde(default)]
    pub programs: Vec<Spanned<String>>,
}

/// One guest.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Guest {
    /// Its name within the file.
    pub name: Spanned<String>,
    /// Its CPUs.
    pub vcpus: u32,
    /// Its memory in MiB.
    pub memory_mib: u32,
    /// What its memory is made of.
    #[serde(default)]
    pub memory: MemoryBackend,
    /// Whether it halts without an exit to the host: QEMU's `-overcommit cpu-pm=on`.
    #[serde(default)]
    pub cpu_pm: bool,
    /// Further kernel parameters.
    #[serde(default)]
    pub cmdline: Vec<String>,
}

/// Guests that run at the same time.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Configuration {
    /// Its name, as `4x`.
    pub name: Spanned<String>,
    /// In words, for the report.
    #[serde(default)]
    pub title: String,
    /// Names of its guests.
    #[serde(default)]
    pub guests: Vec<Spanned<String>>,
}

/// One thing to run: a command, or a scenario written in Rust.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Load {
    /// Its name.
    pub name: Spanned<String>,
    /// In words, for the report.
    #[serde(default)]
    pub title: String,
    /// The command and its arguments; `{seconds}`, `{warmup}`, `{vcpus}`, `{guest}` and `{seed}` are replaced.
    pub run: Option<Spanned<Vec<String>>>,
    /// The name of a [`crate::scenario::Scenario`], in place of a command.
    pub scenario: Option<Spanned<String>>,
    /// What the scenario is told.
    #[serde(default)]
    pub params: toml::Table,
    /// Where the command runs: in every guest of the configuration at the same time, or on the host.
    #[serde(default)]
    pub on: Place,
    /// Length of the measured window.
    #[serde(default = "some_seconds")]
    pub seconds: f64,
    /// Length of the window in a quick run, in place of `[quick] seconds`; scenarios, which do a certain work, are only
    /// made shorter by this.
    pub quick_seconds: Option<f64>,
    /// Samples taken one after the other each time that its turn comes: several short ones show what one long one hides.
    #[serde(default = "single")]
    pub samples: u32,
    /// Left out of quick runs.
    #[serde(default)]
    pub full_only: bool,
    /// Time before it that the load runs unmeasured.
    #[serde(default)]
    pub warmup: f64,
    /// Whole time that it may take beyond `seconds` and `warmup` before it counts as hung.
    #[serde(default = "timeout")]
    pub timeout: f64,
    /// Configurations that it runs in; all where nothing is said.
    #[serde(default)]
    pub configurations: Vec<Spanned<String>>,
    /// Arms that it runs in; all where nothing is said.
    #[serde(default)]
    pub arms: Vec<Spanned<String>>,
    /// Figures taken from its output.
    #[serde(default, rename = "metric")]
    pub metrics: Vec<Metric>,
}

/// Where a command runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// In every guest of the configuration.
    #[default]
    Guests,
    /// On the host machine.
    Host,
}

/// One variant: what is set up around the loads, and taken down after them.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Arm {
    /// Its name.
    pub name: Spanned<String>,
    /// In words, for the report.
    #[serde(default)]
    pub title: String,
    /// Architectures that it exists on; both where nothing is said.
    #[serde(default = "both")]
    pub arch: Vec<Arch>,
    /// Configurations that it is measured in; all where nothing is said.
    #[serde(default)]
    pub configurations: Vec<Spanned<String>>,
    /// Left out of quick runs, unless it is asked for by name.
    #[serde(default)]
    pub full_only: bool,
    /// Run only where it is asked for by name: it needs what takes minutes to build.
    #[serde(default)]
    pub on_demand: bool,
    /// Programs wanted in host and guests beside the machine's, where this arm is run.
    #[serde(default)]
    pub programs: Vec<Spanned<String>>,
    /// Parameters for the host machine's kernel that this arm has beside the machine's own. Arms that differ in them are
    /// measured in boots of their own, which are paired with one another.
    #[serde(default)]
    pub cmdline: Vec<String>,
    /// Its set-up in order; undone in the opposite order.
    #[serde(default, rename = "step")]
    pub steps: Vec<Step>,
}

/// One step of an arm's set-up.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// Where it runs.
    pub on: Place,
    /// The command; placeholders as in a load.
    pub run: Spanned<Vec<String>>,
    /// Whether it goes on running while the loads do. It is ended by SIGTERM.
    #[serde(default)]
    pub background: bool,
    /// A background command is ready once its standard output holds a line with this text.
    pub ready_line: Option<Spanned<String>>,
    /// A background command is ready once this command, run beside it, ends with status 0.
    pub ready_run: Option<Spanned<Vec<String>>>,
    /// A command that must still succeed after every sample: a daemon may live on without doing what the arm is about.
    pub holds_run: Option<Spanned<Vec<String>>>,
    /// Seconds within which it must end, or be ready, and end when it is told to.
    #[serde(default = "timeout")]
    pub within: f64,
    /// The command that undoes a one-shot step.
    pub undo: Option<Spanned<Vec<String>>>,
}

/// A pair of configurations that the summary compares.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Comparison {
    /// The configuration asked about.
    pub of: Spanned<String>,
    /// The one that it is compared with.
    pub to: Spanned<String>,
    /// The arm that is compared; `stock` where nothing is said.
    pub arm: Option<Spanned<String>>,
}

/// A condition on the summary.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Check {
    /// What it says, in words.
    pub name: Spanned<String>,
    /// Architectures that it holds on; both where nothing is said.
    #[serde(default = "both")]
    pub arch: Vec<Arch>,
    /// Whether `--quick` leaves it out, its few samples not being able to decide it.
    #[serde(default)]
    pub full_only: bool,
    /// The load it is about.
    pub load: Spanned<String>,
    /// The configuration; may be left out where the experiment has only one.
    pub configuration: Option<Spanned<String>>,
    /// The metric.
    pub metric: String,
    /// The arm.
    pub arm: Spanned<String>,
    /// Which of its statistics.
    #[serde(default)]
    pub of: Statistic,
    /// With `of = "ratio"`: the arm to compare with in place of `stock`.
    pub to: Option<Spanned<String>>,
    /// With `of = "ratio"`: the configuration to compare with in place of the same.
    pub to_configuration: Option<Spanned<String>>,
    /// Least value that passes.
    pub at_least: Option<f64>,
    /// Greatest value that passes.
    pub at_most: Option<f64>,
}

/// A statistic of a series of samples, or of its ratio to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Statistic {
    /// The median.
    #[default]
    Median,
    /// The smallest sample.
    Min,
    /// The greatest sample.
    Max,
    /// The number of samples.
    N,
    /// The median of the paired ratios.
    Ratio,
    /// The lower end of the ratio's 95 % interval.
    RatioLo,
    /// The upper end of the ratio's 95 % interval.
    RatioHi,
}

/// The arm that all others are compared with.
pub const STOCK: &str = "stock";

impl Experiment {
    /// The architecture to run on if the user names none: the lab's own where the experiment allows it.
    pub fn usual_arch(&self) -> Arch {
        let usual = Arch::default();
        if self.arch.contains(&usual) { usual } else { self.arch[0] }
    }

    /// Indices of the guests of a configuration, in the file's order of guests.
    pub fn members(&self, configuration: &Configuration) -> Vec<usize> {
        let named = |guest: &Guest| configuration.guests.iter().any(|name| name.as_ref() == guest.name.as_ref());
        (0..self.guests.len()).filter(|i| named(&self.guests[*i])).collect()
    }

    /// A load's name in samples and summary: with its configuration where there is more than one.
    pub fn label(&self, load: &str, configuration: &str) -> String {
        if self.configurations.len() == 1 { load.to_owned() } else { format!("{load}@{configuration}") }
    }
}

impl Arm {
    /// Whether the arm is measured in a configuration.
    pub fn runs_in(&self, configuration: &str) -> bool {
        holds(&self.configurations, configuration)
    }
}

impl Load {
    /// Whether the load is measured in a configuration under an arm.
    pub fn runs_in(&self, configuration: &str, arm: &str) -> bool {
        holds(&self.configurations, configuration) && holds(&self.arms, arm)
    }

    /// Time after which the load counts as hung where its window is `seconds` long.
    pub fn deadline(&self, seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds + self.warmup + self.timeout)
    }
}

/// Whether `name` is in a list in which nothing means everything.
fn holds(list: &[Spanned<String>], name: &str) -> bool {
    list.is_empty() || list.iter().any(|one| one.as_ref() == name)
}

fn yes() -> bool {
    true
}

fn both() -> Vec<Arch> {
    vec![Arch::Aarch64, Arch::X86_64]
}

fn one() -> Spanned<u32> {
    Spanned::new(0..0, 1)
}

fn single() -> u32 {
    1
}

fn three() -> u32 {
    3
}

fn some_seconds() -> f64 {
    3.0
}

fn timeout() -> f64 {
    30.0
}
