//! `entrain-sim references`.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use entrain_sim::references;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Writes the rows to a file.
    #[arg(long)]
    json: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<bool> {
    let rows = references::rows();
    println!("{}", references::table(&rows));
    if let Some(path) = &args.json {
        std::fs::write(path, serde_json::to_string_pretty(&rows)?).with_context(|| path.display().to_string())?;
    }
    Ok(true)
}
