//! `entrain-sim list`.

use anyhow::Result;
use entrain_sim::lab::EXPERIMENTS;
use entrain_sim::scenario::SCENARIOS;

pub(crate) fn run() -> Result<bool> {
    for scenario in SCENARIOS {
        println!("{:<22} {}", scenario.name, scenario.about);
    }
    println!("the lab's experiments:");
    for experiment in EXPERIMENTS {
        println!("{:<22} {}", experiment.name, experiment.about);
    }
    Ok(true)
}
