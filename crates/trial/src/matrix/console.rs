//! What the guests print: numbers on their consoles, which QEMU writes to files.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;

use crate::command::number;

/// What stands before a number of the guest's command, and behind it.
pub(super) const MARK: &str = "entrain-figure:";

/// Adds up what the guests' commands print for so long.
#[derive(Clone, Debug, Args)]
pub(crate) struct ConsoleArgs {
    /// Folder with a file for each guest
    folder: PathBuf,
    /// For so long
    seconds: u64,
}

/// The numbers in a console's text.
pub(super) fn numbers(text: &str) -> Vec<f64> {
    let marked = text.lines().filter_map(|line| line.split_once(MARK));
    marked.filter_map(|(_, rest)| number(rest)).collect()
}

fn read(folder: &Path) -> anyhow::Result<Vec<(PathBuf, usize)>> {
    let files = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let mut all = Vec::new();
    for file in files {
        let path = file?.path();
        if path.extension().is_some_and(|ending| ending == "console") {
            let length = fs::metadata(&path)?.len() as usize;
            all.push((path, length));
        }
    }
    Ok(all)
}

/// Prints the sum over all guests of the mean of what each printed meanwhile.
pub(crate) fn run(args: &ConsoleArgs) -> anyhow::Result<ExitCode> {
    let before = read(&args.folder)?;
    std::thread::sleep(Duration::from_secs(args.seconds));
    let mut sum = 0.0;
    for (path, length) in before {
        let bytes = fs::read(&path)?;
        let new = String::from_utf8_lossy(bytes.get(length..).unwrap_or_default());
        let printed = numbers(&new);
        if printed.is_empty() {
            bail!(
                "{} printed no number in {} s: its command takes longer, or has failed",
                path.display(),
                args.seconds
            );
        }
        sum += printed.iter().sum::<f64>() / printed.len() as f64;
    }
    println!("{sum}");
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_command_prints_counts() {
        let text = "[    0.5] booted in 3 s\nentrain-figure: throughput 12.5 MB/s\nnoise 7\nentrain-figure: 10\r\n";
        assert_eq!(numbers(text), [12.5, 10.0]);
        assert!(numbers("").is_empty());
    }
}
