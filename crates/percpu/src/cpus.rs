//! Sets of CPUs, as the kernel lists them.

use std::fs;
use std::str::FromStr;

/// A set of CPU numbers.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct CpuSet(Vec<bool>);

/// A list of CPUs that can not be read.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("'{0}' is no list of CPUs (such as 0,2-3)")]
pub struct BadList(String);

/// More CPUs than any kernel has; keeps a wrong list from taking all memory.
const MOST: usize = 1 << 16;

impl CpuSet {
    /// No CPU at all.
    pub fn none() -> Self {
        Self::default()
    }

    /// CPUs that the kernel was told to isolate at boot: `isolcpus=` or `nohz_full=`.
    pub fn isolated() -> Self {
        let mut all = Self::none();
        for file in ["isolated", "nohz_full"] {
            // nohz_full holds "(null)" where the kernel was booted without; that is no CPU.
            let set = fs::read_to_string(format!("/sys/devices/system/cpu/{file}")).ok().and_then(|t| t.parse().ok());
            if let Some(CpuSet(more)) = set {
                more.iter().enumerate().filter(|(_, is)| **is).for_each(|(cpu, _)| all.add(cpu));
            }
        }
        all
    }

    /// One more than the highest number that a CPU of this machine may ever have.
    pub fn possible() -> usize {
        let text = fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
        let set: Self = text.parse().unwrap_or_default();
        set.0.len().max(std::thread::available_parallelism().map_or(1, usize::from))
    }

    /// Adds a CPU.
    pub fn add(&mut self, cpu: usize) {
        if self.0.len() <= cpu {
            self.0.resize(cpu + 1, false);
        }
        self.0[cpu] = true;
    }

    /// Whether the CPU is in the set.
    pub fn has(&self, cpu: usize) -> bool {
        self.0.get(cpu).copied().unwrap_or(false)
    }
}

impl FromStr for CpuSet {
    type Err = BadList;

    fn from_str(text: &str) -> Result<Self, BadList> {
        let bad = || BadList(text.trim().to_owned());
        let mut set = Self::none();
        for part in text.trim().split(',').filter(|p| !p.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last): (usize, usize) = (first.parse().map_err(|_| bad())?, last.parse().map_err(|_| bad())?);
            if first > last || last >= MOST {
                return Err(bad());
            }
            (first..=last).for_each(|cpu| set.add(cpu));
        }
        Ok(set)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_kernels_lists() {
        let set: CpuSet = "0,2-3\n".parse().unwrap();
        assert!(set.has(0) && !set.has(1) && set.has(2) && set.has(3) && !set.has(4));
        assert_eq!("\n".parse::<CpuSet>().unwrap(), CpuSet::none());
        for bad in ["(null)", "3-2", "0-99999999", "a"] {
            assert!(bad.parse::<CpuSet>().is_err(), "{bad}");
        }
        assert!(CpuSet::possible() >= 1);
    }
}
