//! How fast this computer is, as emulated machines feel it.
//!
//! A neighbour on the other thread of a core or on its caches, and the core's own clock, take no share of the CPU time away
//! and slow an emulated machine all the same: a fixed piece of work has taken from 0.104 to 0.143 s within a minute. A
//! dilated clock does not know, and what was measured meanwhile looks as much worse. The lab cannot mend that, but it looks
//! at the computer before and after each sample, and says where the arms had different ones.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::LazyLock;
use std::time::Duration;

use entrain_stats::median;
use rustix::time::{ClockId, clock_gettime};

use crate::experiment::STOCK;
use crate::reading::Sample;

/// How long one look takes: a thousandth of a sample with what goes before and after it.
const LOOK: Duration = Duration::from_millis(8);
/// Words of the table: half of what a core's own second cache usually holds.
const WORDS: usize = 1 << 16;
/// Each word names the next one to be read.
static TABLE: LazyLock<Vec<u32>> =
    LazyLock::new(|| (0..WORDS as u32).map(|word| word.wrapping_mul(0x9e37_79b1) >> 3).collect());
/// Steps between two looks at the clock.
const STRIDE: u32 = 1_000;
/// Medians of two arms that are further apart are told: figures of one boot swing by as much anyway.
const UNEVEN: f64 = 0.05;

/// Steps of arithmetic and memory in a microsecond, on all of this computer's CPUs at once as a busy machine has them.
pub(crate) fn look() -> f64 {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..cpus).map(|_| scope.spawn(one)).collect();
        one() + others.into_iter().map(|other| other.join().unwrap_or_default()).sum::<f64>()
    })
}

/// The same on one CPU. A pseudo-random walk, so that neither the compiler nor the CPU knows where it leads.
fn one() -> f64 {
    let table: &[u32] = &TABLE;
    let (began, mut steps, mut at) = (ran(), 0_u64, 1_u32);
    let mut took = Duration::ZERO;
    while took < LOOK {
        for _ in 0..STRIDE {
            at = at.rotate_left(5) ^ table[at as usize % WORDS];
        }
        steps += u64::from(STRIDE);
        took = ran().saturating_sub(began);
    }
    black_box(at);
    steps as f64 / took.as_secs_f64() / 1e6
}

/// CPU time of this thread: who is kept waiting meanwhile, for instance by what a machine does at rest, is not slower.
fn ran() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
}

/// Arms that had a slower or a faster computer than stock in the same boots.
pub(crate) fn uneven(samples: &[Sample]) -> Vec<String> {
    let mut speeds: BTreeMap<(&str, u32), Vec<f64>> = BTreeMap::new();
    for sample in samples.iter().filter(|sample| sample.speed > 0.0) {
        speeds.entry((&sample.arm, sample.boot)).or_default().push(sample.speed);
    }
    let mut ratios: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for ((arm, boot), of_arm) in &speeds {
        let stock = speeds.get(&(STOCK, *boot)).and_then(|of_stock| median(of_stock));
        if let (Some(arm_speed), Some(stock)) = (median(of_arm), stock) {
            ratios.entry(*arm).or_default().push(arm_speed / stock);
        }
    }
    let told = |(arm, ratios): (&str, Vec<f64>)| {
        let ratio = median(&ratios).filter(|ratio| (ratio - 1.0).abs() > UNEVEN)?;
        let way = if ratio < 1.0 { "slower" } else { "faster" };
        Some(format!(
            "this computer was {:.0} % {way} while {arm} was measured than it was for stock: a part of what {arm} differs by \
             is the computer's. More boots or rounds even that out",
            (ratio - 1.0).abs() * 100.0
        ))
    };
    ratios.into_iter().filter_map(told).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(boot: u32, arm: &str, speed: f64) -> Sample {
        let [load, metric, unit] = ["lock@4x", "ops_per_s", "1/s"].map(str::to_owned);
        Sample { boot, arm: arm.to_owned(), load, metric, unit, value: 1.0, round: 0, share: 1.0, noisy: false, speed }
    }

    #[test]
    fn arms_with_another_computer_than_stocks_are_named() {
        let boots = [(1, 100.0, 99.0, 80.0), (2, 200.0, 203.0, 170.0)];
        let samples: Vec<_> = boots
            .into_iter()
            .flat_map(|(boot, stock, even, slow)| {
                [sample(boot, STOCK, stock), sample(boot, "even", even), sample(boot, "slow", slow)]
            })
            .collect();
        let told = uneven(&samples);
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].contains("18 % slower while slow"), "{told:?}");
    }

    #[test]
    fn where_nobody_looked_nothing_is_told() {
        assert!(uneven(&[sample(1, STOCK, 100.0), sample(1, "old", 0.0)]).is_empty());
    }

    #[test]
    fn a_look_sees_every_cpu_work() {
        let (all, alone) = (look(), one());
        assert!(alone > 1.0 && all > alone / 2.0, "{all} steps per µs, {alone} on one CPU");
    }
}
