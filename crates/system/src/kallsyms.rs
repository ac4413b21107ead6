//! The kernel's symbols, `/proc/kallsyms`.

/// One line of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symbol<'a> {
    /// 0 where the kernel hides addresses from this process (`kernel.kptr_restrict`).
    pub address: u64,
    /// Its kind as nm(1) has it: `t` and `T` are functions, `d` and `D` variables, lower case is local.
    pub kind: char,
    /// Its name.
    pub name: &'a str,
    /// The module that it is in, without brackets; none for the kernel itself.
    pub module: Option<&'a str>,
}

impl<'a> Symbol<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace();
        let address = u64::from_str_radix(words.next()?, 16).ok()?;
        let kind = words.next()?.chars().next()?;
        let name = words.next()?;
        let module = words.next().map(|word| word.trim_start_matches('[').trim_end_matches(']'));
        Some(Self { address, kind, name, module })
    }
}

/// The symbols in the file's text; lines that are none are left out.
pub fn symbols(text: &str) -> impl Iterator<Item = Symbol<'_>> {
    text.lines().filter_map(Symbol::parse)
}

/// The kernel's functions, by address.
#[derive(Debug, Default)]
pub struct Functions {
    /// Address, and where the name begins and ends in `names`.
    functions: Vec<(u64, u32, u32)>,
    names: String,
}

impl Functions {
    /// Takes the functions out of the file's text. Where addresses are hidden, none is taken.
    pub fn parse(text: &str) -> Self {
        let mut all = Self::default();
        for symbol in symbols(text) {
            // Functions only, and not the marks that frame sections and prefixes.
            if symbol.address == 0
                || !matches!(symbol.kind, 't' | 'T' | 'w' | 'W')
                || symbol.name.starts_with("__pfx_")
                || symbol.name.starts_with("__cfi_")
            {
                continue;
            }
            let begin = all.names.len() as u32;
            all.names.push_str(symbol.name);
            all.functions.push((symbol.address, begin, all.names.len() as u32));
        }
        all.functions.sort_unstable();
        all
    }

    /// The function that holds an address.
    pub fn name(&self, address: u64) -> Option<&str> {
        let at = self.functions.partition_point(|(start, ..)| *start <= address).checked_sub(1)?;
        // The first of those at one address; kallsyms has no sizes, so a hit far behind the last function is one.
        let start = self.functions[at].0;
        let at = self.functions.partition_point(|(other, ..)| *other < start);
        let (_, begin, end) = self.functions[at];
        (address - start < 1 << 20).then(|| &self.names[begin as usize..end as usize])
    }

    /// The address of a function.
    pub fn address(&self, name: &str) -> Option<u64> {
        let found =
            self.functions.iter().find(|(_, begin, end)| &self.names[*begin as usize..*end as usize] == name)?;
        Some(found.0)
    }

    /// Whether there is none: the kernel hides their addresses.
    pub fn is_empty(&self) -> bool {
        self.functions.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TEXT: &str = "\
ffffffff81000000 T _text
ffffffff81000100 t __pfx_queue_work_on
ffffffff81000110 T queue_work_on
ffffffff81000200 T __lru_add_drain_all
ffffffff81000200 T alias
ffffffff81000300 T __x64_sys_mbind
ffffffff81000400 T do_syscall_64
ffffffff81000500 D not_code
ffffffffc0000000 t bpf_prog_6deef7357e7b4530_watch_queue_work\t[bpf]
";

    #[test]
    fn addresses_find_their_function() {
        let functions = Functions::parse(TEXT);
        assert_eq!(functions.name(0xffff_ffff_8100_0115), Some("queue_work_on"));
        assert_eq!(functions.name(0xffff_ffff_8100_0555), Some("do_syscall_64"), "data is no function");
        assert_eq!(functions.name(0xffff_ffff_8000_0000), None, "before the first");
        assert_eq!(functions.name(0xffff_ffff_9000_0000), None, "far behind");
        assert_eq!(functions.address("__lru_add_drain_all"), Some(0xffff_ffff_8100_0200));
        assert!(Functions::parse("0000000000000000 T _text\n").is_empty(), "hidden addresses");
    }

    #[test]
    fn a_line_is_a_symbol_and_its_module() {
        let all: Vec<Symbol<'_>> = symbols("ffff0 D arch_freq_scale\nffff1 t kvm_init\t[kvm]\nno symbol\n\n").collect();
        assert_eq!(all[0], Symbol { address: 0xffff0, kind: 'D', name: "arch_freq_scale", module: None });
        assert_eq!(all[1], Symbol { address: 0xffff1, kind: 't', name: "kvm_init", module: Some("kvm") });
        assert_eq!(all.len(), 2);
    }

    proptest! {
        #[test]
        fn any_text_parses(text in "([0-9a-f]{0,17}[ \t][tTdD ][ \t]\\PC{0,8}\n){0,8}", address: u64) {
            let functions = Functions::parse(&text);
            if let Some(name) = functions.name(address) {
                prop_assert!(functions.address(name).is_some());
            }
        }
    }
}
