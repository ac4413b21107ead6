//! A set of CPUs, as the kernel's `struct cpumask`: the schedulers read its bits in place.

/// CPUs that a simulated machine has at most.
pub const MAX_CPUS: usize = 1024;
const WORDS: usize = MAX_CPUS / 64;

/// A set of CPU numbers below [`MAX_CPUS`].
#[repr(C)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuMask {
    bits: [u64; WORDS],
}

impl CpuMask {
    /// The empty set.
    pub const fn none() -> Self {
        Self { bits: [0; WORDS] }
    }

    /// CPUs `0..n`.
    pub fn first(n: usize) -> Self {
        (0..n as u32).collect()
    }

    /// Whether the CPU is in the set.
    #[inline]
    pub fn has(&self, cpu: u32) -> bool {
        self.bits[cpu as usize / 64] >> (cpu % 64) & 1 != 0
    }

    /// Adds or removes the CPU.
    #[inline]
    pub fn set(&mut self, cpu: u32, on: bool) {
        let bit = 1 << (cpu % 64);
        if on {
            self.bits[cpu as usize / 64] |= bit;
        } else {
            self.bits[cpu as usize / 64] &= !bit;
        }
    }

    /// Removes the CPU and says whether it was there.
    #[inline]
    pub fn take(&mut self, cpu: u32) -> bool {
        let was = self.has(cpu);
        self.set(cpu, false);
        was
    }

    /// Adds all CPUs of the other set.
    pub fn add(&mut self, other: &Self) {
        self.bits.iter_mut().zip(other.bits).for_each(|(a, b)| *a |= b);
    }

    /// Removes all CPUs of the other set.
    pub fn remove(&mut self, other: &Self) {
        self.bits.iter_mut().zip(other.bits).for_each(|(a, b)| *a &= !b);
    }

    /// The CPUs that are in both sets.
    pub fn and(&self, other: &Self) -> Self {
        let mut both = self.clone();
        both.bits.iter_mut().zip(other.bits).for_each(|(a, b)| *a &= b);
        both
    }

    /// Whether the sets have a CPU in common.
    pub fn meets(&self, other: &Self) -> bool {
        self.bits.iter().zip(other.bits).any(|(a, b)| a & b != 0)
    }

    /// Whether all CPUs are in the other set, too.
    pub fn within(&self, other: &Self) -> bool {
        self.bits.iter().zip(other.bits).all(|(a, b)| a & !b == 0)
    }

    /// Whether it holds no CPU.
    pub fn is_empty(&self) -> bool {
        self.bits.iter().all(|word| *word == 0)
    }

    /// How many CPUs it holds.
    pub fn count(&self) -> usize {
        self.bits.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// The first CPU at `from` or after it that is in both sets, going on at 0 after the last.
    pub fn next_and_wrap(&self, other: &Self, from: u32) -> Option<u32> {
        let from = from as usize % MAX_CPUS;
        let word = |at: usize| self.bits[at] & other.bits[at];
        let first = from / 64;
        let head = word(first) & (!0 << (from % 64));
        if head != 0 {
            return Some((first * 64) as u32 + head.trailing_zeros());
        }
        (1..=WORDS).map(|step| (first + step) % WORDS).find_map(|at| {
            let bits = word(at);
            (bits != 0).then(|| (at * 64) as u32 + bits.trailing_zeros())
        })
    }

    /// The CPUs in order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.bits.iter().enumerate().flat_map(|(at, word)| {
            let mut word = *word;
            std::iter::from_fn(move || {
                let bit = (word != 0).then(|| word.trailing_zeros())?;
                word &= word - 1;
                Some((at * 64) as u32 + bit)
            })
        })
    }
}

impl Default for CpuMask {
    fn default() -> Self {
        Self::none()
    }
}

impl FromIterator<u32> for CpuMask {
    fn from_iter<I: IntoIterator<Item = u32>>(cpus: I) -> Self {
        let mut mask = Self::none();
        cpus.into_iter().for_each(|cpu| mask.set(cpu, true));
        mask
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn searches_wrap_around() {
        let some: CpuMask = [3, 64, 700].into_iter().collect();
        let all = CpuMask::first(MAX_CPUS);
        assert_eq!(some.next_and_wrap(&all, 0), Some(3));
        assert_eq!(some.next_and_wrap(&all, 4), Some(64));
        assert_eq!(some.next_and_wrap(&all, 701), Some(3));
        assert_eq!(some.next_and_wrap(&CpuMask::none(), 5), None);
        assert_eq!(some.next_and_wrap(&CpuMask::first(4), 4), Some(3));
    }

    #[test]
    fn sets_behave_as_sets() {
        let mut mask = CpuMask::first(10);
        assert!(mask.take(9) && !mask.take(9));
        assert_eq!(mask.iter().collect::<Vec<_>>(), (0..9).collect::<Vec<_>>());
        assert!(mask.within(&CpuMask::first(9)) && mask.count() == 9);
        mask.remove(&CpuMask::first(9));
        assert!(mask.is_empty() && !mask.meets(&CpuMask::first(9)));
    }
}
