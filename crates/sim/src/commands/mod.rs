//! The commands. Each says whether nothing was found that must not be.

pub(crate) mod fleet;
pub(crate) mod list;
mod progress;
pub(crate) mod references;
pub(crate) mod replay;
pub(crate) mod report;
pub(crate) mod run;
pub(crate) mod search;
pub(crate) mod trace;
pub(crate) mod validate;

use anyhow::{Context as _, Result, ensure};
use entrain_sim::costs::Costs;
use entrain_sim::lab::{self, LabArm};
use entrain_sim::scenario::{self, Arm, Setup};
use entrain_sim::world::Tunable;

/// What run and trace need to make a world.
#[derive(clap::Args)]
pub(crate) struct Which {
    /// One of those that `list` names.
    scenario: String,
    /// What chance is drawn from; the same seed gives the same trace.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Sets a tunable of Entrain's scheduler on the host: NAME=NUMBER in ns, NAME=true, NAME=false.
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = tunable)]
    tunables: Vec<(String, Tunable)>,
    /// Of an experiment of the lab's: one guest with so many vCPUs on as many pCPUs, instead of its own machines.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=256))]
    vcpus: Option<u32>,
    #[command(flatten)]
    costs: CostArgs,
}

/// What things cost.
#[derive(clap::Args)]
pub(crate) struct CostArgs {
    /// On which computer things cost what they cost: a server, or the lab. `run` and `trace` take the first, `validate`
    /// the second, if it is not given.
    #[arg(long, value_parser = ["hardware", "lab"])]
    costs: Option<String>,
    /// Sets one of the costs: NAME=NS, with the names that src/costs.rs gives them, for instance exit=1200.
    #[arg(long = "cost", value_name = "NAME=NS", value_parser = cost)]
    some: Vec<(String, u64)>,
}

impl CostArgs {
    /// What is asked for, over what the world has of itself.
    pub(crate) fn over(&self, own: Costs) -> Result<Costs> {
        let mut costs = match self.costs.as_deref() {
            Some("hardware") => Costs::HARDWARE,
            Some("lab") => Costs::LAB,
            _ => own,
        };
        for (name, ns) in &self.some {
            ensure!(costs.set(name, *ns), "no cost is called {name}; there are {}", Costs::NAMES.join(", "));
        }
        Ok(costs)
    }
}

fn cost(text: &str) -> Result<(String, u64)> {
    let (name, ns) = text.split_once('=').context("it is NAME=NS")?;
    Ok((name.to_owned(), ns.parse().context("a cost is a number of ns")?))
}

impl Which {
    pub(crate) fn name(&self) -> &str {
        &self.scenario
    }

    /// What the scenario is.
    pub(crate) fn about(&self) -> String {
        let of = |about: &str| about.to_owned();
        scenario::named(&self.scenario)
            .map(|scenario| of(scenario.about))
            .or_else(|| lab::named(&self.scenario).map(|experiment| of(experiment.about)))
            .unwrap_or_default()
    }

    /// The world of the scenario, or of the lab's experiment, under an arm.
    pub(crate) fn build(&self, arm: Arm) -> Result<Setup> {
        let mut setup = self.build_plain(arm)?;
        let costs = self.costs.over(setup.world.costs())?;
        setup.world.set_costs(costs);
        Ok(setup)
    }

    fn build_plain(&self, arm: Arm) -> Result<Setup> {
        let name = &self.scenario;
        if let Some(scenario) = scenario::named(name) {
            return Ok(scenario.build(self.seed, arm));
        }
        let experiment = lab::named(name)
            .with_context(|| format!("no scenario is called {name}; `entrain-sim list` names those there are"))?;
        let machines = self.vcpus.map_or(experiment.machines, |vcpus| lab::Machines { pcpus: vcpus, guests: 1, vcpus });
        Ok(lab::Experiment { machines, ..*experiment }.build(self.seed, &LabArm { name: "", arm, online: None }))
    }

    /// An arm with the tunables that were asked for.
    pub(crate) fn arm(&self, name: &str) -> Result<Arm> {
        let arm = arm(name)?;
        // Names live as long as the program: scenarios hold them as constants.
        let tunables: Vec<_> =
            self.tunables.iter().map(|(name, value)| (&*String::leak(name.clone()), *value)).collect();
        Ok(Arm { tunables: tunables.leak(), ..arm })
    }
}

/// The arm of a name.
pub(crate) fn arm(name: &str) -> Result<Arm> {
    let names = Arm::NAMES.join(", ");
    Arm::named(name).with_context(|| format!("no arm is called {name}; there are {names}, registered, simple, bpfland"))
}

/// ms, as nanoseconds.
pub(crate) fn ns(ms: f64) -> u64 {
    (ms.max(0.0) * 1e6) as u64
}

/// The most memory that this process has had so far, bytes.
pub(crate) fn peak_memory() -> u64 {
    // SAFETY: the structure is plain numbers, and the call fills it.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage.ru_maxrss as u64 * 1024
    }
}

fn tunable(text: &str) -> Result<(String, Tunable)> {
    let (name, value) = text.split_once('=').context("it is NAME=VALUE")?;
    let value = match value {
        "true" | "false" => Tunable::Switch(value == "true"),
        _ => Tunable::Number(value.parse().context("a tunable is a number, true or false")?),
    };
    Ok((name.to_owned(), value))
}
