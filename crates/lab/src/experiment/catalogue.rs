//! The built-in experiments, and reading those of a user.

use std::path::Path;

use entrain_config::Source;

use super::{Experiment, ExperimentError, validate};

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
    ("frames", include_str!("../../experiments/frames.toml")),
    ("frames-phone", include_str!("../../experiments/frames-phone.toml")),
    ("frequency", include_str!("../../experiments/frequency.toml")),
    ("frequency-liar", include_str!("../../experiments/frequency-liar.toml")),
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
    parse(name, &entrain_config::read(Path::new(name))?)
}

/// An experiment from its text; `file` is only for messages.
pub fn parse(file: &str, text: &str) -> Result<Experiment, ExperimentError> {
    let file = if file.contains(['/', '.']) { file.to_owned() } else { format!("experiments/{file}.toml") };
    let source = Source { file: &file, text };
    let experiment: Experiment = source.parse()?;
    validate::validate(&experiment, &source)?;
    Ok(experiment)
}
