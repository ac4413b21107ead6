//! Manual pages and shell completions out of a command line's own definition, for packages.

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
pub struct GenerateArgs {
    /// What
    what: What,
    /// Folder to write into; made if it is missing
    folder: PathBuf,
}

/// Writes them for the command line `command`.
///
/// # Errors
/// The folder can't be made or written to.
pub fn run(args: &GenerateArgs, mut command: Command) -> anyhow::Result<()> {
    fs::create_dir_all(&args.folder)?;
    match args.what {
        What::Man => clap_mangen::generate_to(command, &args.folder)?,
        What::Completions => {
            let name = command.get_name().to_owned();
            for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
                clap_complete::generate_to(shell, &mut command, &name, &args.folder)?;
            }
        }
    }
    Ok(())
}
