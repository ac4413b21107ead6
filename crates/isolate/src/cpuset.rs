//! Sets of CPUs in the kernel's notations: lists (`0-3,8`) and masks (`ff,00000003`).

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

/// CPUs a kernel can have at most; BPF's bit mask is this long.
pub(crate) const MAX_CPUS: u32 = 8192;

/// A set of CPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuSet(BTreeSet<u32>);

impl CpuSet {
    /// Parses a mask as `/proc/irq/default_smp_affinity` has it: hexadecimal words of 32 bits, the highest first.
    pub(crate) fn from_mask(text: &str) -> Option<Self> {
        let mut cpus = BTreeSet::new();
        for (word, digits) in text.trim().rsplit(',').enumerate() {
            let bits = u32::from_str_radix(digits, 16).ok()?;
            cpus.extend((0..32).filter(|bit| bits >> bit & 1 == 1).map(|bit| word as u32 * 32 + bit));
        }
        Some(Self(cpus))
    }

    /// As such a mask.
    pub(crate) fn to_mask(&self) -> String {
        let words = self.0.last().map_or(1, |last| last / 32 + 1);
        let word =
            |word: u32| self.0.iter().filter(|cpu| *cpu / 32 == word).fold(0_u32, |bits, cpu| bits | 1 << (cpu % 32));
        let first = format!("{:x}", word(words - 1));
        (0..words - 1).rev().fold(first, |text, n| format!("{text},{:08x}", word(n)))
    }

    pub(crate) fn contains(&self, cpu: u32) -> bool {
        self.0.contains(&cpu)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().copied()
    }

    pub(crate) fn union(&self, other: &Self) -> Self {
        Self(&self.0 | &other.0)
    }

    pub(crate) fn common(&self, other: &Self) -> Self {
        Self(&self.0 & &other.0)
    }

    /// These without the other ones.
    pub(crate) fn without(&self, other: &Self) -> Self {
        Self(&self.0 - &other.0)
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<I: IntoIterator<Item = u32>>(cpus: I) -> Self {
        Self(cpus.into_iter().collect())
    }
}

/// Not a list of CPUs.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is no list of CPUs below {MAX_CPUS}: write it like 2-5,8")]
pub struct ParseError(String);

impl FromStr for CpuSet {
    type Err = ParseError;

    /// Parses a list: numbers and ranges, ranges also with a stride (`0-31:2/4`, two of every four).
    fn from_str(text: &str) -> Result<Self, ParseError> {
        let wrong = || ParseError(text.trim().to_owned());
        let number = |text: &str| text.parse::<u32>().ok().filter(|cpu| *cpu < MAX_CPUS).ok_or_else(wrong);
        let mut cpus = BTreeSet::new();
        // A CPU that is isolated but not there is written `(null)` by nohz_full of a kernel without any.
        if matches!(text.trim(), "" | "(null)") {
            return Ok(Self::default());
        }
        for part in text.trim().split(',') {
            let (range, stride) = part.split_once(':').map_or((part, None), |(range, stride)| (range, Some(stride)));
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last) = (number(first)?, number(last)?);
            let (used, group) = match stride.map(|stride| stride.split_once('/')) {
                None => (1, 1),
                Some(Some((used, group))) => (number(used)?, number(group)?),
                Some(None) => return Err(wrong()),
            };
            if last < first || group == 0 {
                return Err(wrong());
            }
            cpus.extend((first..=last).filter(|cpu| (cpu - first) % group < used));
        }
        Ok(Self(cpus))
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0.iter().copied().peekable();
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
    }

    #[test]
    fn masks_are_words_of_32_bits() {
        assert_eq!(CpuSet::from_mask("3,00000005\n").unwrap().to_string(), "0,2,32-33");
        assert_eq!("0,2,32-33".parse::<CpuSet>().unwrap().to_mask(), "3,00000005");
        assert_eq!("1".parse::<CpuSet>().unwrap().to_mask(), "2");
        assert!(CpuSet::from_mask("xyz").is_none());
    }

    #[test]
    fn sets() {
        let [a, b]: [CpuSet; 2] = ["0-3", "2-5"].map(|text| text.parse().unwrap());
        assert_eq!(a.union(&b).to_string(), "0-5");
        assert_eq!(a.common(&b).to_string(), "2-3");
        assert_eq!(a.without(&b).to_string(), "0-1");
    }
}
