//! Whether the kernel has the symbols that the module needs.

use std::collections::HashMap;

use entrain_system::kallsyms::symbols;

use crate::known::{Series, VARIABLES};

/// What is wrong with the names that the module needs, one line each; empty if each is there once.
///
/// Names of modules do not count. The addresses, which users may not see, are not needed.
pub fn problems(kallsyms: &str, series: &Series) -> Vec<String> {
    let mut count: HashMap<&str, usize> = HashMap::new();
    for symbol in symbols(kallsyms).filter(|symbol| symbol.module.is_none()) {
        *count.entry(symbol.name).or_default() += 1;
    }
    let is_split = |name: &&str| {
        ["part", "isra", "constprop"].iter().any(|what| {
            let clone = format!("{name}.{what}.");
            count.keys().any(|symbol| symbol.starts_with(&clone))
        })
    };
    let split = series
        .replaced()
        .filter(is_split)
        .map(|name| format!("function {name} was split by the compiler: replacing it would not reach its callers"));
    let names = series.functions().map(|(name, _)| *name).chain(VARIABLES.iter().copied());
    names
        .filter_map(|name| match count.get(name).copied().unwrap_or(0) {
            1 => None,
            0 => Some(format!("symbol {name} is missing")),
            n => Some(format!("symbol {name} is there {n} times")),
        })
        .chain(split)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::known::SERIES;

    fn problems(kallsyms: &str) -> Vec<String> {
        super::problems(kallsyms, &SERIES[0])
    }

    fn listing() -> String {
        let names = SERIES[0].functions().map(|(name, _)| *name).chain(VARIABLES.iter().copied());
        names.map(|name| format!("0000000000000000 t {name}\n")).collect()
    }

    #[test]
    fn each_name_once_is_right() {
        let mut text = listing();
        assert!(problems(&text).is_empty());
        text.push_str("0000000000000000 t mlock_folio_batch\t[other]\n0000000000000000 t mlock_folio_batch.cold\n");
        assert!(problems(&text).is_empty());
    }

    #[test]
    fn a_split_function_is_told() {
        let text = listing() + "0 t flush_all_cpus_locked.part.0\n0 t lru_add_drain_all.cold\n";
        let out = problems(&text);
        assert!(out.len() == 1 && out[0].contains("flush_all_cpus_locked was split"), "{out:?}");
    }

    #[test]
    fn missing_and_doubled_names_are_told() {
        let text = listing().replace(" mlock_folio_batch\n", " mlock_folio_batch.isra.0\n") + "0 t mlock_fbatch\n";
        assert_eq!(problems(&text), ["symbol mlock_folio_batch is missing", "symbol mlock_fbatch is there 2 times"]);
    }
}
