//! Whether what an earlier session measured may be gone on with: figures of two machines together tell of neither.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::path::Path;

use entrain_lab_machine::machine::{GuestSpec, MachineSpec};
use serde_json::{Map, Value};

/// What is told of a difference that forbids it; nothing where there is none.
pub(crate) fn difference<T: PartialEq + Display + ?Sized>(what: &str, earlier: &T, now: &T) -> Option<String> {
    (earlier != now).then(|| format!("{what}: {earlier}, now {now}"))
}

/// A machine as files keep it, to be compared only.
pub(crate) fn machine(spec: &MachineSpec) -> Value {
    serde_json::to_value(spec).expect("plain data")
}

/// In what an earlier machine differs from the present one, option by option.
pub(crate) fn of_machines(earlier: Value, now: &Value) -> Vec<String> {
    let earlier = with_defaults(earlier);
    let empty = Map::new();
    let (old, new) = (earlier.as_object().unwrap_or(&empty), now.as_object().unwrap_or(&empty));
    let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let value = |map: &Map<String, Value>, name: &str| map.get(name).cloned().unwrap_or_default();
    names.into_iter().filter_map(|name| difference(name, &value(old, name), &value(new, name))).collect()
}

/// Whether there is anything to go on with: a series may be begun with the command that later goes on with it.
pub(crate) fn is_begun(path: &Path) -> bool {
    path.is_file() && path.metadata().is_ok_and(|meta| meta.len() > 0)
}

/// The machine of an earlier program's series: an option that it did not know yet was not given.
fn with_defaults(mut machine: Value) -> Value {
    let fill = |known: &mut Value, default: Value| {
        if let (Some(known), Value::Object(default)) = (known.as_object_mut(), default) {
            for (name, value) in default {
                known.entry(name).or_insert(value);
            }
        }
    };
    fill(&mut machine, self::machine(&MachineSpec::default()));
    let guest = serde_json::to_value(GuestSpec::new("", 1)).expect("plain data");
    for known in machine.get_mut("guests").and_then(Value::as_array_mut).into_iter().flatten() {
        fill(known, guest.clone());
    }
    machine
}
