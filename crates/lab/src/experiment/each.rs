//! Checks of several loads or arms: `load = ["a", "b"]` stands for a check of each, and `{load}` in its name for which.

use toml::Spanned;
use toml::de::{DeArray, DeValue};

use entrain_config::{ConfigError, Source};

use super::tree::{Table, Value};

/// What a check may name several of.
const NAMES: [&str; 2] = ["arm", "load"];

/// Puts a check for each load and arm in the place of one that names several. What is no array is left for its type to
/// refuse.
pub(super) fn expand<'i>(root: &mut Table<'i>, source: &Source<'i>) -> Result<(), ConfigError> {
    let Some(DeValue::Array(checks)) = root.get_mut("check").map(Spanned::get_mut) else { return Ok(()) };
    for name in NAMES {
        let mut all = Vec::new();
        for check in std::mem::replace(checks, DeArray::new()) {
            all.extend(one_each(check, name, source)?);
        }
        *checks = all.into_iter().collect();
    }
    Ok(())
}

fn one_each<'i>(check: Value<'i>, name: &str, source: &Source<'i>) -> Result<Vec<Value<'i>>, ConfigError> {
    let several = match check.get_ref() {
        DeValue::Table(table) => match table.get(name).map(Spanned::get_ref) {
            Some(DeValue::Array(several)) => several.clone(),
            _ => return Ok(vec![check]),
        },
        _ => return Ok(vec![check]),
    };
    if several.is_empty() {
        return Err(source.error(Some(check.span()), format!("this check names no {name}: it could not fail")));
    }
    let each = several.into_iter().map(|value| {
        let mut check = check.clone();
        if let DeValue::Table(table) = check.get_mut() {
            say(table, &format!("{{{name}}}"), value.get_ref().as_str().unwrap_or_default());
            if let Some(into) = table.get_mut(name) {
                *into = value;
            }
        }
        check
    });
    Ok(each.collect())
}

/// Replaces `what` in the check's name.
fn say(check: &mut Table<'_>, what: &str, by: &str) {
    if let Some(DeValue::String(text)) = check.get_mut("name").map(Spanned::get_mut) {
        *text = text.replace(what, by).into();
    }
}
