//! `entrain-sim references`.

use std::path::PathBuf;

use anyhow::Result;
use entrain_sim::references::{self, COSTS, SEED};
use entrain_sim::stored::{Begun, Table};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Keeps the table in a file, for `report`.
    #[arg(long)]
    json: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<bool> {
    let begun = Begun::now();
    let rows = references::rows();
    println!("{}", references::table(&rows));
    if let Some(path) = &args.json {
        begun.done(COSTS, vec![SEED], Table::References(rows)).write(path)?;
    }
    Ok(true)
}
