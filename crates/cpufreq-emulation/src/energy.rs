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
    use crate::tables::{TABLES, Table, table};

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

    /// Energy of a task's work on the smallest CPU that it fits, as a multiple of that on the cheapest: the worst of all
    /// demands, of one task alone on CPUs of all of a table's clusters.
    fn worst_of_the_smallest(table: &Table) -> f64 {
        use entrain_policy::energy::{COST_MAX, EnergyIn, Model, Point as Told, more};
        use entrain_policy::perf::fits;

        let top = table.clusters.iter().map(|c| c.dmips_per_mhz * c.fastest().mhz).max().unwrap();
        let performance = |c: &Cluster, point: &Point| (c.dmips_per_mhz * point.mhz) as f64 * 1024.0 / f64::from(top);
        let cost = |c: &Cluster, point: &Point| power_uw(c, *point) / performance(c, point);
        let dearest = table.clusters.iter().flat_map(|c| c.points.iter().map(move |p| cost(c, p))).fold(0.0, f64::max);
        let told = |c: &Cluster, point: &Point| Told {
            performance: performance(c, point).round() as u32,
            cost: (cost(c, point) / dearest * f64::from(COST_MAX)) as u32,
        };
        let model = |c: &Cluster| {
            let points: Vec<_> = c.points.iter().map(|point| told(c, point)).collect();
            (points.last().unwrap().performance, Model::new(&points))
        };
        let mut models: Vec<_> = table.clusters.iter().map(model).collect();
        models.sort_by_key(|(capacity, _)| *capacity);
        let ratio = |demand| {
            let fitting = models.iter().filter(|(capacity, _)| fits(demand, *capacity));
            let energy: Vec<_> =
                fitting.map(|(_, model)| more(model, &EnergyIn { others: 0, level: 0, demand }) as f64).collect();
            let cheapest = energy.iter().copied().fold(f64::INFINITY, f64::min);
            energy.first().map_or(1.0, |smallest| smallest / cheapest)
        };
        (1..1024).map(ratio).fold(1.0, f64::max)
    }

    #[test]
    fn the_smallest_cpu_is_the_cheapest_on_the_chromebook_and_not_on_the_phone() {
        let of = |name| worst_of_the_smallest(table(name).unwrap());
        assert_eq!(of("chromebook"), 1.0);
        assert!((1.5..1.6).contains(&of("phone")), "{}", of("phone"));
    }
}
