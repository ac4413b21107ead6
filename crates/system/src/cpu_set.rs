//! Sets of CPUs in the kernel's notations: lists (`0-3,8`) and masks (`ff,00000003`).

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

/// CPUs that a kernel can have at most: x86's MAXSMP, the greatest NR_CPUS of all architectures.
pub const MAX_CPUS: u32 = 8192;

/// A set of CPUs, each below [`MAX_CPUS`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct CpuSet {
    /// 64 CPUs a word, the lowest first. The last word is not zero, so that equal sets have equal words.
    words: Vec<u64>,
}

impl CpuSet {
    /// Parses a mask as `/proc/irq/default_smp_affinity` has it: hexadecimal words of 32 bits, the highest first.
    pub fn from_mask(text: &str) -> Option<Self> {
        let mut cpus = Self::default();
        for (word, digits) in text.trim().rsplit(',').enumerate() {
            let bits = u32::from_str_radix(digits, 16).ok()?;
            let word = u32::try_from(word).ok().filter(|word| *word < MAX_CPUS / 32)?;
            cpus.extend((0..32).filter(|bit| bits >> bit & 1 == 1).map(|bit| word * 32 + bit));
        }
        Some(cpus)
    }

    /// As such a mask.
    pub fn to_mask(&self) -> String {
        let halves: Vec<u32> = self.words.iter().flat_map(|word| [*word as u32, (*word >> 32) as u32]).collect();
        let (first, rest) = match halves.iter().rposition(|half| *half != 0) {
            Some(last) => (halves[last], &halves[..last]),
            None => (0, &halves[..]),
        };
        rest.iter().rev().fold(format!("{first:x}"), |text, half| format!("{text},{half:08x}"))
    }

    /// Parses a list as [`FromStr`] does, but leaves out the parts that are none. For files of the kernel of which half an
    /// answer serves better than none.
    pub fn lossy(text: &str) -> Self {
        let mut cpus = Self::default();
        for part in text.trim().split(',') {
            if let Some(part) = parse_part(part) {
                cpus.extend(part);
            }
        }
        cpus
    }

    /// Adds a CPU; one that no kernel can have is left out.
    pub fn insert(&mut self, cpu: u32) {
        if cpu < MAX_CPUS {
            let word = (cpu / 64) as usize;
            if self.words.len() <= word {
                self.words.resize(word + 1, 0);
            }
            self.words[word] |= 1 << (cpu % 64);
        }
    }

    /// Whether a CPU is among them.
    pub fn contains(&self, cpu: u32) -> bool {
        self.words.get((cpu / 64) as usize).is_some_and(|word| word >> (cpu % 64) & 1 == 1)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// How many they are.
    pub fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// The lowest.
    pub fn first(&self) -> Option<u32> {
        self.iter().next()
    }

    /// The highest.
    pub fn last(&self) -> Option<u32> {
        let word = self.words.last()?;
        Some(self.words.len() as u32 * 64 - 1 - word.leading_zeros())
    }

    /// In ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let bits = |word: u64| (0..64).filter(move |bit| word >> bit & 1 == 1);
        (0..).zip(&self.words).flat_map(move |(index, word)| bits(*word).map(move |bit| index * 64 + bit))
    }

    /// Those of either set.
    pub fn union(&self, other: &Self) -> Self {
        self.combine(other, |own, others| own | others)
    }

    /// Those of both sets.
    pub fn common(&self, other: &Self) -> Self {
        self.combine(other, |own, others| own & others)
    }

    /// These without the other ones.
    pub fn without(&self, other: &Self) -> Self {
        self.combine(other, |own, others| own & !others)
    }

    /// Whether all of them are among the other ones.
    pub fn is_subset(&self, of: &Self) -> bool {
        self.without(of).is_empty()
    }

    fn combine(&self, other: &Self, of: impl Fn(u64, u64) -> u64) -> Self {
        let at = |words: &[u64], index: usize| words.get(index).copied().unwrap_or(0);
        let length = self.words.len().max(other.words.len());
        let mut words: Vec<u64> = (0..length).map(|i| of(at(&self.words, i), at(&other.words, i))).collect();
        words.truncate(words.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1));
        Self { words }
    }
}

/// One part of a list: a number or a range, a range also with a stride (`0-31:2/4`, two of every four).
fn parse_part(part: &str) -> Option<impl Iterator<Item = u32> + use<>> {
    let number = |text: &str| text.parse::<u32>().ok().filter(|cpu| *cpu < MAX_CPUS);
    let (range, stride) = part.split_once(':').map_or((part, None), |(range, stride)| (range, Some(stride)));
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    let (first, last) = (number(first)?, number(last)?);
    let (used, group) = match stride {
        None => (1, 1),
        Some(stride) => {
            let (used, group) = stride.split_once('/')?;
            (number(used)?, number(group)?)
        }
    };
    (first <= last && group > 0).then(|| (first..=last).filter(move |cpu| (cpu - first) % group < used))
}

impl Extend<u32> for CpuSet {
    fn extend<I: IntoIterator<Item = u32>>(&mut self, cpus: I) {
        cpus.into_iter().for_each(|cpu| self.insert(cpu));
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<I: IntoIterator<Item = u32>>(cpus: I) -> Self {
        let mut set = Self::default();
        set.extend(cpus);
        set
    }
}

/// Not a list of CPUs.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is no list of CPUs below {MAX_CPUS}: write it like 2-5,8")]
pub struct ParseError(String);

impl FromStr for CpuSet {
    type Err = ParseError;

