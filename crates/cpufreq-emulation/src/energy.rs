//! The energy model: what the kernel's own is made of (`power = coefficient · MHz · V²`), over the time at each point.

use crate::tables::{Cluster, Point};

/// Power of a busy CPU at an operating point, in µW.
///
/// Only what switching costs: an idle CPU costs nothing, leakage is left out. The kernel's energy model, which decides
/// placement on real devices, leaves out the same.
pub fn power_uw(cluster: &Cluster, point: Point) -> f64 {
    let volts = f64::from(point.mv) / 1000.0;
    f64::from(cluster.coefficient) * f64::from(point.mhz) * volts * volts
}

/// Energy in µJ of having been busy for so many ns at each of the cluster's points.
pub fn energy_uj(cluster: &Cluster, busy_ns: &[u64]) -> f64 {
    cluster.points.iter().zip(busy_ns).map(|(point, ns)| power_uw(cluster, *point) * *ns as f64 / 1e9).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::TABLES;

    #[test]
    fn the_same_work_costs_more_at_a_higher_point() {
        for cluster in TABLES.iter().flat_map(|table| table.clusters) {
            let per_work = |point: &Point| power_uw(cluster, *point) / f64::from(point.mhz);
            assert!(cluster.points.windows(2).all(|w| per_work(&w[0]) <= per_work(&w[1])), "{}", cluster.name);
        }
    }

    #[test]
    fn energy_is_power_times_time() {
        let big = TABLES[0].cluster("big").unwrap();
        let mut busy = vec![0; big.points.len()];
        *busy.last_mut().unwrap() = 2_000_000_000;
        // 436 µW/(MHz·V²) · 2016 MHz · 1.25² V² = 1.373 W for 2 s.
        assert!((energy_uj(big, &busy) / 2.746e6 - 1.0).abs() < 0.001);
    }
}
