//! Which CPU is the most loaded, which the least, which idle: kept in a tree over the CPUs' numbers, so that balancing
//! looks at as many nodes as the machine's size has bits instead of at every CPU.
//!
//! What changes a CPU's load only marks the CPU; marks are worked off when somebody asks.

use std::ops::Range;

use super::super::looks::looked;
use super::super::mask::{CpuMask, MAX_CPUS};

/// What a CPU is to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Standing {
    /// The weights of all that want to run on it.
    pub load: u64,
    /// Somebody waits there, and may be taken: its queue is not locked.
    pub gives: bool,
    /// Nobody runs or waits there, and nobody is about to.
    pub idle: bool,
}

/// No CPU, of those that are ordered from the least on.
const NONE: u64 = u64::MAX;

/// The index. A load and the CPU's number are one word, ordered as they are asked for.
#[derive(Debug)]
pub(super) struct Loads {
    leaves: usize,
    /// The greatest of the CPUs that give, below each node; 0: none does. Of equals the first CPU.
    most: Vec<u64>,
    /// The least of all CPUs, below each node. Of equals the first CPU.
    least: Vec<u64>,
    pub idle: CpuMask,
    pub changed: CpuMask,
}

impl Default for Loads {
    fn default() -> Self {
        Self::new(1)
    }
}

impl Loads {
    pub(super) fn new(cpus: u32) -> Self {
        let leaves = (cpus as usize).next_power_of_two();
        Self {
            leaves,
            most: vec![0; 2 * leaves],
            least: vec![NONE; 2 * leaves],
            idle: CpuMask::none(),
            changed: CpuMask::first(cpus as usize),
        }
    }

    /// A CPU stands like this now.
    pub(super) fn put(&mut self, cpu: u32, is: Standing) {
        debug_assert!(is.load >> 52 == 0, "the weights of all tasks have room beside a CPU's number");
        let backwards = (MAX_CPUS as u64 - 1) - u64::from(cpu);
        let most = if is.gives { is.load << 12 | backwards } else { 0 };
        let least = is.load << 12 | u64::from(cpu);
        self.idle.set(cpu, is.idle);
        let mut at = self.leaves + cpu as usize;
        (self.most[at], self.least[at]) = (most, least);
        while at > 1 {
            at /= 2;
            looked(1);
            let most = self.most[2 * at].max(self.most[2 * at + 1]);
            let least = self.least[2 * at].min(self.least[2 * at + 1]);
            if (self.most[at], self.least[at]) == (most, least) {
                break;
            }
            (self.most[at], self.least[at]) = (most, least);
        }
    }

    /// The most loaded CPU that gives among `range`, without one of them.
    pub(super) fn busiest(&self, range: Range<u32>, but: u32) -> Option<u32> {
        let most = self.most_of(range.start, but.min(range.end)).max(self.most_of(but + 1, range.end));
        (most != 0).then(|| (MAX_CPUS as u64 - 1 - most % MAX_CPUS as u64) as u32)
    }

    fn most_of(&self, from: u32, until: u32) -> u64 {
        let (mut a, mut b) = (self.leaves + from as usize, self.leaves + until as usize);
        let mut most = 0;
        while a < b {
            looked(1);
            if a % 2 == 1 {
                most = most.max(self.most[a]);
                a += 1;
            }
            if b % 2 == 1 {
                b -= 1;
                most = most.max(self.most[b]);
            }
            (a, b) = (a / 2, b / 2);
        }
        most
    }

    /// The least loaded CPU of all.
    pub(super) fn idlest(&self) -> u32 {
        (self.least[1] % MAX_CPUS as u64) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_says_what_a_look_at_each_cpu_says() {
        let mut rng = crate::rng::Rng::new(3);
        for cpus in [1_u32, 2, 5, 64, 100] {
            let mut loads = Loads::new(cpus);
            let mut all = vec![Standing { load: 0, gives: false, idle: true }; cpus as usize];
            (0..cpus).for_each(|cpu| loads.put(cpu, all[cpu as usize]));
            for _ in 0..500 {
                let cpu = rng.within(0, u64::from(cpus) - 1) as u32;
                let load = rng.within(0, 5);
                let is = Standing { load, gives: load > 0 && rng.within(0, 1) == 0, idle: load == 0 };
                all[cpu as usize] = is;
                loads.put(cpu, is);
                let from = rng.within(0, u64::from(cpus) - 1) as u32;
                let until = rng.within(from.into(), cpus.into()) as u32;
                let but = rng.within(from.into(), u64::from(cpus) - 1) as u32;
                let scan = (from..until)
                    .filter(|other| *other != but && all[*other as usize].gives)
                    .max_by_key(|other| (all[*other as usize].load, u32::MAX - *other));
                assert_eq!(loads.busiest(from..until, but), scan, "{from}..{until} but {but}");
                let least = (0..cpus).min_by_key(|other| (all[*other as usize].load, *other));
                assert_eq!(Some(loads.idlest()), least);
                assert_eq!(loads.idle.has(cpu), is.idle);
            }
        }
    }
}
