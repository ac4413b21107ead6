//! The built-in experiments, and reading those of a user.

use std::path::Path;

use entrain_config::ConfigError;

use super::extends::{self, File};
use super::{Experiment, ExperimentError, common, tree, validate};

/// The built-in files, by name.
const BUILT_IN: &[(&str, &str)] = &[
    ("alone", include_str!("../../experiments/alone.toml")),
    ("boot", include_str!("../../experiments/boot.toml")),
    ("channel", include_str!("../../experiments/channel.toml")),
    ("cost", include_str!("../../experiments/cost.toml")),
    ("crowd", include_str!("../../experiments/crowd.toml")),
    ("drain", include_str!("../../experiments/drain.toml")),
    ("drain-hot", include_str!("../../experiments/drain-hot.toml")),
    ("drain-stress", include_str!("../../experiments/drain-stress.toml")),
    ("fairness", include_str!("../../experiments/fairness.toml")),
    ("fidelity", include_str!("../../experiments/fidelity.toml")),
    ("frames", include_str!("../../experiments/frames.toml")),
    ("frames-phone", include_str!("../../experiments/frames-phone.toml")),
    ("frequency", include_str!("../../experiments/frequency.toml")),
    ("frequency-liar", include_str!("../../experiments/frequency-liar.toml")),
    ("gate", include_str!("../../experiments/gate.toml")),
    ("hint", include_str!("../../experiments/hint.toml")),
    ("holders", include_str!("../../experiments/holders.toml")),
    ("idle-hint", include_str!("../../experiments/idle-hint.toml")),
    ("jitter", include_str!("../../experiments/jitter.toml")),
    ("lifecycle", include_str!("../../experiments/lifecycle.toml")),
    ("migration", include_str!("../../experiments/migration.toml")),
    ("mixed", include_str!("../../experiments/mixed.toml")),
    ("overcommit", include_str!("../../experiments/overcommit.toml")),
    ("overcommit-one", include_str!("../../experiments/overcommit-one.toml")),
    ("patience", include_str!("../../experiments/patience.toml")),
    ("placement", include_str!("../../experiments/placement.toml")),
    ("quiet", include_str!("../../experiments/quiet.toml")),
    ("rogue", include_str!("../../experiments/rogue.toml")),
    ("rt-guest", include_str!("../../experiments/rt-guest.toml")),
    ("scale", include_str!("../../experiments/scale.toml")),
    ("smoke", include_str!("../../experiments/smoke.toml")),
    ("tour", include_str!("../../experiments/tour.toml")),
    ("undercommit", include_str!("../../experiments/undercommit.toml")),
    ("vcpud", include_str!("../../experiments/vcpud.toml")),
    ("yield", include_str!("../../experiments/yield.toml")),
];

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
    BUILT_IN.iter().map(|(name, _)| Ok(Entry { name, title: load(name)?.title })).collect()
}

/// A built-in experiment by its name, or one from a file by its path.
pub fn load(name: &str) -> Result<Experiment, ExperimentError> {
    match file(name, None)? {
        Some(file) => read(file),
        None => Err(ExperimentError::Unknown { name: name.to_owned(), known: names() }),
    }
}

/// An experiment from its text; `file` is only for messages, and for what it extends.
pub fn parse(file: &str, text: &str) -> Result<Experiment, ExperimentError> {
    let name = if file.contains(['/', '.']) { file.to_owned() } else { built_in(file) };
    read(File { name, text: text.to_owned() })
}

/// The file of a built-in experiment, or one by its path, which may be relative to a folder.
pub(super) fn file(name: &str, folder: Option<&Path>) -> Result<Option<File>, ExperimentError> {
    if let Some((_, text)) = BUILT_IN.iter().find(|(known, _)| *known == name) {
        return Ok(Some(File { name: built_in(name), text: (*text).to_owned() }));
    }
    if !name.contains('/') && !name.ends_with(".toml") {
        return Ok(None);
    }
    let path = folder.map_or_else(|| name.into(), |folder| folder.join(name));
    let text = entrain_config::read(&path)?;
    Ok(Some(File { name: path.display().to_string(), text }))
}

/// The built-in experiments, for a message.
pub(super) fn names() -> String {
    BUILT_IN.iter().map(|(known, _)| *known).collect::<Vec<_>>().join(", ")
}

fn built_in(name: &str) -> String {
    format!("experiments/{name}.toml")
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
    let experiment: Experiment = tree::typed(&source, table, 0..source.text.len())?;
    validate::validate(&experiment, &source)?;
    Ok(experiment)
}
