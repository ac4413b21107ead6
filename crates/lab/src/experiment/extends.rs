//! Experiments that are told by their difference to another: `extends` and `without`.
//!
//! Tables are merged key by key. In arrays of tables with names (guests, arms, loads, checks, …) an element changes the
//! inherited one of its name, and comes after the inherited ones where there is none. Everything else replaces what was
//! inherited.

use std::path::Path;

use toml::Spanned;
use toml::de::{DeArray, DeValue};

use entrain_config::ConfigError;

use super::ExperimentError;
use super::catalogue::{self, File};
use super::tree::{self, Table, Value};

/// A file, the one that it extends, and so on.
pub(super) fn chain(file: File) -> Result<Vec<File>, ExperimentError> {
    let mut files = vec![file];
    while let Some(base) = base(&files)? {
        files.push(base);
    }
    Ok(files)
}

/// What the last of the files extends.
fn base(files: &[File]) -> Result<Option<File>, ExperimentError> {
    let Some(file) = files.last() else { return Ok(None) };
    let source = file.source();
    let Some(name) = tree::take_text(&mut tree::parse(&source)?, "extends", &source)? else { return Ok(None) };
    let Some(base) = catalogue::file(name.get_ref(), Path::new(&file.name).parent())? else {
        let message = format!("no experiment '{}' to extend; there are: {}", name.get_ref(), catalogue::names());
        return Err(source.error(Some(name.span()), message).into());
    };
    if files.iter().any(|one| one.identity() == base.identity()) {
        let way: Vec<&str> = files.iter().chain([&base]).map(|one| one.name.as_str()).collect();
        let message = format!("an experiment cannot extend itself: {}", way.join(" extends "));
        return Err(source.error(Some(name.span()), message).into());
    }
    Ok(Some(base))
}

/// The first of the files with what it inherits from those after it.
pub(super) fn merged(files: &[File]) -> Result<Table<'_>, ConfigError> {
    let Some((file, bases)) = files.split_first() else { return Ok(Table::new()) };
    let source = file.source();
    let mut own = tree::parse(&source)?;
    let without = tree::take_texts(&mut own, "without", &source)?;
    let Some(extends) = tree::take_text(&mut own, "extends", &source)? else {
        return match without.first() {
            Some(name) => {
                Err(source.error(Some(name.span()), "only an experiment that extends another can be without"))
            }
            None => Ok(own),
        };
    };
    let mut table = tree::moved(merged(bases)?, &extends.span());
    // Two experiments of one name could not be told apart in reports.
    table.remove("name");
    for what in without {
        if !remove(&mut table, what.get_ref()) {
            let message = format!("nothing that is inherited is called '{}'", what.get_ref());
            return Err(source.error(Some(what.span()), message));
        }
    }
    merge(&mut table, own);
    Ok(table)
}

/// Takes out a `key`, or of a table or array of tables one element: `key.element`.
fn remove(table: &mut Table<'_>, what: &str) -> bool {
    let Some((key, element)) = what.split_once('.') else { return table.remove(what).is_some() };
    match table.get_mut(key).map(Spanned::get_mut) {
        Some(DeValue::Table(inner)) => inner.remove(element).is_some(),
        Some(DeValue::Array(all)) => {
            let rest: Vec<Value<'_>> = all.iter().filter(|one| name(one) != Some(element)).cloned().collect();
            let found = rest.len() < all.len();
            *all = rest.into_iter().collect();
            found
        }
        _ => false,
    }
}

fn merge<'i>(inherited: &mut Table<'i>, own: Table<'i>) {
    for (key, value) in own {
        let span = value.span();
        let value = match (inherited.remove(key.get_ref().as_ref()).map(Spanned::into_inner), value.into_inner()) {
            (Some(DeValue::Table(mut old)), DeValue::Table(new)) => {
                merge(&mut old, new);
                DeValue::Table(old)
            }
            (Some(DeValue::Array(old)), DeValue::Array(new))
                if !new.is_empty() && new.iter().all(|one| name(one).is_some()) =>
            {
                DeValue::Array(merge_named(old.into_iter().collect(), new).into_iter().collect())
            }
            (_, new) => new,
        };
        inherited.insert(key, Spanned::new(span, value));
    }
}

/// An inherited element is changed once at most: of two own elements of one name the second stays, to be refused as such.
fn merge_named<'i>(mut all: Vec<Value<'i>>, own: DeArray<'i>) -> Vec<Value<'i>> {
    let mut changed = vec![false; all.len()];
    for one in own {
        let at = changed.iter().zip(&all).position(|(changed, old)| !changed && name(old) == name(&one));
        let span = one.span();
        match (at, one.into_inner()) {
            (Some(at), DeValue::Table(new)) => {
                changed[at] = true;
                if let DeValue::Table(old) = all[at].get_mut() {
                    merge(old, new);
                }
            }
            (_, new) => all.push(Spanned::new(span, new)),
        }
    }
    all
}

/// What an element of an array of tables is called; an arm that uses a common one has its name where it has none.
fn name<'t>(element: &'t Value<'_>) -> Option<&'t str> {
    let DeValue::Table(table) = element.get_ref() else { return None };
    match table.get("name").or_else(|| table.get("use"))?.get_ref() {
        DeValue::String(text) => Some(text),
        _ => None,
    }
}
