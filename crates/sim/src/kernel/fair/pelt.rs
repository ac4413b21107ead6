//! Averages of loads over time, in which what was counts half as much after 32 periods: after kernel/sched/pelt.c, whose
//! periods of 2^20 ns are taken in one step here, however many have passed.

use std::sync::LazyLock;

use super::{FairTask, Kernel, TaskId};

/// A half of the weight is gone after so many bits' worth of ns.
const HALF_BITS: u32 = 25;
/// Steps of the table below, between which a line is near enough, however many small steps add up.
const STEPS: usize = 1024;
const STEP_BITS: u32 = HALF_BITS - STEPS.ilog2();

/// What is left of 2^32 after so many steps.
static LEFT: LazyLock<[u64; STEPS + 1]> = LazyLock::new(|| {
    std::array::from_fn(|step| (0.5_f64.powf(step as f64 / STEPS as f64) * 2_f64.powi(32)).round() as u64)
});

/// What is left of a value after some time, ns.
fn decayed(value: u64, ns: u64) -> u64 {
    let halves = ns >> HALF_BITS;
    if halves >= 32 {
        return 0;
    }
    let (step, rest) = ((ns >> STEP_BITS) as usize % STEPS, ns % (1 << STEP_BITS));
    let left = LEFT[step] - (((LEFT[step] - LEFT[step + 1]) * rest) >> STEP_BITS);
    ((u128::from(value) * u128::from(left)) >> (32 + halves)) as u64
}

/// The average of a weight that comes and goes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Average {
    value: u64,
    at: u64,
    /// What it goes towards.
    pub weight: u64,
}

impl Average {
    /// One that has been as it is for ever: `init_entity_runnable_average()`.
    pub(super) fn settled(weight: u64, now: u64) -> Self {
        Self { value: weight, at: now, weight }
    }

    /// The average at a time that is not before any other that it was told.
    pub(super) fn at(&self, now: u64) -> u64 {
        let passed = now.saturating_sub(self.at);
        decayed(self.value, passed) + (self.weight - decayed(self.weight, passed))
    }

    /// From now on the weight is another.
    pub(super) fn set(&mut self, weight: u64, now: u64) {
        *self = Self { value: self.at(now), at: self.at.max(now), weight };
    }

    /// What another average has come to belongs to this one now, or no more.
    pub(super) fn shift(&mut self, value: u64, joins: bool, now: u64) {
        self.set(self.weight, now);
        self.value = if joins { self.value + value } else { self.value.saturating_sub(value) };
    }
}

impl Kernel {
    /// `enqueue_load_avg()`, of a task that may have been on another queue: `attach_entity_load_avg()`.
    pub(super) fn attach_load(&mut self, id: TaskId, cpu: u32, weight: u64) {
        let now = self.now;
        let FairTask { mut load, load_cpu, .. } = self.task(id).fair;
        match load_cpu {
            None => load = Average::settled(weight, now),
            Some(_) => load.set(weight, now),
        }
        if load_cpu != Some(cpu) {
            let value = load.at(now);
            if let Some(before) = load_cpu {
                self.fair_queue_mut(before).load.shift(value, false, now);
            }
            self.fair_queue_mut(cpu).load.shift(value, true, now);
        }
        let all = &mut self.fair_queue_mut(cpu).load;
        all.set(all.weight + weight, now);
        let se = &mut self.task_mut(id).fair;
        (se.load, se.load_cpu) = (load, Some(cpu));
    }

    /// `dequeue_load_avg()`: what it has come to decays where it is.
    pub(super) fn rest_load(&mut self, id: TaskId, cpu: u32) {
        let now = self.now;
        let weight = self.task(id).fair.load.weight;
        self.task_mut(id).fair.load.set(0, now);
        let all = &mut self.fair_queue_mut(cpu).load;
        all.set(all.weight - weight, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_average_follows_its_weight_by_halves() {
        let half = 1 << HALF_BITS;
        let mut average = Average::default();
        average.set(1 << 20, 0);
        assert_eq!(average.at(0), 0);
        assert!(average.at(half).abs_diff(1 << 19) <= 1);
        assert!(average.at(2 * half).abs_diff(3 << 18) <= 2);
        assert_eq!(average.at(u64::MAX / 2), 1 << 20);
        average.set(0, half);
        assert!(average.at(2 * half).abs_diff(1 << 18) <= 2);
        assert_eq!(Average::settled(7, 5).at(1_000_000_000), 7);
    }

    #[test]
    fn steps_are_as_long_as_one() {
        let mut average = Average::settled(1 << 30, 0);
        average.set(0, 0);
        let whole = average;
        for ns in (0..=100_000_000).step_by(777_777) {
            average.set(0, ns);
            let (stepped, whole) = (average.at(ns) as f64, whole.at(ns) as f64);
            assert!((stepped / whole - 1.0).abs() < 0.001, "{ns}: {stepped}, {whole}");
        }
    }
}
