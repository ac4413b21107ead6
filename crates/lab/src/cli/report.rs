//! `entrain lab report`: kept reports shown again, and what is made of stored results.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use entrain_results::output::Output;

use super::files::{Files, show};
use crate::output;
use crate::report::stored;

/// Options of `entrain lab report`.
#[derive(Debug, clap::Args)]
pub struct ReportArgs {
    /// What `entrain lab run --json` wrote, compressed or not
    #[arg(required_unless_present = "readme")]
    files: Vec<PathBuf>,
    /// Write the page with plots
    #[arg(long, value_name = "FILE", conflicts_with_all = ["markdown", "readme"])]
    html: Option<PathBuf>,
    /// Print a page in Markdown, as docs/results has them
    #[arg(long)]
    markdown: bool,
    /// Write the pages in Markdown into this folder, each under its result's name
    #[arg(long, value_name = "FOLDER", requires = "markdown")]
    into: Option<PathBuf>,
    /// Renew the block of this file that says what has been measured
    #[arg(long, value_name = "FILE")]
    readme: Option<PathBuf>,
}

/// Shows reports that were kept once more, or writes what they are made into.
pub(super) fn run(args: &ReportArgs) -> anyhow::Result<ExitCode> {
    anyhow::ensure!(args.html.is_none() || args.files.len() == 1, "--html takes one report");
    let results = stored::read(&args.files)?;
    if !args.markdown && args.readme.is_none() {
        let mut status = ExitCode::SUCCESS;
        for (path, (_, report)) in args.files.iter().zip(&results) {
            let shown = show(report, &Files::of(path, args.html.as_deref())?)?;
            if shown != ExitCode::SUCCESS {
                status = shown;
            }
        }
        return Ok(status);
    }
    let mut made = Vec::new();
    if let Some(into) = &args.into {
        made.extend(stored::pages(&results, into));
    } else if args.markdown {
        stored::pages(&results, "".as_ref()).iter().for_each(|(_, page)| output::tell(io::stdout(), page));
    }
    if let Some(readme) = &args.readme {
        made.push(stored::front(&results, readme)?);
    }
    for (path, text) in made {
        let file = Output::new(&path)?;
        file.write(text.as_bytes()).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}
