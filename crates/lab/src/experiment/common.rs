//! What experiments name instead of writing it out: common arms and their steps (`experiments/common/arms.toml`), and
//! how the guests' figures of a metric make one (`experiments/common/metrics.toml`).

use std::ops::Range;

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeString, DeValue};

use entrain_config::{ConfigError, Source};
use entrain_workloads::catalog;

use super::Step;
use super::tree::{self, Table, Value};

const ARMS: Source<'static> =
    Source { file: "experiments/common/arms.toml", text: include_str!("../../experiments/common/arms.toml") };
const METRICS: Source<'static> =
    Source { file: "experiments/common/metrics.toml", text: include_str!("../../experiments/common/metrics.toml") };

/// What has a name, and the file that uses it.
struct Names<'s, 'i> {
    source: &'s Source<'i>,
    arms: Table<'i>,
    steps: Table<'i>,
    metrics: Table<'i>,
}

/// Replaces every name by what it stands for: `use` and `steps` of arms, `metrics` of loads.
pub(super) fn expand<'i>(root: &mut Table<'i>, source: &Source<'i>) -> Result<(), ConfigError> {
    let mut arms = tree::parse(&ARMS)?;
    let mut names = Names {
        source,
        steps: take_table(&mut arms, "step", &ARMS)?,
        arms: take_table(&mut arms, "arm", &ARMS)?,
        metrics: tree::parse(&METRICS)?,
    };
    names.add_steps(take_table(root, "step", source)?)?;
    for arm in tree::tables(root, "arm") {
        names.arm(arm)?;
    }
    for load in tree::tables(root, "load") {
        names.load(load)?;
    }
    Ok(())
}

/// Takes a table out of another; nothing is an empty one.
fn take_table<'i>(table: &mut Table<'i>, key: &str, source: &Source<'_>) -> Result<Table<'i>, ConfigError> {
    let Some(value) = table.remove(key) else { return Ok(Table::new()) };
    let span = value.span();
    match value.into_inner() {
        DeValue::Table(table) => Ok(table),
        _ => Err(source.error(Some(span), format!("{key} is a table: [{key}.NAME]"))),
    }
}

impl<'i> Names<'_, 'i> {
    /// Takes in the steps that the file itself defines. They are looked at here: one that no arm uses must be right too.
    fn add_steps(&mut self, own: Table<'i>) -> Result<(), ConfigError> {
        for (name, step) in own {
            let text = name.get_ref().as_ref();
            if self.steps.contains_key(text) {
                return Err(self.source.error(Some(name.span()), format!("'{text}' is the name of a common step")));
            }
            check::<Step>(&step, self.source)?;
            self.steps.insert(name, step);
        }
        Ok(())
    }

    fn arm(&self, arm: &mut Table<'i>) -> Result<(), ConfigError> {
        let mut steps = Vec::new();
        if let Some(used) = tree::take_text(arm, "use", self.source)? {
            let mut common = find(&self.arms, "arm", &used, self.source)?;
            steps = tree::take_texts(&mut common, "steps", self.source)?;
            common.insert(key("name", used.span()), string(used));
            common.extend(std::mem::take(arm));
            *arm = common;
        }
        steps.extend(tree::take_texts(arm, "steps", self.source)?);
        let steps =
            steps.iter().map(|name| find(&self.steps, "step", name, self.source).map(|step| (name.span(), step)));
        put_before(arm, "step", steps.collect::<Result<_, _>>()?);
        Ok(())
    }

    fn load(&self, load: &mut Table<'i>) -> Result<(), ConfigError> {
        let names = tree::take_texts(load, "metrics", self.source)?;
        let metrics = names.into_iter().map(|name| {
            let span = name.span();
            // Most of entrain-load's metrics are sums, and its catalogue says the rest.
            let mut metric = match catalogued(name.get_ref()) {
                Some(_) if !self.metrics.contains_key(name.get_ref().as_str()) => Table::new(),
                _ => find(&self.metrics, "metric of entrain-load or of common/metrics.toml", &name, self.source)?,
            };
            metric.insert(key("name", span.clone()), string(name));
            Ok((span, metric))
        });
        put_before(load, "metric", metrics.collect::<Result<_, _>>()?);
        tree::tables(load, "metric").for_each(complete);
        Ok(())
    }
}

/// What a name stands for, at the name's place.
fn find<'i>(
    all: &Table<'i>,
    what: &str,
    name: &Spanned<String>,
    source: &Source<'_>,
) -> Result<Table<'i>, ConfigError> {
    match all.get(name.get_ref().as_str()).map(Spanned::get_ref) {
        Some(DeValue::Table(table)) => Ok(tree::moved(table.clone(), &name.span())),
        _ => {
            let message = format!("no {what} is called '{}'; there are: {}", name.get_ref(), tree::keys(all));
            Err(source.error(Some(name.span()), message))
        }
    }
}

/// Puts tables before those that the array has. What is no array is left for its type to refuse.
fn put_before<'i>(table: &mut Table<'i>, name: &'static str, first: Vec<(Range<usize>, Table<'i>)>) {
    let Some((at, _)) = first.first() else { return };
    let at = at.clone();
    let mut all: Vec<Value<'i>> = first.into_iter().map(|(at, one)| Spanned::new(at, DeValue::Table(one))).collect();
    match table.get(name).map(Spanned::get_ref) {
        Some(DeValue::Array(rest)) => all.extend(rest.iter().cloned()),
        Some(_) => return,
        None => {}
    }
    table.insert(key(name, at.clone()), Spanned::new(at, DeValue::Array(all.into_iter().collect())));
}

/// Gives a metric of entrain-load the unit and the direction that its catalogue says, where the file says none.
fn complete(metric: &mut Table<'_>) {
    let Some((name, at)) = metric.get("from").or_else(|| metric.get("name")).map(|name| (name.get_ref(), name.span()))
    else {
        return;
    };
    let Some(known) = name.as_str().and_then(catalogued) else { return };
    let better = match known.better {
        catalog::Better::Higher => Some("higher"),
        catalog::Better::Lower => Some("lower"),
        catalog::Better::Neither => None,
    };
    for (name, value) in [("unit", Some(known.unit)), ("better", better)] {
        if let Some(value) = value.filter(|_| !metric.contains_key(name)) {
            metric.insert(key(name, at.clone()), Spanned::new(at.clone(), DeValue::String(value.into())));
        }
    }
}

fn catalogued(name: &str) -> Option<&'static catalog::Metric> {
    catalog::LOADS.iter().find_map(|load| load.metric(name))
}

/// Whether a value is of a type.
fn check<T: DeserializeOwned>(value: &Value<'_>, source: &Source<'_>) -> Result<(), ConfigError> {
    match value.get_ref() {
        DeValue::Table(table) => tree::typed::<T>(source, table.clone(), value.span()).map(drop),
        _ => Err(source.error(Some(value.span()), "this is no table")),
    }
}

fn key<'i>(name: &'static str, at: Range<usize>) -> Spanned<DeString<'i>> {
    Spanned::new(at, name.into())
}

fn string<'i>(text: Spanned<String>) -> Value<'i> {
    Spanned::new(text.span(), DeValue::String(text.into_inner().into()))
}
