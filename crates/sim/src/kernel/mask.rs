//! A set of CPUs, as the kernel's `struct cpumask`: the schedulers read its bits in place.
//!
//! Beside the bits stands one word that says which of their words hold any, so that what is done with a set takes as
//! long as the set is large, not as the machine may be. native/include/cpumasks.h is the mirror, for sets that a
//! scheduler makes itself.

use super::looks::looked;

/// CPUs that a simulated machine has at most: as many words as a word has bits.
pub const MAX_CPUS: usize = 64 * WORDS;
const WORDS: usize = 64;

/// A set of CPU numbers below [`MAX_CPUS`].
#[repr(C)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuMask {
    bits: [u64; WORDS],
    /// The words that are not 0.
    used: u64,
}

/// The numbers of the bits that are set, in order.
fn ones(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = (word != 0).then(|| word.trailing_zeros())?;
        word &= word - 1;
        Some(bit as usize)
    })
}

impl CpuMask {
    /// The empty set.
    pub const fn none() -> Self {
        Self { bits: [0; WORDS], used: 0 }
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
        let at = cpu as usize / 64;
        if on {
            self.bits[at] |= 1 << (cpu % 64);
        } else {
            self.bits[at] &= !(1 << (cpu % 64));
        }
        self.keep(at);
    }

    /// A word has changed.
    #[inline]
    fn keep(&mut self, at: usize) {
        self.used = self.used & !(1 << at) | u64::from(self.bits[at] != 0) << at;
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
        ones(other.used).for_each(|at| self.bits[at] |= other.bits[at]);
        self.used |= other.used;
    }

    /// Removes all CPUs of the other set.
    pub fn remove(&mut self, other: &Self) {
        for at in ones(self.used & other.used) {
            self.bits[at] &= !other.bits[at];
            self.keep(at);
        }
    }

    /// The CPUs that are in both sets.
    pub fn and(&self, other: &Self) -> Self {
        let mut both = Self::none();
        for at in ones(self.used & other.used) {
            both.bits[at] = self.bits[at] & other.bits[at];
            both.keep(at);
        }
        both
    }

    /// Whether the sets have a CPU in common.
    pub fn meets(&self, other: &Self) -> bool {
        ones(self.used & other.used).any(|at| self.bits[at] & other.bits[at] != 0)
    }

    /// Whether all CPUs are in the other set, too.
    pub fn within(&self, other: &Self) -> bool {
        self.used & !other.used == 0 && ones(self.used).all(|at| self.bits[at] & !other.bits[at] == 0)
    }

    /// Whether it holds no CPU.
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// How many CPUs it holds.
    pub fn count(&self) -> usize {
        ones(self.used).map(|at| self.bits[at].count_ones() as usize).sum()
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
        // The words behind the first one, in the order in which they come; itself again at the end.
        let behind = (self.used & other.used).rotate_right(first as u32 + 1);
        ones(behind).map(|step| (first + 1 + step) % WORDS).find_map(|at| {
            looked(1);
            let bits = word(at);
            (bits != 0).then(|| (at * 64) as u32 + bits.trailing_zeros())
        })
    }

    /// The CPUs in order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.iter_and(self)
    }

    /// The CPUs that are in both sets, in order.
    pub fn iter_and<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = u32> + 'a {
        ones(self.used & other.used).flat_map(|at| {
            looked(1);
            ones(self.bits[at] & other.bits[at]).map(move |bit| {
                looked(1);
                (at * 64 + bit) as u32
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
        let some: CpuMask = [3, 64, 700, 4095].into_iter().collect();
        let all = CpuMask::first(MAX_CPUS);
        assert_eq!(some.next_and_wrap(&all, 0), Some(3));
        assert_eq!(some.next_and_wrap(&all, 4), Some(64));
        assert_eq!(some.next_and_wrap(&all, 701), Some(4095));
        assert_eq!(some.next_and_wrap(&all, 4096), Some(3));
        assert_eq!(some.next_and_wrap(&CpuMask::none(), 5), None);
        assert_eq!(some.next_and_wrap(&CpuMask::first(4), 4), Some(3));
        assert_eq!(some.next_and_wrap(&CpuMask::first(64), 63), Some(3));
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

    #[test]
    fn sets_of_many_words_behave_as_sets() {
        let mut rng = crate::rng::Rng::new(1);
        for _ in 0..200 {
            let mut draw = || (0..20).map(|_| rng.within(0, 4095) as u32 / 7 * 7).collect::<Vec<_>>();
            let (a, b) = (draw(), draw());
            let (sa, sb): (std::collections::BTreeSet<_>, std::collections::BTreeSet<_>) =
                (a.iter().copied().collect(), b.iter().copied().collect());
            let (ma, mb): (CpuMask, CpuMask) = (a.into_iter().collect(), b.into_iter().collect());
            let same = |mask: &CpuMask, set: Vec<u32>| assert_eq!(mask, &set.into_iter().collect::<CpuMask>());
            same(&ma.and(&mb), sa.intersection(&sb).copied().collect());
            let (mut more, mut less) = (ma.clone(), ma.clone());
            more.add(&mb);
            less.remove(&mb);
            same(&more, sa.union(&sb).copied().collect());
            same(&less, sa.difference(&sb).copied().collect());
            assert_eq!(ma.iter_and(&mb).collect::<Vec<_>>(), sa.intersection(&sb).copied().collect::<Vec<_>>());
            assert_eq!((ma.meets(&mb), ma.count()), (!sa.is_disjoint(&sb), sa.len()));
            assert!(less.within(&ma) && (sb.is_subset(&sa) || !more.within(&ma)));
        }
    }
}
