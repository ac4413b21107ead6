//! `entrain-sim report`.

use std::path::PathBuf;

use anyhow::Result;
use entrain_results::{name, output};
use entrain_sim::stored::{self, Stored};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// What `validate` or `references` kept by `--json`.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Writes the pages into this folder, each under its table's name, instead of printing them.
    #[arg(long, value_name = "FOLDER")]
    into: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<bool> {
    // All are read before the first page is written: one that is no table changes nothing.
    let all = args.files.iter().map(|file| Ok((name(file), Stored::read(file)?))).collect::<Result<Vec<_>>>()?;
    for (name, stored) in all {
        let page = stored::render(&stored, &name);
        match &args.into {
            None => print!("{page}"),
            Some(folder) => {
                let path = folder.join(format!("{name}.md"));
                output::write(&path, page.as_bytes())?;
            }
        }
    }
    Ok(true)
}
