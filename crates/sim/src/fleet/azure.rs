//! What VMs of a public cloud are like: published distributions, rounded.
//!
//! Source: E. Cortez, A. Bonde, A. Muzio, M. Russinovich, M. Fontoura, R. Bianchini, "Resource Central: Understanding and
//! Predicting Workloads for Improved Resource Management in Large Cloud Platforms", SOSP 2017, of Azure's VMs; its
//! buckets of utilisation (mean, and 95th percentile of the maxima of five minutes), and that about 80 % of the VMs have
//! one or two vCPUs.
//!
//! Ours, since it is not published: how the VMs divide among the sizes beside that, that a utilisation is anywhere in its
//! bucket, that a VM is either at its peak or near idle, and what a request takes (see [`Vm::draw`]).

use crate::program::US;
use crate::rng::Rng;

/// Mean utilisation of a VM's vCPUs by quarters of 100 %: per cent of the VMs. Published, rounded.
pub const MEAN: [u64; 4] = [74, 19, 6, 1];
/// 95th percentile of the utilisation's maxima by quarters: per cent of the VMs. Published, rounded.
pub const PEAK: [u64; 4] = [25, 15, 14, 46];
/// vCPUs, and per cent of the VMs: one and two together are published, rounded; the rest is ours.
pub const SIZES: [(u32, u64); 5] = [(1, 45), (2, 34), (4, 14), (8, 6), (16, 1)];
/// What a request computes in the mean, each as likely: ours, from that of a cache to that of a page that is made anew.
pub const REQUESTS: [u64; 4] = [100 * US, 500 * US, 2_000 * US, 8_000 * US];

/// One VM at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Vm {
    /// vCPUs.
    pub vcpus: u32,
    /// Mean over its life of its vCPUs' utilisation, 0..1.
    pub mean: f64,
    /// What it uses when it is busy.
    pub peak: f64,
    /// What it uses now.
    pub now: f64,
    /// What a request computes in the mean, ns.
    pub request: u64,
}

/// One of the parts that a distribution is divided into.
fn bucket(parts: impl Iterator<Item = u64>, rng: &mut Rng) -> usize {
    let parts: Vec<u64> = parts.collect();
    let mut at = rng.within(0, parts.iter().sum::<u64>() - 1);
    for (index, part) in parts.iter().enumerate() {
        if at < *part {
            return index;
        }
        at -= part;
    }
    unreachable!("what was drawn is below the sum")
}

/// Anywhere in a quarter of 100 %.
fn quarter(parts: [u64; 4], rng: &mut Rng) -> f64 {
    let (quarter, within) = (bucket(parts.into_iter(), rng), rng.within(0, 1_000) as f64 / 1_000.0);
    (quarter as f64 + within) / 4.0
}

/// What a VM that is not at its peak uses of its vCPUs at least: timers, housekeeping.
const IDLES: f64 = 0.01;

impl Vm {
    /// A VM, and how busy it is at a moment: the mean is kept by how often it is at its peak.
    pub fn draw(rng: &mut Rng) -> Self {
        let vcpus = SIZES[bucket(SIZES.into_iter().map(|(_, part)| part), rng)].0;
        let mean = quarter(MEAN, rng).max(IDLES);
        // Drawn apart from the mean: what is published does not tell them together, but that it is not below it.
        let peak = quarter(PEAK, rng).max(mean);
        let busy = (mean - IDLES) / (peak - IDLES).max(f64::EPSILON);
        let at_peak = (rng.within(0, 999_999) as f64) < busy * 1e6;
        let request = rng.pick(&REQUESTS);
        Self { vcpus, mean, peak, now: if at_peak { peak } else { IDLES }, request }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_drawn_is_what_was_published() {
        let mut rng = Rng::new(1);
        let vms: Vec<Vm> = (0..50_000).map(|_| Vm::draw(&mut rng)).collect();
        let part = |of: &dyn Fn(&Vm) -> bool| vms.iter().filter(|vm| of(vm)).count() as f64 / vms.len() as f64;
        let near = |a: f64, b: f64| assert!((a - b).abs() < 0.01, "{a} {b}");
        near(part(&|vm| vm.vcpus <= 2), 0.79);
        near(part(&|vm| vm.mean < 0.25), 0.74);
        near(part(&|vm| vm.mean >= 0.5), 0.07);
        // A few peaks were raised to the mean: the upper ones are not told too small.
        assert!(part(&|vm| vm.peak >= 0.75) >= 0.455, "{}", part(&|vm| vm.peak >= 0.75));
        let sum = |of: &dyn Fn(&Vm) -> f64| vms.iter().map(of).sum::<f64>() / vms.len() as f64;
        near(sum(&|vm| vm.now), sum(&|vm| vm.mean));
        assert!(vms.iter().all(|vm| (0.0..=1.0).contains(&vm.peak) && vm.now <= vm.peak));
    }
}
