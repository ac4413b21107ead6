//! The files of experiments: the built-in ones, and those of a user.

use std::path::{Path, PathBuf};

use entrain_config::Source;

use super::ExperimentError;

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
    ("exits", include_str!("../../experiments/exits.toml")),
    ("failures", include_str!("../../experiments/failures.toml")),
    ("fairness", include_str!("../../experiments/fairness.toml")),
    ("fidelity", include_str!("../../experiments/fidelity.toml")),
    ("frames", include_str!("../../experiments/frames.toml")),
    ("frames-capped", include_str!("../../experiments/frames-capped.toml")),
    ("frames-phone", include_str!("../../experiments/frames-phone.toml")),
    ("frequency", include_str!("../../experiments/frequency.toml")),
    ("frequency-liar", include_str!("../../experiments/frequency-liar.toml")),
    ("gate", include_str!("../../experiments/gate.toml")),
    ("hint", include_str!("../../experiments/hint.toml")),
    ("holders", include_str!("../../experiments/holders.toml")),
    ("hostile-tenant", include_str!("../../experiments/hostile-tenant.toml")),
    ("hostile-user", include_str!("../../experiments/hostile-user.toml")),
    ("idle-hint", include_str!("../../experiments/idle-hint.toml")),
    ("jitter", include_str!("../../experiments/jitter.toml")),
    ("latency", include_str!("../../experiments/latency.toml")),
    ("latency-plain", include_str!("../../experiments/latency-plain.toml")),
    ("lifecycle", include_str!("../../experiments/lifecycle.toml")),
    ("messages", include_str!("../../experiments/messages.toml")),
    ("migration", include_str!("../../experiments/migration.toml")),
    ("mixed", include_str!("../../experiments/mixed.toml")),
    ("office", include_str!("../../experiments/office.toml")),
    ("overcommit", include_str!("../../experiments/overcommit.toml")),
    ("overcommit-one", include_str!("../../experiments/overcommit-one.toml")),
    ("patience", include_str!("../../experiments/patience.toml")),
    ("placement", include_str!("../../experiments/placement.toml")),
    ("placement-energy", include_str!("../../experiments/placement-energy.toml")),
    ("quiet", include_str!("../../experiments/quiet.toml")),
    ("restarts", include_str!("../../experiments/restarts.toml")),
    ("rogue", include_str!("../../experiments/rogue.toml")),
    ("rt-guest", include_str!("../../experiments/rt-guest.toml")),
    ("rtos", include_str!("../../experiments/rtos.toml")),
    ("scale", include_str!("../../experiments/scale.toml")),
    ("smoke", include_str!("../../experiments/smoke.toml")),
    ("spinning", include_str!("../../experiments/spinning.toml")),
    ("tour", include_str!("../../experiments/tour.toml")),
    ("traps", include_str!("../../experiments/traps.toml")),
    ("undercommit", include_str!("../../experiments/undercommit.toml")),
    ("vcpud", include_str!("../../experiments/vcpud.toml")),
    ("wakes", include_str!("../../experiments/wakes.toml")),
    ("yield", include_str!("../../experiments/yield.toml")),
];

/// An experiment's text.
#[derive(Debug)]
pub(super) struct File {
    /// Its name for messages: that which the user knows.
    pub(super) name: String,
    /// All of it.
    pub(super) text: String,
}

impl File {
    pub(super) fn source(&self) -> Source<'_> {
        Source { file: &self.name, text: &self.text }
    }

    /// What tells it from other files, whatever way leads to it.
    pub(super) fn identity(&self) -> PathBuf {
        std::fs::canonicalize(&self.name).unwrap_or_else(|_| self.name.clone().into())
    }
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

/// Names of the built-in experiments.
pub(super) fn built_ins() -> impl Iterator<Item = &'static str> {
    BUILT_IN.iter().map(|(name, _)| *name)
}

/// The built-in experiments, for a message.
pub(super) fn names() -> String {
    built_ins().collect::<Vec<_>>().join(", ")
}

/// The name that messages give to a built-in file.
pub(super) fn built_in(name: &str) -> String {
    format!("experiments/{name}.toml")
}
