//! Symbols of the kernel, as `/proc/kallsyms` lists them.

use std::collections::HashMap;

use crate::known::{FUNCTIONS, VARIABLES};

/// What is wrong with the names that the module needs, one line each; empty if each is there once.
///
/// Names of modules (a fourth column) do not count. The addresses, which users may not see, are not needed.
pub fn problems(kallsyms: &str) -> Vec<String> {
    let mut count: HashMap<&str, usize> = HashMap::new();
    for line in kallsyms.lines() {
        let mut words = line.split_ascii_whitespace().skip(2);
        if let (Some(name), None) = (words.next(), words.next()) {
            *count.entry(name).or_default() += 1;
        }
    }
    let names = FUNCTIONS.iter().map(|(name, _)| *name).chain(VARIABLES.iter().copied());
    names
        .filter_map(|name| match count.get(name).copied().unwrap_or(0) {
            1 => None,
            0 => Some(format!("symbol {name} is missing")),
            n => Some(format!("symbol {name} is there {n} times")),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing() -> String {
        let names = FUNCTIONS.iter().map(|(name, _)| *name).chain(VARIABLES.iter().copied());
        names.map(|name| format!("0000000000000000 t {name}\n")).collect()
    }

    #[test]
    fn each_name_once_is_right() {
        let mut text = listing();
        assert!(problems(&text).is_empty());
        text.push_str("0000000000000000 t drain_stock\t[other]\n0000000000000000 t drain_stock.cold\n");
        assert!(problems(&text).is_empty());
    }

    #[test]
    fn missing_and_doubled_names_are_told() {
        let text = listing().replace(" drain_stock\n", " drain_stock.isra.0\n") + "0 t mlock_fbatch\n";
        assert_eq!(problems(&text), ["symbol drain_stock is missing", "symbol mlock_fbatch is there 2 times"]);
    }
}
