//! Man pages and shell completions out of the command line's own definition, for packages.

use std::fs;
use std::path::PathBuf;

use clap::{Args, Command, ValueEnum};
use clap_complete::Shell;

/// What is written.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum What {
    /// One manual page for each command
    Man,
    /// For bash, zsh and fish
    Completions,
}

/// Writes man pages or shell completions.
#[derive(Debug, Args)]
pub(crate) struct GenerateArgs {
    /// What
    what: What,
    /// Folder to write into; made if it is missing
    folder: PathBuf,
}

/// Runs the command for the command line `command`.
pub(crate) fn run(args: &GenerateArgs, mut command: Command) -> anyhow::Result<()> {
    fs::create_dir_all(&args.folder)?;
    match args.what {
        What::Man => clap_mangen::generate_to(command, &args.folder)?,
        What::Completions => {
            for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
                clap_complete::generate_to(shell, &mut command, "entrain", &args.folder)?;
            }
        }
    }
    Ok(())
}