    /// Parses a list of numbers and ranges, ranges also with a stride. White space around it does not matter; an empty
    /// list is an empty set.
    fn from_str(text: &str) -> Result<Self, ParseError> {
        let text = text.trim();
        let mut cpus = Self::default();
        // A CPU that is isolated but not there is written `(null)` by nohz_full of a kernel without any.
        if matches!(text, "" | "(null)") {
            return Ok(cpus);
        }
        for part in text.split(',') {
            cpus.extend(parse_part(part).ok_or_else(|| ParseError(text.to_owned()))?);
        }
        Ok(cpus)
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.iter().peekable();
        let mut comma = "";
        while let Some(first) = rest.next() {
            let mut last = first;
            while rest.next_if_eq(&(last + 1)).is_some() {
                last += 1;
            }
            match last - first {
                0 => write!(f, "{comma}{first}")?,
                _ => write!(f, "{comma}{first}-{last}")?,
            }
            comma = ",";
        }
        Ok(())
    }
}

impl Serialize for CpuSet {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn numbers(text: &str) -> Vec<u32> {
        text.parse::<CpuSet>().unwrap().iter().collect()
    }

    #[test]
    fn lists_are_read_and_written_as_the_kernel_does() {
        for text in ["", "0", "0-3,8", "1-2,4,62-65"] {
            assert_eq!(text.parse::<CpuSet>().unwrap().to_string(), text);
        }
        assert_eq!("0-7:1/4\n".parse::<CpuSet>().unwrap().to_string(), "0,4");
        assert!("(null)".parse::<CpuSet>().unwrap().is_empty());
        for text in ["x", "3-1", "0-", "9000", "0-7:1", "0-3:1/0"] {
            let error = text.parse::<CpuSet>().unwrap_err();
            assert!(error.to_string().contains("write it like"), "{error}");
        }
        assert_eq!(numbers("0-2,7\n"), [0, 1, 2, 7]);
        assert_eq!(numbers("0-2,7"), [0, 1, 2, 7]);
        assert_eq!(numbers("0"), [0]);
        assert_eq!(numbers(""), []);
        for broken in ["a", "3-1", "0-4000000000", "0-"] {
            assert!(broken.parse::<CpuSet>().is_err(), "{broken:?}");
        }
    }

    #[test]
    fn hostile_lists_end() {
        assert_eq!(CpuSet::lossy("x,3-1,7\n").iter().collect::<Vec<_>>(), [7]);
        assert!(CpuSet::lossy("0-4294967295").len() <= 1025);
    }

    #[test]
    fn masks_are_words_of_32_bits() {
        assert_eq!(CpuSet::from_mask("3,00000005\n").unwrap().to_string(), "0,2,32-33");
        assert_eq!("0,2,32-33".parse::<CpuSet>().unwrap().to_mask(), "3,00000005");
        assert_eq!("1".parse::<CpuSet>().unwrap().to_mask(), "2");
        assert_eq!("64".parse::<CpuSet>().unwrap().to_mask(), "1,00000000,00000000");
        assert_eq!(CpuSet::default().to_mask(), "0");
        assert!(CpuSet::from_mask("xyz").is_none());
    }

    #[test]
    fn sets() {
        let [a, b]: [CpuSet; 2] = ["0-3", "2-5"].map(|text| text.parse().unwrap());
        assert_eq!(a.union(&b).to_string(), "0-5");
        assert_eq!(a.common(&b).to_string(), "2-3");
        assert_eq!(a.without(&b).to_string(), "0-1");
        assert!(a.common(&b).is_subset(&a) && !a.is_subset(&b));
        assert_eq!((b.first(), b.last()), (Some(2), Some(5)));
        assert_eq!(CpuSet::default().last(), None);
    }

    proptest! {
        #[test]
        fn any_text_ends_and_a_list_that_is_one_comes_back(text in "[-0-9,:/x ]{0,60}") {
            let lossy = CpuSet::lossy(&text);
            if let Ok(cpus) = text.parse::<CpuSet>() {
                prop_assert_eq!(&cpus, &lossy);
                prop_assert_eq!(&cpus.to_string().parse::<CpuSet>().unwrap(), &cpus);
                prop_assert_eq!(&CpuSet::from_mask(&cpus.to_mask()).unwrap(), &cpus);
            }
            CpuSet::from_mask(&text);
        }

        #[test]
        fn it_is_the_set_of_its_numbers(
            a in prop::collection::btree_set(0..300u32, 0..40), b in prop::collection::btree_set(0..300u32, 0..40),
        ) {
            let [x, y] = [&a, &b].map(|set| set.iter().copied().collect::<CpuSet>());
            let same = |set: CpuSet, numbers: BTreeSet<u32>| {
                set.iter().eq(numbers.iter().copied()) && set.len() == numbers.len()
                    && set.last() == numbers.last().copied() && set.is_empty() == numbers.is_empty()
            };
            prop_assert!(same(x.union(&y), &a | &b) && same(x.common(&y), &a & &b) && same(x.without(&y), &a - &b));
            prop_assert_eq!(x.is_subset(&y), a.is_subset(&b));
        }
    }
}
