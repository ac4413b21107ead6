//! Manual pages and shell completions out of a command line's own definition, for packages.

use std::path::{Path, PathBuf};
use std::{fs, io};

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

/// What runs as a service: its manual is in section 8, where packages and administrators look for it.
const DAEMONS: [&str; 2] = ["entrain-host", "entrain-guest"];

/// Moves a manual of section 1, where clap_mangen has all, to section 8, with what refers to it.
fn move_to_8(folder: &Path, daemon: &str) -> io::Result<()> {
    let page = folder.join(format!("{daemon}.1"));
    if !page.exists() {
        return Ok(());
    }
    fs::rename(&page, folder.join(format!("{daemon}.8")))?;
    let name = daemon.replace('-', "\\-");
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let text = fs::read_to_string(&path)?;
        let told =
            [(format!("{name}(1)"), format!("{name}(8)")), (format!(".TH {daemon} 1 "), format!(".TH {daemon} 8 "))];
        fs::write(&path, told.iter().fold(text, |text, (from, to)| text.replace(from, to)))?;
    }
    Ok(())
}

/// Writes them for the command line `command`.
///
/// # Errors
/// The folder can't be made or written to.
pub fn run(args: &GenerateArgs, mut command: Command) -> anyhow::Result<()> {
    fs::create_dir_all(&args.folder)?;
    match args.what {
        What::Man => {
            clap_mangen::generate_to(command, &args.folder)?;
            DAEMONS.iter().try_for_each(|daemon| move_to_8(&args.folder, daemon))?;
        }
        What::Completions => {
            let name = command.get_name().to_owned();
            for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
                clap_complete::generate_to(shell, &mut command, &name, &args.folder)?;
            }
        }
    }
    Ok(())
}
