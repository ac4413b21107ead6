//! `entrain-sim validate`.

use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use entrain_sim::costs::Costs;
use entrain_sim::lab::measured::Results;
use entrain_sim::lab::validate;

use super::CostArgs;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The lab's stored results.
    #[arg(default_value = "docs/results/tour.json.gz")]
    results: Vec<PathBuf>,
    /// Runs of each load and arm, of which the median is taken.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..100))]
    seeds: u64,
    #[command(flatten)]
    costs: CostArgs,
    /// Writes the rows to a file.
    #[arg(long)]
    json: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<bool> {
    let mut all = Vec::new();
    for path in &args.results {
        let results = Results::read(path)?;
        let rows = validate::validate(&results, args.seeds, args.costs.over(Costs::LAB)?);
        ensure!(
            !rows.is_empty(),
            "{}: no load of {} is modelled; `entrain-sim list` names those that are",
            path.display(),
            results.experiment
        );
        println!("{} ({})\n{}\n", path.display(), results.experiment, validate::table(&rows));
        all.extend(rows);
    }
    if let Some(path) = &args.json {
        std::fs::write(path, serde_json::to_string_pretty(&all)?).with_context(|| path.display().to_string())?;
    }
    Ok(true)
}
