//! `entrain-sim validate`.

use std::path::PathBuf;

use anyhow::Result;
use entrain_sim::costs::Costs;
use entrain_sim::lab::validate;
use entrain_sim::stored::{Begun, Compared, Table};

use super::CostArgs;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The lab's stored results.
    #[arg(default_values = ["docs/results/tour.json.gz", "docs/results/messages.json.gz"])]
    results: Vec<PathBuf>,
    /// Runs of each load and arm, of which the median is taken.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..100))]
    seeds: u64,
    #[command(flatten)]
    costs: CostArgs,
    /// Keeps the table in a file, for `report`.
    #[arg(long)]
    json: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<bool> {
    let begun = Begun::now();
    let costs = args.costs.over(Costs::LAB)?;
    let mut parts = Vec::new();
    for path in &args.results {
        let part = Compared::of(path, args.seeds, costs)?;
        println!("{} ({})\n{}\n", path.display(), part.experiment, validate::table(&part.rows));
        parts.push(part);
    }
    if let Some(path) = &args.json {
        begun.done(costs, (1..=args.seeds).collect(), Table::Validate(parts)).write(path)?;
    }
    Ok(true)
}
