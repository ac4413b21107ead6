//! The built-in experiments, and reading those of a user.

use std::path::Path;

use super::source::{ExperimentError, Source};
use super::{Experiment, validate};

/// The built-in files, by name.
const BUILT_IN: &[(&str, &str)] = &[
    ("alone", include_str!("../../experiments/alone.toml")),
    ("boot", include_str!("../../experiments/boot.toml")),
    ("channel", include_str!("../../experiments/channel.toml")),
    ("cost", include_str!("../../experiments/cost.toml")),
    ("crowd", include_str!("../../experiments/crowd.toml")),
    ("fairness", include_str!("../../experiments/fairness.toml")),
    ("hint", include_str!("../../experiments/hint.toml")),
    ("holders", include_str!("../../experiments/holders.toml")),
    ("idle-hint", include_str!("../../experiments/idle-hint.toml")),
    ("jitter", include_str!("../../experiments/jitter.toml")),
    ("lifecycle", include_str!("../../experiments/lifecycle.toml")),
    ("mixed", include_str!("../../experiments/mixed.toml")),
    ("overcommit", include_str!("../../experiments/overcommit.toml")),
    ("rogue", include_str!("../../experiments/rogue.toml")),
    ("smoke", include_str!("../../experiments/smoke.toml")),
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
    BUILT_IN.iter().map(|(name, text)| Ok(Entry { name, title: parse(name, text)?.title })).collect()
}

/// A built-in experiment by its name, or one from a file by its path.
pub fn load(name: &str) -> Result<Experiment, ExperimentError> {
    if let Some((_, text)) = BUILT_IN.iter().find(|(known, _)| *known == name) {
        return parse(name, text);
    }
    if !name.contains('/') && !name.ends_with(".toml") {
        let known = BUILT_IN.iter().map(|(known, _)| *known).collect::<Vec<_>>().join(", ");
        return Err(ExperimentError::Unknown { name: name.to_owned(), known });
    }
    let path = Path::new(name);
    let text =
        std::fs::read_to_string(path).map_err(|source| ExperimentError::Read { path: path.to_path_buf(), source })?;
    parse(name, &text)
}

/// An experiment from its text; `file` is only for messages.
pub(crate) fn parse(file: &str, text: &str) -> Result<Experiment, ExperimentError> {
    let file = if file.contains(['/', '.']) { file.to_owned() } else { format!("experiments/{file}.toml") };
    let source = Source { file: &file, text };
    let experiment: Experiment =
        toml::from_str(text).map_err(|error| source.error(error.span(), error.message().to_owned()))?;
    validate::validate(&experiment, &source)?;
    Ok(experiment)
}
