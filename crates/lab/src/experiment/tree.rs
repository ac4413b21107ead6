//! An experiment's file before it becomes types: tables of values that know their place in the text.

use std::ops::Range;

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue, Deserializer, Error};

use entrain_config::{ConfigError, Source};

/// A table; the keys have places too.
pub(super) type Table<'i> = DeTable<'i>;
/// A value with its place.
pub(super) type Value<'i> = Spanned<DeValue<'i>>;

/// Reads a file.
pub(super) fn parse<'i>(source: &Source<'i>) -> Result<Table<'i>, ConfigError> {
    DeTable::parse(source.text).map(Spanned::into_inner).map_err(|error| wrong(source, &error))
}

/// Makes a type of a table that stands at a place of the source.
pub(super) fn typed<T: DeserializeOwned>(
    source: &Source<'_>,
    table: Table<'_>,
    at: Range<usize>,
) -> Result<T, ConfigError> {
    T::deserialize(Deserializer::from(Spanned::new(at, table))).map_err(|error| wrong(source, &error))
}

fn wrong(source: &Source<'_>, error: &Error) -> ConfigError {
    source.error(error.span(), error.message())
}

/// The table with all that is in it at one place: what was brought in from elsewhere stands where it was asked for, so
/// that an error in it leads the user to a line of their own file.
pub(super) fn moved<'i>(table: Table<'i>, to: &Range<usize>) -> Table<'i> {
    let entries = table.into_iter();
    entries.map(|(key, value)| (Spanned::new(to.clone(), key.into_inner()), moved_value(value, to))).collect()
}

fn moved_value<'i>(value: Value<'i>, to: &Range<usize>) -> Value<'i> {
    let value = match value.into_inner() {
        DeValue::Table(table) => DeValue::Table(moved(table, to)),
        DeValue::Array(all) => DeValue::Array(all.into_iter().map(|one| moved_value(one, to)).collect()),
        plain => plain,
    };
    Spanned::new(to.clone(), value)
}

/// Takes a text out of a table.
pub(super) fn take_text(
    table: &mut Table<'_>,
    key: &str,
    source: &Source<'_>,
) -> Result<Option<Spanned<String>>, ConfigError> {
    table.remove(key).map(|value| text(value, source)).transpose()
}

/// Takes a list of texts out of a table; nothing is an empty list.
pub(super) fn take_texts(
    table: &mut Table<'_>,
    key: &str,
    source: &Source<'_>,
) -> Result<Vec<Spanned<String>>, ConfigError> {
    let Some(value) = table.remove(key) else { return Ok(Vec::new()) };
    let span = value.span();
    match value.into_inner() {
        DeValue::Array(all) => all.into_iter().map(|one| text(one, source)).collect(),
        _ => Err(source.error(Some(span), format!("{key} is a list of names"))),
    }
}

fn text(value: Value<'_>, source: &Source<'_>) -> Result<Spanned<String>, ConfigError> {
    let span = value.span();
    match value.into_inner() {
        DeValue::String(text) => Ok(Spanned::new(span, text.into_owned())),
        _ => Err(source.error(Some(span), "a name is a text in quotes")),
    }
}

/// The tables of an array of tables; none where there is something else, which is left for its type to refuse.
pub(super) fn tables<'t, 'i>(table: &'t mut Table<'i>, key: &str) -> impl Iterator<Item = &'t mut Table<'i>> {
    let array = match table.get_mut(key).map(Spanned::get_mut) {
        Some(DeValue::Array(all)) => all.iter_mut(),
        _ => [].iter_mut(),
    };
    array.filter_map(|one| if let DeValue::Table(table) = one.get_mut() { Some(table) } else { None })
}

/// Names of a table's entries, for a message.
pub(super) fn keys(table: &Table<'_>) -> String {
    table.keys().map(|key| key.get_ref().as_ref()).collect::<Vec<&str>>().join(", ")
}
