//! `entrain-sim list`.

use anyhow::Result;
use entrain_sim::scenario::SCENARIOS;

pub(crate) fn run() -> Result<bool> {
    for scenario in SCENARIOS {
        println!("{:<10} {}", scenario.name, scenario.about);
    }
    Ok(true)
}
