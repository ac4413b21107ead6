//! From a name or a text to an experiment: what it extends, its common parts, its types, its sense.

use entrain_config::ConfigError;

use super::catalogue::{self, File, built_in};
use super::{Experiment, ExperimentError, common, each, extends, tree, validate};

/// One line of `entrain lab list`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The name to run it by.
    pub name: &'static str,
    /// What it is about.
    pub title: String,
}

/// All built-in experiments.
pub fn list() -> Result<Vec<Entry>, ExperimentError> {
    catalogue::built_ins().map(|name| Ok(Entry { name, title: load(name)?.title })).collect()
}

/// A built-in experiment by its name, or one from a file by its path.
pub fn load(name: &str) -> Result<Experiment, ExperimentError> {
    match catalogue::file(name, None)? {
        Some(file) => read(file),
        None => Err(ExperimentError::Unknown { name: name.to_owned(), known: catalogue::names() }),
    }
}

/// An experiment from its text; `file` is only for messages, and for what it extends.
pub fn parse(file: &str, text: &str) -> Result<Experiment, ExperimentError> {
    let name = if file.contains(['/', '.']) { file.to_owned() } else { built_in(file) };
    read(File { name, text: text.to_owned() })
}

fn read(file: File) -> Result<Experiment, ExperimentError> {
    let files = extends::chain(file)?;
    // What is extended is an experiment itself: what is wrong with it is told as its own, by its own line.
    for bases in (1..files.len()).rev() {
        resolve(&files[bases..])?;
    }
    Ok(resolve(&files)?)
}

/// The first of the files with what it inherits from the others.
fn resolve(files: &[File]) -> Result<Experiment, ConfigError> {
    let source = files[0].source();
    let mut table = extends::merged(files)?;
    common::expand(&mut table, &source)?;
    each::expand(&mut table, &source)?;
    let experiment: Experiment = tree::typed(&source, table, 0..source.text.len())?;
    validate::validate(&experiment, &source)?;
    Ok(experiment)
}
